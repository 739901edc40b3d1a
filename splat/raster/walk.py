"""How blending walks the tile lists: groups of tiles, chunks of their rows, and images cut into tiles.

A blending pass goes through each tile's list from the front, some rows at a time, several tiles together, until no
pixel of the group lets light through any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from splat.projection import MIN_ALPHA
from splat.raster.settings import LoopShape
from splat.tiles import Grid, TileLists

MAX_ALPHA = 0.99  # cap of one response; its gradient passes straight through (spec §1.4)
MIN_TRANSMITTANCE = 1e-4  # a row that would leave less than this ends the pixel and is not blended (spec §1.3)
LANES = 8  # XLA:CPU's product of a thin matrix is twice as fast when its width is padded to this
UNUSED_LOG2 = -1e4  # log2 of the response of a row that is not of the tile's list


class Group(NamedTuple):
    """The tiles that step together."""

    tiles: jax.Array  # [G] tile index, grid.count for padding
    begin: jax.Array  # [G] first list slot
    end: jax.Array  # [G] one past the last list slot
    centre: jax.Array  # [G, 2] pixel coordinates of the tile centre


def pixel_offsets(side: int, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """x and y [P] of pixel centres relative to the centre of a tile of ``side`` pixels."""
    line = np.arange(side) + 0.5 - side / 2
    y, x = np.meshgrid(line, line, indexing="ij")
    return jnp.asarray(x.ravel(), dtype), jnp.asarray(y.ravel(), dtype)


def capped(raw: jax.Array) -> jax.Array:
    """α of raw responses: none below 1/255, at most 0.99 (spec §1.3)."""
    return jnp.where(raw >= MIN_ALPHA, jnp.minimum(raw, MAX_ALPHA), 0)


def grouped(lists: TileLists, grid: Grid, shape: LoopShape) -> tuple[jax.Array, int]:
    """[groups, G] tile indices, tiles with lists of like length together so that few steps are idle."""
    group = min(max(shape.pixels // grid.side**2, 1), grid.count) if shape.pixels else grid.count
    order = jnp.argsort(lists.starts[:-1] - lists.starts[1:]).astype(jnp.int32)
    padding = -grid.count % group
    order = jnp.concatenate([order, jnp.full(padding, grid.count, jnp.int32)])
    return order.reshape(-1, group), group


def group_of(lists: TileLists, grid: Grid, tiles: jax.Array, dtype: jnp.dtype) -> Group:
    """The group of the given tiles [G] of the grid."""
    starts = jnp.concatenate([lists.starts, lists.starts[-1:]])
    corner = jnp.stack([tiles % grid.columns, tiles // grid.columns], -1)
    return Group(tiles, starts[tiles], starts[jnp.minimum(tiles + 1, grid.count)],
                  (corner * grid.side + grid.side / 2).astype(dtype))


def chunk_rows(lists: TileLists, group: Group, step: jax.Array, chunk: int) -> tuple[jax.Array, jax.Array]:
    """Row indices [chunk, G] of the step-th chunk of each tile, and which of them belong to its list.

    What lies beyond a list's end are rows of another tile: on XLA:CPU, arithmetic on an index is repeated for every
    number that is gathered with it.
    """
    slots = group.begin + step * chunk + jnp.arange(chunk, dtype=jnp.int32)[:, None]
    return lists.rows.at[slots].get(mode="clip"), slots < group.end


def more(group: Group, step: jax.Array, chunk: int, transmittance: jax.Array) -> jax.Array:
    """Whether a tile of the group has rows left and a pixel of the group still lets light through."""
    return jnp.any(group.begin + step * chunk < group.end) & (jnp.max(transmittance) >= MIN_TRANSMITTANCE)


def tiled(image: jax.Array, grid: Grid) -> jax.Array:
    """[tiles + 1, F, P] of an image [H, W, F]; zero outside the image and in the padding tile."""
    (h, w, f), side = image.shape, grid.side
    image = jnp.pad(image, ((0, grid.rows * side - h), (0, grid.columns * side - w), (0, 0)))
    image = image.reshape(grid.rows, side, grid.columns, side, f).transpose(0, 2, 4, 1, 3)
    return jnp.pad(image.reshape(grid.count, f, side**2), ((0, 1), (0, 0), (0, 0)))


def untiled(tiles: jax.Array, grid: Grid, width: int, height: int) -> jax.Array:
    """[H, W, F] of [tiles + 1, F, P]."""
    f, side = tiles.shape[1], grid.side
    image = tiles[:-1].reshape(grid.rows, grid.columns, f, side, side).transpose(0, 3, 1, 4, 2)
    return image.reshape(grid.rows * side, grid.columns * side, f)[:height, :width]


def each(function: Callable[..., Any], **sizes: float) -> Callable[..., Any]:
    """``function``, which under ``vmap`` runs for one image after another: batched loops step until all have ended."""
    return sequential_vmap(functools.partial(function, **sizes))


def put(stack: jax.Array, part: jax.Array, at: jax.Array) -> jax.Array:
    """``stack`` [G, chunk, P] with ``part`` [G, P] at place ``at`` of its middle axis."""
    zero = jnp.zeros_like(at)
    return jax.lax.dynamic_update_slice(stack, part[:, None], (zero, at, zero), allow_negative_indices=False)
