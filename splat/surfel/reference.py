"""The surfel renderer's slow twin: every row at every pixel, written as the spec reads. The oracle of the tests.

It shares no arithmetic with ``splat.surfel.render``: rays meet disks by the homogeneous matrices of the spec, there are
no tiles, and gradients are JAX's own, except that the cap of one response passes its gradient straight through.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.raster.reference import MAX_ALPHA, MIN_ALPHA, MIN_TRANSMITTANCE, colours, rotations, unit
from splat.surfel.options import SurfelOptions


class RenderedSurfels(NamedTuple):
    """What ``surfel_ref`` makes of a view; the maps of ``splat.surfel.render.SurfelOutput``."""

    image: jax.Array  # [H, W, 3]
    alpha: jax.Array  # [H, W]
    normal: jax.Array  # [H, W, 3]
    depth: jax.Array  # [H, W]
    median_depth: jax.Array  # [H, W]
    distortion: jax.Array  # [H, W]


class _Rows(NamedTuple):
    """N rows in one view, nearest first; opacity is zero in rows that are not drawn."""

    transform: jax.Array  # [N, 3, 3] T, rows T_u, T_v, T_w (spec §2.2)
    centre: jax.Array  # [N, 2] of the low-pass filter, pixels
    opacity: jax.Array  # [N]
    colour: jax.Array  # [N, 3]
    normal: jax.Array  # [N, 3] camera axes, towards the camera


def surfel_ref(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
               background: jax.Array | None = None, sh_degree: int = 3, probe: jax.Array | None = None,
               options: SurfelOptions | None = None) -> RenderedSurfels:
    """What ``splat.surfel.render.render_surfels`` promises, dense over every pixel and row (spec §2.2 to §2.5).

    Arguments as there; ``options.pair_capacity`` has no meaning here. Time grows as H·W·N, memory as W·N.
    """
    options = options or SurfelOptions()
    rows = _rows(gaussians, camera, alive, sh_degree, probe, options)
    x, y = jnp.arange(camera.width) + 0.5, jnp.arange(camera.height) + 0.5
    pixels = jnp.stack(jnp.meshgrid(x, y), -1).astype(gaussians.means.dtype)
    line = jax.checkpoint(jax.vmap(lambda pixel: _blend_pixel(pixel, rows, options)))
    maps = RenderedSurfels(*jax.lax.map(line, pixels))
    if background is None:
        return maps
    return maps._replace(image=maps.image + (1 - maps.alpha)[..., None] * background)


def _blend_pixel(pixel: jax.Array, rows: _Rows, options: SurfelOptions) -> tuple[jax.Array, ...]:
    """The maps at one pixel (spec §2.2, §2.3, §2.5)."""
    t_u, t_v, t_w = (rows.transform[:, i] for i in range(3))
    p = jnp.cross(pixel[0] * t_w - t_u, pixel[1] * t_w - t_v)
    met = p[:, 2] != 0
    u, v = (p[:, i] / jnp.where(met, p[:, 2], 1) for i in range(2))
    depth = t_w[:, 0] * u + t_w[:, 1] * v + t_w[:, 2]
    met &= depth >= options.near
    depth = jnp.where(met, depth, 1)
    distance = jnp.sum((rows.centre - pixel) ** 2, -1)
    response = rows.opacity * jnp.exp(-0.5 * jnp.minimum(u**2 + v**2, 2 * distance))
    alpha = response + jax.lax.stop_gradient(jnp.minimum(response, MAX_ALPHA) - response)
    alpha = jnp.where(met & (response >= MIN_ALPHA), alpha, 0)
    behind = jnp.cumprod(1 - alpha)
    in_front = jnp.concatenate([jnp.ones_like(behind[:1]), behind[:-1]])
    weight = jnp.where(behind >= MIN_TRANSMITTANCE, alpha * in_front, 0)
    before_median = (weight > 0) & (in_front > 0.5)
    median_row = jnp.max(jnp.where(before_median, jnp.arange(len(depth)), -1))
    median = jnp.where(median_row >= 0, depth[median_row], 0)
    m = options.far / (options.far - options.near) * (1 - options.near / depth)
    sums = [jnp.cumsum(part) - part for part in (weight, weight * m, weight * m**2)]
    distortion = jnp.sum(weight * (m**2 * sums[0] + sums[2] - 2 * m * sums[1]))
    return weight @ rows.colour, jnp.sum(weight), weight @ rows.normal, weight @ depth, median, distortion


def _rows(gaussians: Gaussians, camera: Camera, alive: jax.Array | None, sh_degree: int, probe: jax.Array | None,
          options: SurfelOptions) -> _Rows:
    """T, low-pass centres and normals of all rows (spec §2.2, §2.4), in the order of their float32 depth."""
    turn, shift = camera.view[:3, :3], camera.view[:3, 3]
    at = gaussians.means @ turn.T + shift
    axes = turn @ rotations(gaussians.quats)
    facing = jnp.sum(axes[:, :, 2] * at, -1)
    drawn = (at[:, 2] > options.near) & (facing != 0)
    if alive is not None:
        drawn &= alive
    at = jnp.where(drawn[:, None], at, jnp.ones(3))
    fx, fy, cx, cy = camera.intrinsics
    zero, one = jnp.zeros_like(fx), jnp.ones_like(fx)
    to_pixels = jnp.stack([fx, zero, cx, zero, fy, cy, zero, zero, one]).reshape(3, 3)
    scaled = axes[:, :, :2] * jnp.exp(gaussians.log_scales)[:, None, :]
    transform = to_pixels @ jnp.concatenate([scaled, at[:, :, None]], -1)
    centre = _box_centre(transform, options.centre_cutoff)
    if probe is not None:
        pixels = probe * jnp.array([camera.width / 2, camera.height / 2])
        transform = transform.at[:, :2, 2].add(pixels * transform[:, 2, 2:])
    toward = gaussians.means - jnp.linalg.inv(camera.view)[:3, 3]
    normal = jnp.where(facing[:, None] > 0, -axes[:, :, 2], axes[:, :, 2])
    rows = _Rows(transform, centre, jnp.where(drawn, gaussians.opacities, 0),
                 colours(gaussians, unit(toward), sh_degree), normal)
    order = jnp.argsort(at[:, 2].astype(jnp.float32), stable=True)
    return _Rows(*(field[order] for field in rows))


def _box_centre(transform: jax.Array, cutoff: float) -> jax.Array:
    """[N, 2] middle of the box around the disk of radius ``cutoff`` (spec §2.4)."""
    t = jnp.array([cutoff**2, cutoff**2, -1.0])
    t_w = transform[:, 2]
    f = t / jnp.sum(t * t_w * t_w, -1, keepdims=True)
    return jnp.stack([jnp.sum(f * transform[:, i] * t_w, -1) for i in range(2)], -1)
