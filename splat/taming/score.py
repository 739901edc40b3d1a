"""How much a row matters, by what training views say of it: the score of TamingGS (spec §3.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from splat import tiles
from splat.gaussians import Gaussians
from splat.loss import photometric
from splat.options import RenderOptions
from splat.pipelines.protocol import View
from splat.projection import Projected, project
from splat.raster.blend import blend
from splat.raster.contributions import Contributions, contributions
from splat.raster.settings import tile_side
from splat.render import count_pairs

GREY = (19595, 38470, 7471)  # shares of red, green and blue in 1/65536, as Pillow's mode L has them
LEAST_SPREAD = 0.1  # of the larger eigenvalue's square root term in a radius, pixels² (spec §1.1 step 7)
SIGMAS = 3  # a radius in standard deviations


@dataclass(frozen=True)
class ScoreWeights:
    """What counts how much; hashable, compiled in. All but the first three weigh a component of the score."""

    view: float  # of a view's loss, which multiplies the score of its rows
    error: float  # of the error map in a pixel's weight
    edges: float  # of the edge map in a pixel's weight
    gradient: float  # mean position gradient
    opacity: float
    depth: float  # camera z
    radius: float  # 3 σ in the image
    volume: float  # product of the scales
    distance: float  # Σ of distances from blended pixels to the centre
    loss: float  # Σ of the weights of blended pixels
    count: float  # blended pixels
    blend: float  # Σ αT


def view_score(gaussians: Gaussians, alive: jax.Array, gradient: jax.Array, degree: jax.Array, view: View,
               options: RenderOptions, weights: ScoreWeights) -> jax.Array:
    """[N] the score of each row in one view, 0 where it is not seen.

    ``gradient`` [N] is the mean position gradient since the last densification. The room for tile-row pairs is counted:
    a power of two that follows from rows and view alone, as sums are rounded by the shape they are made in and a run
    that is continued must find the same scores.
    """
    room = 1 << max(int(_count(gaussians, view.camera, alive, options)) - 1, 1023).bit_length()
    while True:
        score, overflow = _view_score(gaussians, alive, gradient, degree, view, replace(options, pair_capacity=room),
                                      weights)
        if not bool(overflow):
            return score
        room *= 2


@partial(jax.jit, static_argnames=("options", "weights"))
def _view_score(gaussians: Gaussians, alive: jax.Array, gradient: jax.Array, degree: jax.Array, view: View,
                options: RenderOptions, weights: ScoreWeights) -> tuple[jax.Array, jax.Array]:
    """([N] score, [] bool: the room for pairs was too small and the score must not be used)."""
    camera, dtype = view.camera, gaussians.means.dtype
    proj = project(gaussians, camera, alive=alive, sh_degree=degree, probe=None, options=options)
    side = tile_side(camera.width, camera.height)
    lists = tiles.build(proj, camera.width, camera.height, options.pair_capacity or 1, side)
    drawn: Any = blend(proj.geometry, proj.features, lists, camera.width, camera.height)
    image = drawn[..., :3] + (1 - drawn[..., 4:]) * view.background
    photo = view.photo.astype(dtype) / 255
    mask = None if view.mask is None else view.mask.astype(dtype) / 255
    omega = pixel_weights(image, photo, edges(view.photo), weights)
    sums = contributions(proj.geometry, lists, omega if mask is None else omega * mask)
    seen = tiles.touched(proj, camera.width, camera.height)
    parts = _weighted(gaussians, alive, gradient, proj, seen, sums, weights)
    score = weights.view * photometric(image, photo, mask) * parts
    return jnp.where(seen, score, 0), lists.overflow


_count = jax.jit(lambda gaussians, camera, alive, options: count_pairs(gaussians, camera, alive=alive,
                                                                       options=options)[1], static_argnums=3)


def pixel_weights(image: jax.Array, photo: jax.Array, edges: jax.Array, weights: ScoreWeights) -> jax.Array:
    """[H, W] ω: error and edges, each stretched to 0..1 over the image."""
    error = jnp.mean(jnp.abs(image - photo), axis=-1)
    return weights.error * _stretched(error) + weights.edges * _stretched(edges)


def edges(photo: jax.Array) -> jax.Array:
    """[H, W] 0..1 the 3×3 Laplacian of a uint8 photo in grey, as Pillow's FIND_EDGES: grey itself on the border."""
    red, green, blue = (photo[..., i].astype(jnp.int32) * share for i, share in enumerate(GREY))
    grey = (red + green + blue + 0x8000) >> 16
    around = jnp.pad(grey, 1, mode="edge")
    height, width = grey.shape
    total = sum(around[i : i + height, j : j + width] for i in range(3) for j in range(3))
    inside = jnp.zeros(grey.shape, bool).at[1:-1, 1:-1].set(True)
    return jnp.where(inside, jnp.clip(9 * grey - total, 0, 255), grey) / jnp.float32(255)


def by_median(values: jax.Array) -> jax.Array:
    """[N] positive values over their median (the lower of the two in the middle); all others, and NaN, are 0."""
    positive = values > 0
    ordered = jnp.sort(jnp.where(positive, values, jnp.inf))
    median = ordered[jnp.maximum(jnp.sum(positive) - 1, 0) // 2]
    return jnp.where(positive, values / median, 0)


def radii(proj: Projected) -> jax.Array:
    """[N] ⌈3 σ⌉ pixels along the longer axis of a footprint (spec §1.1 step 7)."""
    xx, xy, yy = proj.covariance
    middle = 0.5 * (xx + yy)
    larger = middle + jnp.sqrt(jnp.maximum(LEAST_SPREAD, middle * middle - (xx * yy - xy * xy)))
    return jnp.ceil(SIGMAS * jnp.sqrt(larger))


def _weighted(gaussians: Gaussians, alive: jax.Array, gradient: jax.Array, proj: Projected, seen: jax.Array,
              sums: Contributions, weights: ScoreWeights) -> jax.Array:
    """[N] components of the score, each over its median, weighed and added up."""
    parts = (
        (weights.gradient, jnp.where(alive, gradient, 0)),
        (weights.opacity, jnp.where(alive, gaussians.opacities, 0)),
        (weights.depth, jnp.where(seen, proj.features[:, -1], 0)),
        (weights.radius, jnp.where(seen, radii(proj), 0)),
        (weights.volume, jnp.where(alive, jnp.prod(gaussians.scales, axis=-1), 0)),
        (weights.distance, sums.distance),
        (weights.loss, sums.weight),
        (weights.count, sums.count),
        (weights.blend, sums.blend),
    )
    return sum((weight * by_median(values) for weight, values in parts), jnp.zeros_like(gradient))


def _stretched(values: jax.Array) -> jax.Array:
    low, high = jnp.min(values), jnp.max(values)
    return (values - low) / jnp.maximum(high - low, jnp.finfo(values.dtype).tiny)
