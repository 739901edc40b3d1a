"""What each row contributed to an image, summed over its pixels: the second pass of TamingGS's score (spec §3.3).

It walks the tile lists as ``splat.raster.blend`` does, with its responses and its rules. A step leaves the sums of a
chunk's rows in the slots of the list; the slots of one row are then put side by side and added up in a fixed order. A
scatter would add them in the order in which a GPU comes to them, and processes that draw rows by a score must agree on
every bit of it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat.raster import walk
from splat.raster.blend import MIN_TRANSMITTANCE, quadratic, responses
from splat.raster.settings import forward_shape
from splat.tiles import TileLists, stable_order


class Contributions(NamedTuple):
    """Sums [N] over the pixels in which a row was blended."""

    weight: jax.Array  # of the pixels' weights ω
    count: jax.Array  # pixels
    blend: jax.Array  # of αT
    distance: jax.Array  # from the pixel to the row's centre, pixels


def contributions(geometry: jax.Array, lists: TileLists, weights: jax.Array) -> Contributions:
    """Sums over the pixels of ``weights`` [H, W] of every contribution that blending accepts.

    ``geometry`` [N, 6] as for ``splat.raster.blend.blend``. Not differentiable.
    """
    grid, shape, n, dtype = lists.grid, forward_shape(), len(geometry), geometry.dtype
    table = jnp.pad(geometry, ((0, 1), (0, 0)))
    groups, size = walk.grouped(lists, grid, shape)
    pixels = walk.tiled(jnp.stack([weights, jnp.ones_like(weights)], -1).astype(dtype), grid)
    x, y = walk.pixel_offsets(grid.side, dtype)
    slots = len(lists.rows)

    def through(trans: jax.Array, raw: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        alpha = walk.capped(raw)
        after = trans * (1 - alpha)
        taken = (after >= MIN_TRANSMITTANCE) & (alpha > 0)
        return after, (taken.astype(dtype), jnp.where(taken, alpha * trans, 0))

    def one_group(index: jax.Array, sums: jax.Array) -> jax.Array:
        group = walk.group_of(lists, grid, groups[index], dtype)
        omega, inside = pixels[group.tiles, 0], pixels[group.tiles, 1]

        def step(carry):
            k, trans, sums = carry
            rows, used = walk.chunk_rows(lists, group, k, shape.chunk)
            own = table.at[rows].get(mode="promise_in_bounds")
            raw = responses(quadratic(own, group.centre, used), grid.side)
            trans, (taken, blended) = jax.lax.scan(through, trans, raw)
            aside = own[..., :2] - group.centre
            away = jnp.sqrt(jnp.square(x - aside[..., :1]) + jnp.square(y - aside[..., 1:]))
            taken = taken * inside
            parts = (taken * omega, taken, blended * inside, taken * away)
            of_rows = jnp.stack([jnp.sum(part, axis=-1) for part in parts], -1)
            slot = group.begin + k * shape.chunk + jnp.arange(shape.chunk, dtype=jnp.int32)[:, None]
            return k + 1, trans, sums.at[jnp.where(used, slot, slots)].set(of_rows, mode="drop")

        start = (jnp.int32(0), jnp.ones((size, grid.side**2), dtype), sums)
        return jax.lax.while_loop(lambda c: walk.more(group, c[0], shape.chunk, c[1]), step, start)[2]

    sums = jax.lax.fori_loop(0, groups.shape[0], one_group, jnp.zeros((slots, 4), dtype))
    return Contributions(*_by_row(lists.rows, sums, n).T)


def _by_row(rows: jax.Array, values: jax.Array, n: int) -> jax.Array:
    """[n, F] sums of ``values`` [S, F] by the row [S] they belong to; ``n`` itself is no row.

    Sorted by row, a slot holds the sum of the last 2^k slots of its row after k rounds; the longest run needs most.
    """
    order = stable_order(rows.astype(jnp.uint32), n.bit_length())
    owners, slots = rows[order], len(rows)

    def before(array: jax.Array, steps: jax.Array, fill: int) -> jax.Array:
        padded = jnp.pad(array, [(slots, 0), *[(0, 0)] * (array.ndim - 1)], constant_values=fill)
        return jax.lax.dynamic_slice_in_dim(padded, slots - steps, slots)

    def joins(steps: jax.Array) -> jax.Array:
        return (before(owners, steps, -1) == owners) & (owners < n)

    def join(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        steps, sums = carry
        return 2 * steps, sums + jnp.where(joins(steps)[:, None], before(sums, steps, 0), 0)

    start = (jnp.int32(1), values[order])
    _, sums = jax.lax.while_loop(lambda carry: (carry[0] < slots) & jnp.any(joins(carry[0])), join, start)
    last = jnp.searchsorted(owners, jnp.arange(n, dtype=owners.dtype), side="right") - 1
    found = (last >= 0) & (owners[jnp.maximum(last, 0)] == jnp.arange(n))
    return jnp.where(found[:, None], sums[jnp.maximum(last, 0)], 0)
