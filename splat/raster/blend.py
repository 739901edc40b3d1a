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

from splat.projection import LOG2_E, MIN_ALPHA
from splat.raster import pallas
from splat.raster.response import response, theta_of
from splat.raster.settings import backward_shape, forward_shape, in_kernels
from splat.raster.walk import (
    LANES,
    MIN_TRANSMITTANCE,
    UNUSED_LOG2,
    capped,
    chunk_rows,
    each,
    group_of,
    grouped,
    more,
    pixel_offsets,
    put,
    tiled,
    untiled,
)
from splat.tiles import TileLists

N_GEOMETRY = 6  # leading columns of a row: centre x, y, conic xx, xy, yy, log2 opacity


def quadratic(geometry: jax.Array, centre: jax.Array, used: jax.Array) -> jax.Array:
    """[..., 6] θ of rows [..., 6] around ``centre`` [..., 2]: log2 of the response is θ·(1, x, y, x², xy, y²).

    Rows that are not ``used`` [...] respond nowhere.
    """
    theta = theta_of([geometry[..., i] for i in range(N_GEOMETRY)], (centre[..., 0], centre[..., 1]))
    return jnp.stack([jnp.where(used, part, 0 if i else UNUSED_LOG2) for i, part in enumerate(theta)], -1)


def responses(theta: jax.Array, side: int) -> jax.Array:
    """[..., P] raw responses of θ [..., 6] at the P pixels of a tile."""
    x, y = pixel_offsets(side, theta.dtype)
    return response([theta[..., i, None] for i in range(6)], x, y)


def _table(geometry: jax.Array, features: jax.Array) -> jax.Array:
    """[N + 1, 6 + F]: all that a list slot needs of its row, and a row for slots that hold none."""
    return jnp.pad(jnp.concatenate([geometry, features], -1), ((0, 1), (0, 0)))


def _forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int) -> jax.Array:
    grid, shape, pixels = lists.grid, forward_shape(), lists.grid.side**2
    table, f, dtype = _table(geometry, features), features.shape[1], features.dtype
    groups, size = grouped(lists, grid, shape)

    def blend_row(carry, row):
        trans, colour = carry
        raw, value = row
        alpha = capped(raw)
        after = trans * (1 - alpha)
        weight = jnp.where(after >= MIN_TRANSMITTANCE, alpha * trans, 0)
        return (after, colour + weight[:, None] * value[:, :, None]), None

    def one_group(index, out):
        group = group_of(lists, grid, groups[index], dtype)

        def step(carry):
            k, trans, colour = carry
            index, used = chunk_rows(lists, group, k, shape.chunk)
            rows = table.at[index].get(mode="promise_in_bounds")
            raw = responses(quadratic(rows[..., :N_GEOMETRY], group.centre, used), grid.side)
            values = jnp.concatenate([rows[..., N_GEOMETRY:], jnp.ones_like(rows[..., :1])], -1)
            (trans, colour), _ = jax.lax.scan(blend_row, (trans, colour), (raw, values))
            return k + 1, trans, colour

        start = (jnp.int32(0), jnp.ones((size, pixels), dtype), jnp.zeros((size, f + 1, pixels), dtype))
        _, _, colour = jax.lax.while_loop(lambda c: more(group, c[0], shape.chunk, c[1]), step, start)
        return out.at[group.tiles].set(colour)

    out = jax.lax.fori_loop(0, groups.shape[0], one_group, jnp.zeros((grid.count + 1, f + 1, pixels), dtype))
    return untiled(out, grid, width, height)


def _basis(side: int, dtype: jnp.dtype) -> jax.Array:
    """[P, LANES]: 1, x, y, x², xy, y² of each pixel of a tile."""
    x, y = pixel_offsets(side, dtype)
    return jnp.pad(jnp.stack([jnp.ones_like(x), x, y, x * x, x * y, y * y], -1), ((0, 0), (0, LANES - N_GEOMETRY)))


class _Walk(NamedTuple):
    """What a group's walk from front to back carries, and the buffers that a step's rows leave their results in."""

    trans: jax.Array  # [G, P] transmittance in front of the row
    behind: jax.Array  # [G, P] what the row and those behind it add to the loss's derivative
    weights: jax.Array  # [G, chunk, P] w of each row of the step
    d_logs: jax.Array  # [G, chunk, P] derivative by the natural logarithm of each row's response


def _walk_row(walk: _Walk, at: jax.Array, raw: jax.Array, value: jax.Array, d_pixel: jax.Array) -> _Walk:
    """One row further: raw responses [G, P], features [G, F], derivatives of the pixels [G, F + 1, P]."""
    alpha = capped(raw)
    after = walk.trans * (1 - alpha)
    blended = after >= MIN_TRANSMITTANCE
    weight = jnp.where(blended, alpha * walk.trans, 0)
    gain = d_pixel[:, -1]
    for i in range(value.shape[1]):
        gain = gain + value[:, i, None] * d_pixel[:, i]
    behind = walk.behind - weight * gain
    d_log = jnp.where(blended & (raw >= MIN_ALPHA), raw * (walk.trans * gain - behind / (1 - alpha)), 0)
    return _Walk(after, behind, put(walk.weights, weight, at), put(walk.d_logs, d_log, at))


def _backward(geometry: jax.Array, features: jax.Array, lists: TileLists, image: jax.Array,
              d_image: jax.Array) -> jax.Array:
    """[N, 6 + F] gradient of the table's rows; ``image`` and its gradient are [H, W, F + 1], alpha last."""
    grid, shape, pixels = lists.grid, backward_shape(), lists.grid.side**2
    table, (n, n_features), dtype = _table(geometry, features), features.shape, features.dtype
    groups, size = grouped(lists, grid, shape)
    d_tiles = tiled(d_image, grid)
    totals = tiled(jnp.sum(image * d_image, -1, keepdims=True), grid)[:, 0]
    basis = _basis(grid.side, dtype)
    unused = jnp.zeros((shape.chunk, size, -table.shape[1] % LANES), dtype)

    def one_group(index, carry):
        group = group_of(lists, grid, groups[index], dtype)
        d_pixel = d_tiles[group.tiles]
        d_wide = jnp.pad(d_pixel[:, :-1].swapaxes(1, 2), ((0, 0), (0, 0), (0, -n_features % LANES)))

        def step(carry):
            k, walk, grads = carry
            index, used = chunk_rows(lists, group, k, shape.chunk)
            rows = table.at[index].get(mode="promise_in_bounds")
            theta, to_rows = jax.vjp(lambda g: quadratic(g, group.centre, used), rows[..., :N_GEOMETRY])
            walk, _ = jax.lax.scan(
                lambda walk, row: (_walk_row(walk, *row, d_pixel), None), walk,
                (jnp.arange(shape.chunk, dtype=jnp.int32), responses(theta, grid.side), rows[..., N_GEOMETRY:]))
            d_theta = jnp.einsum("gcp,pk->gck", walk.d_logs, basis).swapaxes(0, 1)[..., :N_GEOMETRY] * (1 / LOG2_E)
            d_feature = jnp.einsum("gcp,gpf->gcf", walk.weights, d_wide).swapaxes(0, 1)[..., :n_features]
            d_rows = jnp.concatenate([to_rows(d_theta)[0], d_feature, unused], -1)
            return k + 1, walk, grads.at[jnp.where(used, index, n)].add(d_rows, mode="promise_in_bounds")

        buffers, grads = carry
        walk = _Walk(jnp.ones((size, pixels), dtype), totals[group.tiles], *buffers)
        _, walk, grads = jax.lax.while_loop(lambda c: more(group, c[0], shape.chunk, c[1].trans), step,
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
    forward = pallas.forward if in_kernels() else _forward
    return each(forward, width=width, height=height)(geometry, features, lists)


def _blend_fwd(geometry, features, lists, width, height):
    image = blend(geometry, features, lists, width, height)
    return image, (geometry, features, lists, image)


def _blend_bwd(width, height, saved, d_image):
    grads = each(pallas.backward if in_kernels() else _backward)(*saved, d_image)
    return grads[:, :N_GEOMETRY], grads[:, N_GEOMETRY:], None


blend.defvjp(_blend_fwd, _blend_bwd)
