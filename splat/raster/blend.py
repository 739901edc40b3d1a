"""Front-to-back blending of tile lists with a hand-written gradient (spec §1.3, §1.4).

Both passes walk each tile's list from the front, ``chunk`` rows at a time, ``group`` tiles together. A response is
2**(θ·(1, x, y, x², xy, y²)) in coordinates of the tile's centre, opacity folded into θ₀, so that a pixel costs five
multiply-adds and one exponential. The backward pass needs no stored transmittance and no walk from the back:
what lies behind a row is the pixel's total minus the running sum in front of it.

Per pixel, with raw response r, α = min(r, 0.99) where r ≥ 1/255 else 0, and T the transmittance in front: a row
contributes w = αT iff T(1−α) ≥ 1e-4. Once that fails it fails for all rows behind, because T only falls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from splat.projection import LOG2_E, MIN_ALPHA
from splat.raster.exp2 import exp2
from splat.raster.settings import LoopShape, backward_shape, forward_shape
from splat.tiles import Grid, TileLists

MAX_ALPHA = 0.99  # cap of one response; its gradient passes straight through (spec §1.4)
MIN_TRANSMITTANCE = 1e-4  # a row that would leave less than this ends the pixel and is not blended (spec §1.3)
N_GEOMETRY = 6  # leading columns of a row: centre x, y, conic xx, xy, yy, log2 opacity
LANES = 8  # XLA:CPU's product of a thin matrix is twice as fast when its width is padded to this
UNUSED_LOG2 = -1e4  # log2 of the response of a row that is not of the tile's list


class _Group(NamedTuple):
    """The tiles that step together."""

    tiles: jax.Array  # [G] tile index, grid.count for padding
    begin: jax.Array  # [G] first list slot
    end: jax.Array  # [G] one past the last list slot
    centre: jax.Array  # [G, 2] pixel coordinates of the tile centre


def _pixel_offsets(side: int, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """x and y [P] of pixel centres relative to the centre of a tile of ``side`` pixels."""
    line = np.arange(side) + 0.5 - side / 2
    y, x = np.meshgrid(line, line, indexing="ij")
    return jnp.asarray(x.ravel(), dtype), jnp.asarray(y.ravel(), dtype)


def _quadratic(geometry: jax.Array, centre: jax.Array, used: jax.Array) -> jax.Array:
    """[..., 6] θ of rows [..., 6] around ``centre`` [..., 2]: log2 of the response is θ·(1, x, y, x², xy, y²).

    Rows that are not ``used`` [...] respond nowhere.
    """
    mx, my = geometry[..., 0] - centre[..., 0], geometry[..., 1] - centre[..., 1]
    a, b, c = (geometry[..., i] * LOG2_E for i in (2, 3, 4))
    tx, ty = a * mx + b * my, b * mx + c * my
    theta = (geometry[..., 5] - 0.5 * (tx * mx + ty * my), tx, ty, -0.5 * a, -b, -0.5 * c)
    return jnp.stack([jnp.where(used, part, 0 if i else UNUSED_LOG2) for i, part in enumerate(theta)], -1)


def _responses(theta: jax.Array, side: int) -> jax.Array:
    """[..., P] raw responses of θ [..., 6] at the P pixels of a tile."""
    x, y = _pixel_offsets(side, theta.dtype)
    t = [theta[..., i, None] for i in range(6)]
    return exp2(t[0] + x * (t[1] + t[3] * x + t[4] * y) + y * (t[2] + t[5] * y))


def _capped(raw: jax.Array) -> jax.Array:
    return jnp.where(raw >= MIN_ALPHA, jnp.minimum(raw, MAX_ALPHA), 0)


def _grouped(lists: TileLists, grid: Grid, shape: LoopShape) -> tuple[jax.Array, int]:
    """[groups, G] tile indices, tiles with lists of like length together so that few steps are idle."""
    group = min(max(shape.pixels // grid.side**2, 1), grid.count) if shape.pixels else grid.count
    order = jnp.argsort(lists.starts[:-1] - lists.starts[1:]).astype(jnp.int32)
    padding = -grid.count % group
    order = jnp.concatenate([order, jnp.full(padding, grid.count, jnp.int32)])
    return order.reshape(-1, group), group


def _group(lists: TileLists, grid: Grid, tiles: jax.Array, dtype: jnp.dtype) -> _Group:
    starts = jnp.concatenate([lists.starts, lists.starts[-1:]])
    corner = jnp.stack([tiles % grid.columns, tiles // grid.columns], -1)
    return _Group(tiles, starts[tiles], starts[jnp.minimum(tiles + 1, grid.count)],
                  (corner * grid.side + grid.side / 2).astype(dtype))


def _chunk_rows(lists: TileLists, group: _Group, step: jax.Array, chunk: int) -> tuple[jax.Array, jax.Array]:
    """Row indices [chunk, G] of the step-th chunk of each tile, and which of them belong to its list.

    What lies beyond a list's end are rows of another tile: on XLA:CPU, arithmetic on an index is repeated for every
    number that is gathered with it.
    """
    slots = group.begin + step * chunk + jnp.arange(chunk, dtype=jnp.int32)[:, None]
    return lists.rows.at[slots].get(mode="clip"), slots < group.end


def _more(group: _Group, step: jax.Array, chunk: int, transmittance: jax.Array) -> jax.Array:
    """Whether a tile of the group has rows left and a pixel of the group still lets light through."""
    return jnp.any(group.begin + step * chunk < group.end) & (jnp.max(transmittance) >= MIN_TRANSMITTANCE)


def _tiled(image: jax.Array, grid: Grid) -> jax.Array:
    """[tiles + 1, F, P] of an image [H, W, F]; zero outside the image and in the padding tile."""
    (h, w, f), side = image.shape, grid.side
    image = jnp.pad(image, ((0, grid.rows * side - h), (0, grid.columns * side - w), (0, 0)))
    image = image.reshape(grid.rows, side, grid.columns, side, f).transpose(0, 2, 4, 1, 3)
    return jnp.pad(image.reshape(grid.count, f, side**2), ((0, 1), (0, 0), (0, 0)))


def _untiled(tiles: jax.Array, grid: Grid, width: int, height: int) -> jax.Array:
    """[H, W, F] of [tiles + 1, F, P]."""
    f, side = tiles.shape[1], grid.side
    image = tiles[:-1].reshape(grid.rows, grid.columns, f, side, side).transpose(0, 3, 1, 4, 2)
    return image.reshape(grid.rows * side, grid.columns * side, f)[:height, :width]


def _table(geometry: jax.Array, features: jax.Array) -> jax.Array:
    """[N + 1, 6 + F]: all that a list slot needs of its row, and a row for slots that hold none."""
    return jnp.pad(jnp.concatenate([geometry, features], -1), ((0, 1), (0, 0)))


def _forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    grid, shape, pixels = lists.grid, forward_shape(), lists.grid.side**2
    table, f, dtype = _table(geometry, features), features.shape[1], features.dtype
    groups, size = _grouped(lists, grid, shape)

    def blend_row(carry, row):
        trans, colour = carry
        raw, value = row
        alpha = _capped(raw)
        after = trans * (1 - alpha)
        weight = jnp.where(after >= MIN_TRANSMITTANCE, alpha * trans, 0)
        return (after, colour + weight[:, None] * value[:, :, None]), None

    def one_group(index, out):
        group = _group(lists, grid, groups[index], dtype)

        def step(carry):
            k, trans, colour = carry
            index, used = _chunk_rows(lists, group, k, shape.chunk)
            rows = table.at[index].get(mode="promise_in_bounds")
            raw = _responses(_quadratic(rows[..., :N_GEOMETRY], group.centre, used), grid.side)
            values = jnp.concatenate([rows[..., N_GEOMETRY:], jnp.ones_like(rows[..., :1])], -1)
            (trans, colour), _ = jax.lax.scan(blend_row, (trans, colour), (raw, values))
            return k + 1, trans, colour

        start = (jnp.int32(0), jnp.ones((size, pixels), dtype), jnp.zeros((size, f + 1, pixels), dtype))
        _, _, colour = jax.lax.while_loop(lambda c: _more(group, c[0], shape.chunk, c[1]), step, start)
        return out.at[group.tiles].set(colour)

    out = jax.lax.fori_loop(0, groups.shape[0], one_group, jnp.zeros((grid.count + 1, f + 1, pixels), dtype))
    return _untiled(out, grid, width, height)


def _basis(side: int, dtype: jnp.dtype) -> jax.Array:
    """[P, LANES]: 1, x, y, x², xy, y² of each pixel of a tile."""
    x, y = _pixel_offsets(side, dtype)
    return jnp.pad(jnp.stack([jnp.ones_like(x), x, y, x * x, x * y, y * y], -1), ((0, 0), (0, LANES - N_GEOMETRY)))


class _Walk(NamedTuple):
    """What a group's walk from front to back carries, and the buffers that a step's rows leave their results in."""

    trans: jax.Array  # [G, P] transmittance in front of the row
    behind: jax.Array  # [G, P] what the row and those behind it add to the loss's derivative
    weights: jax.Array  # [G, chunk, P] w of each row of the step
    d_logs: jax.Array  # [G, chunk, P] derivative by the natural logarithm of each row's response


def _walk_row(walk: _Walk, at: jax.Array, raw: jax.Array, value: jax.Array, d_pixel: jax.Array) -> _Walk:
    """One row further: raw responses [G, P], features [G, F], derivatives of the pixels [G, F + 1, P]."""
    alpha = _capped(raw)
    after = walk.trans * (1 - alpha)
    blended = after >= MIN_TRANSMITTANCE
    weight = jnp.where(blended, alpha * walk.trans, 0)
    gain = d_pixel[:, -1]
    for i in range(value.shape[1]):
        gain = gain + value[:, i, None] * d_pixel[:, i]
    behind = walk.behind - weight * gain
    d_log = jnp.where(blended & (raw >= MIN_ALPHA), raw * (walk.trans * gain - behind / (1 - alpha)), 0)
    return _Walk(after, behind, _put(walk.weights, weight, at), _put(walk.d_logs, d_log, at))


def _put(stack: jax.Array, part: jax.Array, at: jax.Array) -> jax.Array:
    """``stack`` [G, chunk, P] with ``part`` [G, P] at place ``at`` of its middle axis."""
    zero = jnp.zeros_like(at)
    return jax.lax.dynamic_update_slice(stack, part[:, None], (zero, at, zero), allow_negative_indices=False)


def _backward(geometry: jax.Array, features: jax.Array, lists: TileLists, image: jax.Array,
              d_image: jax.Array) -> jax.Array:
    """[N, 6 + F] gradient of the table's rows; ``image`` and its gradient are [H, W, F + 1], alpha last."""
    grid, shape, pixels = lists.grid, backward_shape(), lists.grid.side**2
    table, (n, n_features), dtype = _table(geometry, features), features.shape, features.dtype
    groups, size = _grouped(lists, grid, shape)
    d_tiles = _tiled(d_image, grid)
    totals = _tiled(jnp.sum(image * d_image, -1, keepdims=True), grid)[:, 0]
    basis = _basis(grid.side, dtype)
    unused = jnp.zeros((shape.chunk, size, -table.shape[1] % LANES), dtype)

    def one_group(index, carry):
        group = _group(lists, grid, groups[index], dtype)
        d_pixel = d_tiles[group.tiles]
        d_wide = jnp.pad(d_pixel[:, :-1].swapaxes(1, 2), ((0, 0), (0, 0), (0, -n_features % LANES)))

        def step(carry):
            k, walk, grads = carry
            index, used = _chunk_rows(lists, group, k, shape.chunk)
            rows = table.at[index].get(mode="promise_in_bounds")
            theta, to_rows = jax.vjp(lambda g: _quadratic(g, group.centre, used), rows[..., :N_GEOMETRY])
            walk, _ = jax.lax.scan(
                lambda walk, row: (_walk_row(walk, *row, d_pixel), None), walk,
                (jnp.arange(shape.chunk, dtype=jnp.int32), _responses(theta, grid.side), rows[..., N_GEOMETRY:]))
            d_theta = jnp.einsum("gcp,pk->gck", walk.d_logs, basis).swapaxes(0, 1)[..., :N_GEOMETRY] * (1 / LOG2_E)
            d_feature = jnp.einsum("gcp,gpf->gcf", walk.weights, d_wide).swapaxes(0, 1)[..., :n_features]
            d_rows = jnp.concatenate([to_rows(d_theta)[0], d_feature, unused], -1)
            return k + 1, walk, grads.at[jnp.where(used, index, n)].add(d_rows, mode="promise_in_bounds")

        buffers, grads = carry
        walk = _Walk(jnp.ones((size, pixels), dtype), totals[group.tiles], *buffers)
        _, walk, grads = jax.lax.while_loop(lambda c: _more(group, c[0], shape.chunk, c[1].trans), step,
                                            (jnp.int32(0), walk, grads))
        return (walk.weights, walk.d_logs), grads

    # Buffers pass from group to group, as zeroing them for every step costs as much as a scatter.
    buffers = tuple(jnp.full((size, shape.chunk, pixels), i, dtype) for i in range(2))
    grads = jnp.zeros((n + 1, table.shape[1] + unused.shape[2]), dtype)
    _, grads = jax.lax.fori_loop(0, groups.shape[0], one_group, (buffers, grads))
    return grads[:-1, :table.shape[1]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def blend(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    """[H, W, F + 1]: Σ w·feature per feature, then Σ w (alpha), without background.

    ``geometry`` [N, 6]: centre x, y (pixels), conic xx, xy, yy (1/pixels²), log2 opacity. ``features`` [N, F].
    Differentiable in both; list membership and the 1/255 and 1e-4 tests count as constants (spec §1.4).
    """
    return _each(_forward, width=width, height=height)(geometry, features, lists)


def _each(function: Callable[..., jax.Array], **sizes: int) -> Callable[..., jax.Array]:
    """``function``, which under ``vmap`` runs for one image after another: batched loops step until all have ended."""
    return sequential_vmap(functools.partial(function, **sizes))


def _blend_fwd(geometry, features, lists, width, height):
    image = _each(_forward, width=width, height=height)(geometry, features, lists)
    return image, (geometry, features, lists, image)


def _blend_bwd(width, height, saved, d_image):
    grads = _each(_backward)(*saved, d_image)
    return grads[:, :N_GEOMETRY], grads[:, N_GEOMETRY:], None


blend.defvjp(_blend_fwd, _blend_bwd)
