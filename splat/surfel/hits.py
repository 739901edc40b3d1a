"""Where the rays of a tile's pixels meet surfels, the same in XLA's loops and in kernels (spec §2.2, §2.3).

A row is three planes over the image, in coordinates of the tile's centre: U, V and I with u = U/I, v = V/I and 1/I the
depth of the hit (``splat.surfel.geometry`` divided by z), and beside them the low-pass centre and the opacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat.projection import LOG2_E
from splat.raster.exp2 import exp2
from splat.raster.response import Centre
from splat.surfel.geometry import LOW_PASS, N_FEATURES

FARTHEST = 1e12  # hits beyond this depth count as none: the ray runs along the disk
MEDIAN = 0.5  # the median depth is that of the last hit in front of which more than this is let through
N_MAPS = N_FEATURES + 5  # features, then Σ w·depth, Σ w·I, Σ w·I², Σ w, median depth
N_PLANES = 12  # U (3), V (3), I (3), low-pass centre (2), log2 opacity


class Hits(NamedTuple):
    """Rays of a tile's pixels against rows, [..., P] each."""

    u: jax.Array  # the planes
    v: jax.Array
    inverse: jax.Array  # I, 1 where nothing is hit
    hit: jax.Array  # bool: in front of the near plane
    disk: jax.Array  # bool: the disk counts, not the low-pass filter
    raw: jax.Array  # response


def planes_of(geometry: Sequence[jax.Array], centre: Centre) -> list[jax.Array]:
    """The 12 numbers of rows' planes around the tile's centre, from their 12 of geometry."""
    mx, my = geometry[0] - centre[0], geometry[1] - centre[1]
    inverse, parts = 1 / geometry[10], []
    for constant, column in ((0, 2), (0, 4), (1, 6)):
        along, down = geometry[column], geometry[column + 1]
        parts += [(constant - along * mx - down * my) * inverse, along * inverse, down * inverse]
    return [*parts, geometry[8] - centre[0], geometry[9] - centre[1], geometry[11]]


def hits_of(planes: Sequence[jax.Array], x: jax.Array, y: jax.Array, near: float) -> Hits:
    """The hits at x, y [P] from the tile's centre, pixels, on the 12 planes; ``near`` in world units."""
    u, v, inverse = (planes[i] + planes[i + 1] * x + planes[i + 2] * y for i in (0, 3, 6))
    hit = (inverse > 1 / FARTHEST) & (inverse * near <= 1)
    inverse = jnp.where(hit, inverse, 1)
    on_disk = (u * u + v * v) / (inverse * inverse)
    on_screen = LOW_PASS * ((x - planes[9]) * (x - planes[9]) + (y - planes[10]) * (y - planes[10]))
    disk = on_disk <= on_screen
    raw = exp2(planes[11] - (0.5 * LOG2_E) * jnp.where(disk, on_disk, on_screen))
    return Hits(u, v, inverse, hit, disk, jnp.where(hit, raw, 0))
