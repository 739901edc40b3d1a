"""Which rows each image tile blends, front to back: exact footprints, one integer sort.

A row belongs to a tile iff its response can reach 1/255 somewhere in the rectangle of that tile's pixel centres
(spec §1.1 step 9). The set {response ≥ 1/255} is an ellipse, so over one row of tiles it covers a contiguous span,
which is computed in closed form: no candidate outside the span is ever listed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from splat.backend import backend
from splat.columns import columns, stack
from splat.projection import MIN_ALPHA, Projected

SLACK = 1e-3  # pixels added to a footprint so that rounding never drops a pixel that reaches 1/255


class Grid(NamedTuple):
    """Tiles of an image, row-major."""

    columns: int
    rows: int
    side: int  # of a tile, pixels

    @property
    def count(self) -> int:
        """Tiles in the image."""
        return self.columns * self.rows


@struct.dataclass
class TileLists:
    """Row indices per tile: tile t blends ``rows[starts[t]:starts[t+1]]`` in this order."""

    rows: jax.Array  # [capacity] int32, N (one past the last row) in unused slots
    starts: jax.Array  # [tiles + 1] int32
    pairs: jax.Array  # [] int32, slots needed
    overflow: jax.Array  # [] bool, more slots needed than there are: the lists are incomplete
    grid: Grid = struct.field(pytree_node=False)


class _Strips(NamedTuple):
    """The tile rows that footprints reach: first tile row, and how many, per Gaussian."""

    first: jax.Array
    count: jax.Array


def grid_of(width: int, height: int, side: int) -> Grid:
    """The grid of tiles of ``side`` pixels that covers an image of the given size in pixels."""
    return Grid(-(-width // side), -(-height // side), side)


def footprint(proj: Projected) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(level, half width, half height) [N] of {response ≥ 1/255} = {dᵀ·conic·d ≤ level}, pixels; level ≤ 0: empty."""
    level = 2.0 * jnp.log(jnp.maximum(proj.opacity, 1e-30) / MIN_ALPHA)
    reach = jnp.maximum(level, 0.0)
    half_x = jnp.sqrt(reach * proj.covariance[0]) + SLACK
    half_y = jnp.sqrt(reach * proj.covariance[2]) + SLACK
    return level, half_x, half_y


def touched(proj: Projected, width: int, height: int) -> jax.Array:
    """[N] bool: the footprint's box contains a pixel centre of the image (exact test of design §6)."""
    _, half_x, half_y = footprint(proj)
    inside = proj.valid
    for centre, half, size in ((proj.geometry[:, 0], half_x, width), (proj.geometry[:, 1], half_y, height)):
        inside &= _last(centre + half, size) >= _first(centre - half, size)
    return inside


def pixel_rows(proj: Projected, height: int) -> tuple[jax.Array, jax.Array]:
    """([N] int32 first, [N] int32 last) row of pixel centres, of an image of ``height`` pixels, that the footprint's
    box contains; of use where the row is ``touched``.
    """
    _, _, half_y = footprint(proj)
    return _first(proj.geometry[:, 1] - half_y, height), _last(proj.geometry[:, 1] + half_y, height)


def _first(edge: jax.Array, size: int) -> jax.Array:
    """Index of the first pixel whose centre lies at or after ``edge``."""
    return jnp.clip(jnp.ceil(edge - 0.5), 0, size).astype(jnp.int32)


def _last(edge: jax.Array, size: int) -> jax.Array:
    """Index of the last pixel whose centre lies at or before ``edge``."""
    return jnp.clip(jnp.floor(edge - 0.5), -1, size - 1).astype(jnp.int32)


def _tile_rows(proj: Projected, shown: jax.Array, height: int, side: int) -> _Strips:
    first, last = pixel_rows(proj, height)
    first, last = first // side, last // side
    return _Strips(first, jnp.where(shown, last - first + 1, 0))


def _span(packed: jax.Array, tile_row: jax.Array, width: int, height: int,
          side: int) -> tuple[jax.Array, jax.Array]:
    """First and last tile column that a footprint reaches within one tile row; none: last = first − 1.

    The rightmost point of the ellipse lies at dy = half_x·Σxy/Σxx; over a strip of pixel centres the extreme is there
    if the strip contains it, else at the nearer edge of the strip.
    """
    mx, my, xx, xy, yy, level = (packed[:, i] for i in range(6))
    half_x, half_y = jnp.sqrt(level * xx), jnp.sqrt(level * yy)
    low = jnp.maximum(tile_row * side + 0.5 - my, -half_y)
    high = jnp.minimum(jnp.minimum(tile_row * side + side, height) - 0.5 - my, half_y)
    turn = half_x * xy / xx
    lean = xy / yy
    thickness = jnp.maximum(xx - xy * lean, 0.0) / yy

    def edge(sign: float) -> jax.Array:
        dy = jnp.clip(sign * turn, low, jnp.maximum(high, low))
        room = jnp.maximum(level * yy - dy * dy, 0.0)
        return mx + lean * dy + sign * (jnp.sqrt(room * thickness) + SLACK)

    first, last = _first(edge(-1.0), width), _last(edge(1.0), width)
    return first // side, jnp.where(first <= last, last // side, first // side - 1)


def _owners(counts: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For slots 0..capacity: (owner, place within the owner's run, total) when owner i gets counts[i] slots."""
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    begins = ends - counts
    heads = jnp.zeros(capacity, jnp.int32).at[jnp.where(counts > 0, begins, capacity)].max(
        jnp.arange(counts.shape[0], dtype=jnp.int32), mode="drop")
    owner = jax.lax.cummax(heads)
    return owner, jnp.arange(capacity, dtype=jnp.int32) - begins[owner], ends[-1]


def build(proj: Projected, width: int, height: int, capacity: int, side: int) -> TileLists:
    """Bin footprints into tiles, each list ordered by float32 depth with ties in row order (spec §1.2).

    ``width``, ``height`` of the image and ``side`` of a tile are in pixels; the lists have ``capacity`` slots.
    """
    grid, n = grid_of(width, height, side), proj.valid.shape[0]
    shown = touched(proj, width, height)
    order = _by_depth(proj.features[:, -1], shown)
    level, _, _ = footprint(proj)
    table = stack((*columns(proj.geometry)[:2], *proj.covariance, jnp.maximum(level, 0.0)))[order]
    strips = jax.tree.map(lambda x: x[order], _tile_rows(proj, shown, height, side))
    rank, place, n_strips = _owners(strips.count, capacity)
    tile_row = strips.first[rank] + place
    left, right = _span(table[rank], tile_row, width, height, side)
    used = jnp.arange(capacity) < n_strips
    strip, column, n_pairs = _owners(jnp.where(used, jnp.maximum(right - left + 1, 0), 0), capacity)
    filled = jnp.arange(capacity) < n_pairs
    tile = tile_row[strip] * grid.columns + left[strip] + column
    tiles, rows = _sort(jnp.where(filled, tile, grid.count), rank[strip], n, grid.count)
    rows = jnp.where(filled, order[jnp.minimum(rows, n - 1)], n)
    starts = jnp.searchsorted(tiles, jnp.arange(grid.count + 1, dtype=tiles.dtype)).astype(jnp.int32)
    needed = jnp.maximum(n_strips, n_pairs).astype(jnp.int32)
    return TileLists(rows.astype(jnp.int32), starts, needed, needed > capacity, grid)


def count(proj: Projected, width: int, height: int, side: int) -> tuple[jax.Array, jax.Array]:
    """([N] bool rows touched, [] int32 slots that :func:`build` needs), without any static capacity."""
    shown = touched(proj, width, height)
    level, _, _ = footprint(proj)
    table = stack((*columns(proj.geometry)[:2], *proj.covariance, jnp.maximum(level, 0.0)))
    strips = _tile_rows(proj, shown, height, side)

    def add(place: jax.Array, total: jax.Array) -> jax.Array:
        left, right = _span(table, strips.first + place, width, height, side)
        return total + jnp.sum(jnp.where(place < strips.count, jnp.maximum(right - left + 1, 0), 0), dtype=jnp.int32)

    pairs = jax.lax.fori_loop(0, jnp.max(strips.count), add, jnp.int32(0))
    return shown, jnp.maximum(pairs, jnp.sum(strips.count, dtype=jnp.int32))


def _by_depth(depths: jax.Array, shown: jax.Array) -> jax.Array:
    """[N] row indices, nearest first, rows that are not shown last; positive float32 bits sort as integers."""
    bits = jax.lax.bitcast_convert_type(depths.astype(jnp.float32), jnp.uint32)
    return stable_order(jnp.where(shown, bits, jnp.uint32(2**31 - 1)), key_bits=31)


def stable_order(keys: jax.Array, key_bits: int) -> jax.Array:
    """[N] indices that sort ``keys`` [N] uint32 (< 2**key_bits), ties in index order.

    On a GPU XLA hands a key with a value to CUB's radix sort. On a CPU it sorts one integer operand six times faster
    than a key with its value: there, radix passes over as many key bits as fit beside the index in 32 bits.
    """
    n = keys.shape[0]
    if backend() == "gpu":
        return jax.lax.sort((keys, jnp.arange(n, dtype=jnp.int32)), num_keys=1)[1]
    index_bits = max((n - 1).bit_length(), 1)
    digit_bits = 32 - index_bits
    order = place = jnp.arange(n, dtype=jnp.uint32)
    for shift in range(0, key_bits, digit_bits):
        digit = (keys[order] >> shift) & jnp.uint32(2**digit_bits - 1)
        packed = jax.lax.sort((digit << index_bits) | place)
        order = order[packed & jnp.uint32(2**index_bits - 1)]
    return order.astype(jnp.int32)


def _sort(tile: jax.Array, rank: jax.Array, n: int, n_tiles: int) -> tuple[jax.Array, jax.Array]:
    """Sort pairs, which come in rank order, by (tile, rank); in one pass where both fit 32 bits."""
    if (n_tiles + 1) * n < 2**32:
        key = jax.lax.sort(tile.astype(jnp.uint32) * jnp.uint32(n) + rank.astype(jnp.uint32))
        return (key // jnp.uint32(n)).astype(jnp.int32), (key % jnp.uint32(n)).astype(jnp.int32)
    if backend() == "gpu":
        tiles, ranks = jax.lax.sort((tile, rank), num_keys=1)
        return tiles, ranks
    order = stable_order(tile.astype(jnp.uint32), key_bits=n_tiles.bit_length())
    return tile[order], rank[order]
