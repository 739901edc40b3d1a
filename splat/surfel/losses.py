"""The regularisers of 2DGS: normals that agree with the depth map, and hits that lie close together (spec §2.6)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat.cameras import Camera
from splat.surfel.render import SurfelOutput

TINY = 1e-24  # keeps the length of a zero vector differentiable


class Regularisers(NamedTuple):
    """Weights of the regularisers at one step; 0 where one is not yet active."""

    normal: jax.Array  # [] of the mean of 1 − N·(normal of the depth map)
    distortion: jax.Array  # [] of the mean distortion


def surface_depth(out: SurfelOutput, depth_ratio: float) -> jax.Array:
    """[H, W] depth of the surface, world units: the mean depth, the median's share being ``depth_ratio``; 0 where no
    hit is."""
    seen = out.alpha > 0
    mean = jnp.where(seen, out.depth / jnp.where(seen, out.alpha, 1), 0)
    return (1 - depth_ratio) * mean + depth_ratio * out.median_depth


def surface_normals(depth: jax.Array, camera: Camera) -> jax.Array:
    """[H, W, 3] unit normals in camera axes of a depth map [H, W], towards the camera; 0 on the border.

    They are the normalised cross product of the central differences of the points, vertical by horizontal.
    """
    fx, fy, cx, cy = camera.intrinsics
    x = (jnp.arange(camera.width, dtype=depth.dtype) + 0.5 - cx) / fx
    y = (jnp.arange(camera.height, dtype=depth.dtype) + 0.5 - cy) / fy
    points = jnp.stack([depth * x, depth * y[:, None], depth], -1)
    down, across = points[2:, 1:-1] - points[:-2, 1:-1], points[1:-1, 2:] - points[1:-1, :-2]
    normal = jnp.cross(down, across)
    normal = normal * jax.lax.rsqrt(jnp.sum(normal * normal, -1, keepdims=True) + TINY)
    return jnp.pad(normal, ((1, 1), (1, 1), (0, 0)))


def normal_misfit(out: SurfelOutput, camera: Camera, depth_ratio: float,
                  inner: jax.Array | bool = True) -> jax.Array:
    """[H, W] 1 − N·n·A; N the normal map, n that of the depth map, A the alpha as a constant.

    ``inner`` (shape that broadcasts to the map): where n is to be seen, beside the border of the map, where it is 0.
    """
    surface = surface_normals(surface_depth(out, depth_ratio), camera) * jax.lax.stop_gradient(out.alpha)[..., None]
    return 1 - jnp.where(inner, jnp.sum(out.normal * surface, -1), 0)


def normal_loss(out: SurfelOutput, camera: Camera, depth_ratio: float) -> jax.Array:
    """[] mean over the pixels of the misfit of the normals."""
    return jnp.mean(normal_misfit(out, camera, depth_ratio))


def regularisation(out: SurfelOutput, camera: Camera, weights: Regularisers, depth_ratio: float) -> jax.Array:
    """[] what the regularisers add to the photometric loss of a view."""
    return (weights.normal * normal_loss(out, camera, depth_ratio)
            + weights.distortion * jnp.mean(out.distortion))
