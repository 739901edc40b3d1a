"""Blending as a pair of GPU kernels: what ``splat.raster.blend`` does in XLA, one program per tile (spec §1.3, §1.4).

A program walks its tile's list from the front and keeps its pixels in registers. What a row needs is read once per
tile, the loop ends where no pixel lets light through any more, and nothing asks the host. The backward kernel leaves
the gradient of every list slot in the slot, so that it needs no atomics; XLA adds the slots of a row together. Pallas
lowers both through Triton. On a CPU they are interpreted, which is for tests.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from splat.backend import backend
from splat.errors import UserError
from splat.projection import LOG2_E, MIN_ALPHA
from splat.raster.settings import kernel_shape
from splat.raster.walk import MIN_TRANSMITTANCE, capped, tiled, untiled
from splat.tiles import Grid, TileLists

N_GEOMETRY = 6  # columns of a row: centre x, y, conic xx, xy, yy, log2 opacity; features follow
CLEARED = 64  # slots that are set to zero together
MOST_NUMBERS = 2**31 - 1  # of an array that a kernel indexes: Triton's offsets have 32 bits


def forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    """[H, W, F + 1] Σ w·feature and Σ w; arguments as for ``splat.raster.blend.blend``."""
    grid, n_features, dtype = lists.grid, features.shape[1], features.dtype
    shape = jax.ShapeDtypeStruct((grid.count, n_features + 1, grid.side**2), dtype)
    tiles = _kernel(partial(_forward, grid, n_features), grid, shape)(*_walked(geometry, features, lists))
    return untiled(jnp.pad(tiles, ((0, 1), (0, 0), (0, 0))), grid, width, height)


def backward(geometry: jax.Array, features: jax.Array, lists: TileLists, image: jax.Array,
             d_image: jax.Array) -> jax.Array:
    """[N, 6 + F] gradient of geometry and features; ``image`` and its gradient are [H, W, F + 1], alpha last."""
    grid, (n, n_features) = lists.grid, features.shape
    totals = tiled(jnp.sum(image * d_image, -1, keepdims=True), grid)[:-1, 0]
    shape = jax.ShapeDtypeStruct((len(lists.rows), N_GEOMETRY + n_features), features.dtype)
    kernel = _kernel(partial(_backward, grid, n_features), grid, shape)
    slots = kernel(*_walked(geometry, features, lists), tiled(d_image, grid)[:-1], totals)
    slots = jnp.where((lists.rows < n)[:, None], slots, 0)
    return jnp.zeros((n, shape.shape[1]), shape.dtype).at[lists.rows].add(slots, mode="drop")


def most_pairs(n_features: int) -> int:
    """Tile-row pairs of a view up to which the kernels can index the gradients of their slots."""
    return MOST_NUMBERS // (N_GEOMETRY + n_features)


def _kernel(body: Any, grid: Grid, out: jax.ShapeDtypeStruct) -> Any:
    return pl.pallas_call(body, out_shape=out, grid=(grid.count,), interpret=backend() == "cpu",
                          compiler_params=triton.CompilerParams(num_warps=kernel_shape().warps, num_stages=1))


def _walked(geometry: jax.Array, features: jax.Array, lists: TileLists) -> tuple[jax.Array, ...]:
    """Tiles with the longest list first, as they decide when the last program ends; starts, rows, and their table.

    Raises UserError for more rows or pairs than can be indexed.
    """
    most = most_pairs(features.shape[1])
    if max(len(features), len(lists.rows)) > most:
        raise UserError(f"{len(features):,} rows with room for {len(lists.rows):,} tile-row pairs in a view: the "
                        f"kernels index {most:,}; train fewer rows or smaller photos")
    order = jnp.argsort(lists.starts[:-1] - lists.starts[1:]).astype(jnp.int32)
    return order, lists.starts, lists.rows, jnp.concatenate([geometry, features], -1)


def _forward(grid: Grid, n_features: int, order: Any, starts: Any, rows: Any, table: Any, out: Any) -> None:
    tile, begin, end, centre = _tile(grid, order, starts)
    x, y = _offsets(grid.side, table.dtype)

    def row(slot: jax.Array, carry: Any) -> Any:
        trans, sums = carry
        geometry, values = _row(table, rows[slot], n_features)
        raw = _responses(_quadratic(geometry, centre), x, y)
        alpha = capped(raw)
        after = trans * (1 - alpha)
        weight = jnp.where(after >= MIN_TRANSMITTANCE, alpha * trans, 0)
        return after, tuple(total + weight * value for total, value in zip(sums, (*values, 1), strict=True))

    start = jnp.ones_like(x), tuple(jnp.zeros_like(x) for _ in range(n_features + 1))
    _, (_, sums) = _walk(begin, end, row, start)
    for column, total in enumerate(sums):
        out[tile, column, :] = total


def _backward(grid: Grid, n_features: int, order: Any, starts: Any, rows: Any, table: Any, d_tiles: Any, totals: Any,
              out: Any) -> None:
    tile, begin, end, centre = _tile(grid, order, starts)
    x, y = _offsets(grid.side, table.dtype)
    d_pixel = [d_tiles[tile, column, :] for column in range(n_features + 1)]

    def row(slot: jax.Array, carry: Any) -> Any:
        trans, behind = carry
        geometry, values = _row(table, rows[slot], n_features)
        raw = _responses(_quadratic(geometry, centre), x, y)
        alpha = capped(raw)
        after = trans * (1 - alpha)
        blended = after >= MIN_TRANSMITTANCE
        weight = jnp.where(blended, alpha * trans, 0)
        gain = d_pixel[-1]
        for value, d_value in zip(values, d_pixel, strict=False):
            gain = gain + value * d_value
        behind = behind - weight * gain
        d_log = jnp.where(blended & (raw >= MIN_ALPHA), raw * (trans * gain - behind / (1 - alpha)), 0)
        by_x, by_y = d_log * x, d_log * y
        d_theta = [jnp.sum(part) * (1 / LOG2_E) for part in (d_log, by_x, by_y, by_x * x, by_x * y, by_y * y)]
        d_values = [jnp.sum(weight * d_value) for d_value in d_pixel[:-1]]
        for column, value in enumerate((*_by_geometry(d_theta, geometry, centre), *d_values)):
            out[slot, column] = value
        return after, behind

    reached, _ = _walk(begin, end, row, (jnp.ones_like(x), totals[tile, :]))
    lane = jnp.arange(CLEARED, dtype=jnp.int32)

    def clear(part: jax.Array, _: Any) -> Any:
        slots = reached + part * CLEARED + lane
        for column in range(N_GEOMETRY + n_features):
            triton.store(out.at[slots, column], jnp.zeros(CLEARED, table.dtype), mask=slots < end)
        return _

    jax.lax.fori_loop(0, (end - reached + CLEARED - 1) // CLEARED, clear, jnp.int32(0))


def _tile(grid: Grid, order: Any, starts: Any) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """The program's tile, the slots of its list from first to one past the last, and its centre in pixels."""
    tile = order[pl.program_id(0)]
    at = (tile % grid.columns, tile // grid.columns)
    x, y = ((place * grid.side).astype(jnp.float32) + grid.side / 2 for place in at)
    return tile, starts[tile], starts[tile + 1], (x, y)


def _walk(begin: jax.Array, end: jax.Array, row: Any, start: Any) -> tuple[jax.Array, Any]:
    """(first slot that was not reached, what is carried): ``row(slot, carry)`` over the list, transmittance first.

    Whether a pixel still lets light through is asked after every few rows only, as all threads have to agree.
    """
    chunk = kernel_shape().rows

    def more(state: Any) -> jax.Array:
        slot, carry = state
        return (slot < end) & (jnp.max(carry[0]) >= MIN_TRANSMITTANCE)

    def step(state: Any) -> Any:
        slot, carry = state
        following = jnp.minimum(slot + chunk, end)
        return following, jax.lax.fori_loop(slot, following, row, carry)

    return jax.lax.while_loop(more, step, (begin, start))


def _row(table: Any, index: jax.Array, n_features: int) -> tuple[list[jax.Array], list[jax.Array]]:
    numbers = [table[index, column] for column in range(N_GEOMETRY + n_features)]
    return numbers[:N_GEOMETRY], numbers[N_GEOMETRY:]


def _offsets(side: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """x and y [P] of pixel centres relative to the centre of a tile; made in the kernel, which takes no constants."""
    at = jnp.arange(side * side, dtype=jnp.int32)
    return tuple(place.astype(dtype) + np.asarray(0.5 - side / 2, dtype) for place in (at % side, at // side))  # type: ignore


def _quadratic(geometry: list[jax.Array], centre: tuple[jax.Array, jax.Array]) -> list[jax.Array]:
    """θ: log2 of the response is θ·(1, x, y, x², xy, y²) around the tile's centre (``blend.quadratic``)."""
    mx, my = geometry[0] - centre[0], geometry[1] - centre[1]
    a, b, c = (part * LOG2_E for part in geometry[2:5])
    tx, ty = a * mx + b * my, b * mx + c * my
    return [geometry[5] - 0.5 * (tx * mx + ty * my), tx, ty, -0.5 * a, -b, -0.5 * c]


def _responses(t: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.exp2(t[0] + x * (t[1] + t[3] * x + t[4] * y) + y * (t[2] + t[5] * y))


def _by_geometry(d: list[jax.Array], geometry: list[jax.Array],
                 centre: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
    """Derivatives by a row's geometry from those by θ: the transpose of ``_quadratic``."""
    mx, my = geometry[0] - centre[0], geometry[1] - centre[1]
    a, b, c = (part * LOG2_E for part in geometry[2:5])
    tx, ty = a * mx + b * my, b * mx + c * my
    d_a = d[1] * mx - 0.5 * (d[0] * mx * mx + d[3])
    d_b = d[1] * my + d[2] * mx - d[0] * mx * my - d[4]
    d_c = d[2] * my - 0.5 * (d[0] * my * my + d[5])
    return (d[1] * a + d[2] * b - d[0] * tx, d[1] * b + d[2] * c - d[0] * ty,
            d_a * LOG2_E, d_b * LOG2_E, d_c * LOG2_E, d[0])
