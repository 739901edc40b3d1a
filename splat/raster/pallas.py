"""Blending as a pair of GPU kernels: what ``splat.raster.blend`` does in XLA's loops (spec §1.3, §1.4)."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from splat.projection import LOG2_E, MIN_ALPHA
from splat.raster import kernels
from splat.raster.response import Centre, response, theta_of
from splat.raster.settings import KERNEL
from splat.raster.walk import MIN_TRANSMITTANCE, capped, tiled, untiled
from splat.tiles import Grid, TileLists

N_GEOMETRY = 6  # columns of a row: centre x, y, conic xx, xy, yy, log2 opacity; features follow


def forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    """[H, W, F + 1] Σ w·feature and Σ w; arguments as for ``splat.raster.blend.blend``."""
    grid, n_features = lists.grid, features.shape[1]
    out = jax.ShapeDtypeStruct((grid.count, n_features + 1, grid.side**2), features.dtype)
    kernel = kernels.launch(partial(_forward, grid, n_features), grid, KERNEL, out)
    tiles = kernel(*kernels.arguments(geometry, features, lists))
    return untiled(jnp.pad(tiles, ((0, 1), (0, 0), (0, 0))), grid, width, height)


def backward(geometry: jax.Array, features: jax.Array, lists: TileLists, image: jax.Array,
             d_image: jax.Array) -> jax.Array:
    """[N, 6 + F] gradient of geometry and features; ``image`` and its gradient are [H, W, F + 1], alpha last."""
    grid, (n, n_features) = lists.grid, features.shape
    totals = tiled(jnp.sum(image * d_image, -1, keepdims=True), grid)[:-1, 0]
    out = jax.ShapeDtypeStruct((len(lists.rows), N_GEOMETRY + n_features), features.dtype)
    kernel = kernels.launch(partial(_backward, grid, n_features), grid, KERNEL, out)
    slots = kernel(*kernels.arguments(geometry, features, lists), tiled(d_image, grid)[:-1], totals)
    return kernels.of_rows(slots, lists, n)


def _forward(grid: Grid, n_features: int, order: Any, starts: Any, rows: Any, table: Any, out: Any) -> None:
    tile, begin, end, centre = kernels.tile_of(grid, order, starts)
    x, y = kernels.offsets(grid.side, table.dtype)

    def row(slot: jax.Array, carry: Any) -> Any:
        trans, sums = carry
        numbers = kernels.numbers(table, rows[slot], N_GEOMETRY + n_features)
        alpha = capped(response(theta_of(numbers, centre), x, y))
        after = trans * (1 - alpha)
        weight = jnp.where(after >= MIN_TRANSMITTANCE, alpha * trans, 0)
        values = (*numbers[N_GEOMETRY:], 1)
        return after, tuple(total + weight * value for total, value in zip(sums, values, strict=True))

    start = jnp.ones_like(x), tuple(jnp.zeros_like(x) for _ in range(n_features + 1))
    _, (_, sums) = kernels.walk(begin, end, KERNEL.rows, row, start)
    for column, total in enumerate(sums):
        out[tile, column, :] = total


def _backward(grid: Grid, n_features: int, order: Any, starts: Any, rows: Any, table: Any, d_tiles: Any, totals: Any,
              out: Any) -> None:
    tile, begin, end, centre = kernels.tile_of(grid, order, starts)
    x, y = kernels.offsets(grid.side, table.dtype)
    d_pixel = [d_tiles[tile, column, :] for column in range(n_features + 1)]

    def row(slot: jax.Array, carry: Any) -> Any:
        trans, behind = carry
        numbers = kernels.numbers(table, rows[slot], N_GEOMETRY + n_features)
        raw = response(theta_of(numbers, centre), x, y)
        alpha = capped(raw)
        after = trans * (1 - alpha)
        blended = after >= MIN_TRANSMITTANCE
        weight = jnp.where(blended, alpha * trans, 0)
        gain = d_pixel[-1]
        for value, d_value in zip(numbers[N_GEOMETRY:], d_pixel, strict=False):
            gain = gain + value * d_value
        behind = behind - weight * gain
        d_log = jnp.where(blended & (raw >= MIN_ALPHA), raw * (trans * gain - behind / (1 - alpha)), 0)
        by_x, by_y = d_log * x, d_log * y
        d_theta = [jnp.sum(part) * (1 / LOG2_E) for part in (d_log, by_x, by_y, by_x * x, by_x * y, by_y * y)]
        d_values = [jnp.sum(weight * d_value) for d_value in d_pixel[:-1]]
        kernels.put(out, slot, (*_by_geometry(d_theta, numbers, centre), *d_values))
        return after, behind

    start = (jnp.ones_like(x), totals[tile, :])
    reached, _ = kernels.walk(begin, end, KERNEL.rows, row, start)
    kernels.clear(out, reached, end)


def _by_geometry(d: list[jax.Array], geometry: list[jax.Array],
                 centre: Centre) -> tuple[jax.Array, ...]:
    """Derivatives by a row's geometry from those by θ: the transpose of ``theta_of``."""
    mx, my = geometry[0] - centre[0], geometry[1] - centre[1]
    a, b, c = (part * LOG2_E for part in geometry[2:5])
    tx, ty = a * mx + b * my, b * mx + c * my
    d_a = d[1] * mx - 0.5 * (d[0] * mx * mx + d[3])
    d_b = d[1] * my + d[2] * mx - d[0] * mx * my - d[4]
    d_c = d[2] * my - 0.5 * (d[0] * my * my + d[5])
    return (d[1] * a + d[2] * b - d[0] * tx, d[1] * b + d[2] * c - d[0] * ty,
            d_a * LOG2_E, d_b * LOG2_E, d_c * LOG2_E, d[0])
