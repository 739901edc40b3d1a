"""How strongly a pixel answers to a row, the same in XLA's loops and in kernels (spec §1.3).

log2 of the response is θ·(1, x, y, x², xy, y²) in coordinates of the tile's centre, with the opacity in θ₀.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from splat.projection import LOG2_E
from splat.raster.exp2 import exp2

Centre = tuple[jax.Array, jax.Array]  # x, y of a tile, pixels


def theta_of(geometry: Sequence[jax.Array], centre: Centre) -> list[jax.Array]:
    """The 6 numbers θ of rows from their 6 of geometry: centre x, y, conic xx, xy, yy, log2 opacity."""
    mx, my = geometry[0] - centre[0], geometry[1] - centre[1]
    a, b, c = (part * LOG2_E for part in geometry[2:5])
    tx, ty = a * mx + b * my, b * mx + c * my
    return [geometry[5] - 0.5 * (tx * mx + ty * my), tx, ty, -0.5 * a, -b, -0.5 * c]


def response(t: Sequence[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Raw response to the 6 numbers θ at x, y from the tile's centre, pixels."""
    return exp2(t[0] + x * (t[1] + t[3] * x + t[4] * y) + y * (t[2] + t[5] * y))
