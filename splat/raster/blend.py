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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from splat.projection import LOG2_E, MIN_ALPHA
from splat.raster.exp2 import exp2
from splat.raster.settings import LoopShape, backward_shape, forward_shape
from splat.tiles import TILE, Grid, TileLists, grid_of

MAX_ALPHA = 0.99  # cap of one response; its gradient passes straight through (spec §1.4)
MIN_TRANSMITTANCE = 1e-4  # a row that would leave less than this ends the pixel and is not blended (spec §1.3)
PIXELS = TILE * TILE
N_GEOMETRY = 6  # leading columns of a row: centre x, y, conic xx, xy, yy, log2 opacity
LANES = 8  # XLA:CPU's product of a thin matrix is twice as fast when its width is padded to this
UNUSED_LOG2 = -1e4  # log2 opacity of the row that unused list slots point at


class _Group(NamedTuple):
    """The tiles that step together."""

    tiles: jax.Array  # [G] tile index, grid.count for padding
    begin: jax.Array  # [G] first list slot
    end: jax.Array  # [G] one past the last list slot
    centre: jax.Array  # [G, 2] pixel coordinates of the tile centre


def _pixel_offsets(dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """x and y [PIXELS] of pixel centres relative to the tile centre."""
    side = np.arange(TILE) + 0.5 - TILE / 2
    y, x = np.meshgrid(side, side, indexing="ij")
    return jnp.asarray(x.ravel(), dtype), jnp.asarray(y.ravel(), dtype)


def _quadratic(geometry: jax.Array, centre: jax.Array) -> jax.Array:
    """[..., 6] θ of rows [..., 6] around ``centre`` [..., 2]: log2 of the response is θ·(1, x, y, x², xy, y²)."""
    mx, my = geometry[..., 0] - centre[..., 0], geometry[..., 1] - centre[..., 1]
    a, b, c = (geometry[..., i] * LOG2_E for i in (2, 3, 4))
    tx, ty = a * mx + b * my, b * mx + c * my
    return jnp.stack([geometry[..., 5] - 0.5 * (tx * mx + ty * my), tx, ty, -0.5 * a, -b, -0.5 * c], -1)


def _responses(theta: jax.Array) -> jax.Array:
    """[..., PIXELS] raw responses of θ [..., 6]."""
    x, y = _pixel_offsets(theta.dtype)
    t = [theta[..., i, None] for i in range(6)]
    return exp2(t[0] + x * (t[1] + t[3] * x + t[4] * y) + y * (t[2] + t[5] * y))


def _capped(raw: jax.Array) -> jax.Array:
    return jnp.where(raw >= MIN_ALPHA, jnp.minimum(raw, MAX_ALPHA), 0)


def _grouped(lists: TileLists, grid: Grid, shape: LoopShape) -> tuple[jax.Array, int]:
    """[groups, G] tile indices, tiles with lists of like length together so that few steps are idle."""
    group = min(shape.group or grid.count, grid.count)
    order = jnp.argsort(lists.starts[:-1] - lists.starts[1:]).astype(jnp.int32)
    padding = -grid.count % group
    order = jnp.concatenate([order, jnp.full(padding, grid.count, jnp.int32)])
    return order.reshape(-1, group), group


def _group(lists: TileLists, grid: Grid, tiles: jax.Array, dtype: jnp.dtype) -> _Group:
    starts = jnp.concatenate([lists.starts, lists.starts[-1:]])
    corner = jnp.stack([tiles % grid.columns, tiles // grid.columns], -1)
    return _Group(tiles, starts[tiles], starts[jnp.minimum(tiles + 1, grid.count)],
                  (corner * TILE + TILE / 2).astype(dtype))


def _chunk_rows(lists: TileLists, group: _Group, step: jax.Array, chunk: int, unused: int) -> jax.Array:
    """[chunk, G] row indices of the step-th chunk of each tile; ``unused`` beyond a list's end."""
    slots = group.begin + step * chunk + jnp.arange(chunk, dtype=jnp.int32)[:, None]
    last = lists.rows.shape[0] - 1
    return jnp.where(slots < group.end, lists.rows[jnp.minimum(slots, last)], unused)


def _more(group: _Group, step: jax.Array, chunk: int, transmittance: jax.Array) -> jax.Array:
    """Whether a tile of the group has rows left and a pixel of the group still lets light through."""
    return jnp.any(group.begin + step * chunk < group.end) & (jnp.max(transmittance) >= MIN_TRANSMITTANCE)


def _tiled(image: jax.Array, grid: Grid) -> jax.Array:
    """[tiles + 1, F, PIXELS] of an image [H, W, F]; zero outside the image and in the padding tile."""
    h, w, f = image.shape
    image = jnp.pad(image, ((0, grid.rows * TILE - h), (0, grid.columns * TILE - w), (0, 0)))
    image = image.reshape(grid.rows, TILE, grid.columns, TILE, f).transpose(0, 2, 4, 1, 3)
    return jnp.pad(image.reshape(grid.count, f, PIXELS), ((0, 1), (0, 0), (0, 0)))


def _untiled(tiles: jax.Array, grid: Grid, width: int, height: int) -> jax.Array:
    """[H, W, F] of [tiles + 1, F, PIXELS]."""
    f = tiles.shape[1]
    image = tiles[:-1].reshape(grid.rows, grid.columns, f, TILE, TILE).transpose(0, 3, 1, 4, 2)
    return image.reshape(grid.rows * TILE, grid.columns * TILE, f)[:height, :width]


def _table(geometry: jax.Array, features: jax.Array) -> jax.Array:
    """[N + 1, 6 + F]: all that a list slot needs of its row, and the row of unused slots."""
    unused = jnp.zeros((1, N_GEOMETRY + features.shape[1]), features.dtype).at[0, N_GEOMETRY - 1].set(UNUSED_LOG2)
    return jnp.concatenate([jnp.concatenate([geometry, features], -1), unused])


def _forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    grid, shape = grid_of(width, height), forward_shape()
    table, n, f, dtype = _table(geometry, features), features.shape[0], features.shape[1], features.dtype
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
            rows = table[_chunk_rows(lists, group, k, shape.chunk, n)]
            raw = _responses(_quadratic(rows[..., :N_GEOMETRY], group.centre))
            values = jnp.concatenate([rows[..., N_GEOMETRY:], jnp.ones_like(rows[..., :1])], -1)
            (trans, colour), _ = jax.lax.scan(blend_row, (trans, colour), (raw, values))
            return k + 1, trans, colour

        start = (jnp.int32(0), jnp.ones((size, PIXELS), dtype), jnp.zeros((size, f + 1, PIXELS), dtype))
        _, _, colour = jax.lax.while_loop(lambda c: _more(group, c[0], shape.chunk, c[1]), step, start)
        return out.at[group.tiles].set(colour)

    out = jax.lax.fori_loop(0, groups.shape[0], one_group, jnp.zeros((grid.count + 1, f + 1, PIXELS), dtype))
    return _untiled(out, grid, width, height)


def _basis(dtype: jnp.dtype) -> jax.Array:
    """[PIXELS, LANES]: 1, x, y, x², xy, y² of each pixel."""
    x, y = _pixel_offsets(dtype)
    return jnp.pad(jnp.stack([jnp.ones_like(x), x, y, x * x, x * y, y * y], -1), ((0, 0), (0, LANES - N_GEOMETRY)))


def _backward(geometry: jax.Array, features: jax.Array, lists: TileLists, image: jax.Array, d_image: jax.Array,
              width: int, height: int) -> jax.Array:
    """[N, 6 + F] gradient of the table's rows; ``image`` and its gradient are [H, W, F + 1], alpha last."""
    grid, shape = grid_of(width, height), backward_shape()
    table, (n, n_features), dtype = _table(geometry, features), features.shape, features.dtype
    groups, size = _grouped(lists, grid, shape)
    d_tiles = _tiled(d_image, grid)
    totals = _tiled(jnp.sum(image * d_image, -1, keepdims=True), grid)[:, 0]
    basis = _basis(dtype)

    def one_group(index, grads):
        group = _group(lists, grid, groups[index], dtype)
        d_pixel = d_tiles[group.tiles]
        d_wide = jnp.pad(d_pixel[:, :-1], ((0, 0), (0, -n_features % LANES), (0, 0)))

        def row_gradient(carry, row):
            trans, behind = carry
            raw, value = row
            alpha = _capped(raw)
            after = trans * (1 - alpha)
            blended = after >= MIN_TRANSMITTANCE
            weight = jnp.where(blended, alpha * trans, 0)
            gain = d_pixel[:, -1]
            for i in range(n_features):
                gain = gain + value[:, i, None] * d_pixel[:, i]
            behind = behind - weight * gain
            d_log = jnp.where(blended & (raw >= MIN_ALPHA), raw * (trans * gain - behind / (1 - alpha)), 0)
            return (after, behind), (weight, d_log)

        def step(carry):
            k, trans, behind, grads = carry
            index = _chunk_rows(lists, group, k, shape.chunk, n)
            rows = table[index]
            theta, to_rows = jax.vjp(lambda g: _quadratic(g, group.centre), rows[..., :N_GEOMETRY])
            (trans, behind), (weight, d_log) = jax.lax.scan(
                row_gradient, (trans, behind), (_responses(theta), rows[..., N_GEOMETRY:]))
            d_theta = jnp.einsum("cgp,pk->cgk", d_log, basis)[..., :N_GEOMETRY] * (1 / LOG2_E)
            d_feature = jnp.einsum("cgp,gfp->cgf", weight, d_wide)[..., :n_features]
            d_rows = jnp.concatenate([to_rows(d_theta)[0], d_feature], -1)
            return k + 1, trans, behind, grads.at[index].add(d_rows)

        start = (jnp.int32(0), jnp.ones((size, PIXELS), dtype), totals[group.tiles], grads)
        return jax.lax.while_loop(lambda c: _more(group, c[0], shape.chunk, c[1]), step, start)[3]

    grads = jax.lax.fori_loop(0, groups.shape[0], one_group, jnp.zeros_like(table))
    return grads[:-1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def blend(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    """[H, W, F + 1]: Σ w·feature per feature, then Σ w (alpha), without background.

    ``geometry`` [N, 6]: centre x, y (pixels), conic xx, xy, yy (1/pixels²), log2 opacity. ``features`` [N, F].
    Differentiable in both; list membership and the 1/255 and 1e-4 tests count as constants (spec §1.4).
    """
    return _forward(geometry, features, lists, width, height)


def _blend_fwd(geometry, features, lists, width, height):
    image = _forward(geometry, features, lists, width, height)
    return image, (geometry, features, lists, image)


def _blend_bwd(width, height, saved, d_image):
    geometry, features, lists, image = saved
    grads = _backward(geometry, features, lists, image, d_image, width, height)
    return grads[:, :N_GEOMETRY], grads[:, N_GEOMETRY:], None


blend.defvjp(_blend_fwd, _blend_bwd)
