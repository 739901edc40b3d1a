"""Front-to-back blending of surfels over tile lists, with a hand-written gradient (spec §2.2, §2.3, §2.5).

A row is three planes over the image (``splat.surfel.hits``). Weights follow ``splat.raster.blend``, with its walk over
the lists, and its backward pass that needs no walk from the back.

All maps but the median are sums of weight times a number of row and pixel. The distortion is
Σ_{j<i} w_i w_j (m_i − m_j)² = A·Σw m² − (Σw m)² with A = Σw, where m may be replaced by the I that it is linear in.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat.projection import MIN_ALPHA
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
from splat.surfel import pallas
from splat.surfel.geometry import LOW_PASS, N_FEATURES, N_GEOMETRY
from splat.surfel.hits import MEDIAN, N_MAPS, N_PLANES, Hits, hits_of, planes_of
from splat.tiles import TileLists


def _planes(geometry: jax.Array, centre: jax.Array, used: jax.Array) -> jax.Array:
    """[..., 12] planes of rows [..., 12] around ``centre`` [..., 2]; rows that are not ``used`` respond nowhere."""
    parts = [geometry[..., i] for i in range(N_GEOMETRY)]
    parts[10] = jnp.where(used, parts[10], 1)  # z, which is divided by
    *planes, log2_opacity = planes_of(parts, (centre[..., 0], centre[..., 1]))
    return jnp.stack([*(jnp.where(used, part, 0) for part in planes), jnp.where(used, log2_opacity, UNUSED_LOG2)], -1)


def _hits(planes: jax.Array, side: int, near: float) -> Hits:
    """The hits of the P pixels of a tile on the planes [..., 12]."""
    x, y = pixel_offsets(side, planes.dtype)
    return hits_of([planes[..., i, None] for i in range(N_PLANES)], x, y, near)


def _table(geometry: jax.Array, features: jax.Array) -> jax.Array:
    """[N + 1, 18]: all that a list slot needs of its row, and a row for slots that hold none."""
    return jnp.pad(jnp.concatenate([geometry, features], -1), ((0, 1), (0, 0)))


class _Sums(NamedTuple):
    """What the forward walk of a group carries."""

    trans: jax.Array  # [G, P] transmittance in front of the row
    features: jax.Array  # [G, 6, P] Σ w·feature
    depth: jax.Array  # [G, P] Σ w·depth
    first: jax.Array  # [G, P] Σ w·I
    second: jax.Array  # [G, P] Σ w·I²
    alpha: jax.Array  # [G, P] Σ w
    median: jax.Array  # [G, P] median depth
    slot: jax.Array  # [G, P] list slot of the hit whose depth that is, −1 for none


def _forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int,
             near: float) -> tuple[jax.Array, jax.Array]:
    """[H, W, 11] maps and [tiles + 1, P] list slot of the hit whose depth is the median, −1 for none."""
    grid, shape, pixels = lists.grid, forward_shape(), lists.grid.side**2
    table, dtype = _table(geometry, features), features.dtype
    groups, size = grouped(lists, grid, shape)

    def blend_row(sums: _Sums, row: tuple[jax.Array, ...]) -> tuple[_Sums, None]:
        raw, inverse, value, slot = row
        alpha = capped(raw)
        after = sums.trans * (1 - alpha)
        weight = jnp.where(after >= MIN_TRANSMITTANCE, alpha * sums.trans, 0)
        depth, first = 1 / inverse, weight * inverse
        is_median = (weight > 0) & (sums.trans > MEDIAN)
        return _Sums(after, sums.features + weight[:, None] * value[:, :, None], sums.depth + weight * depth,
                     sums.first + first, sums.second + first * inverse, sums.alpha + weight,
                     jnp.where(is_median, depth, sums.median), jnp.where(is_median, slot[:, None], sums.slot)), None

    def one_group(index, out):
        group = group_of(lists, grid, groups[index], dtype)

        def step(carry):
            k, sums = carry
            index, used = chunk_rows(lists, group, k, shape.chunk)
            rows = table.at[index].get(mode="promise_in_bounds")
            hits = _hits(_planes(rows[..., :N_GEOMETRY], group.centre, used), grid.side, near)
            slots = group.begin + k * shape.chunk + jnp.arange(shape.chunk, dtype=jnp.int32)[:, None]
            sums, _ = jax.lax.scan(blend_row, sums, (hits.raw, hits.inverse, rows[..., N_GEOMETRY:], slots))
            return k + 1, sums

        nothing = jnp.zeros((size, pixels), dtype)
        start = _Sums(nothing + 1, jnp.zeros((size, N_FEATURES, pixels), dtype), nothing, nothing, nothing, nothing,
                      nothing, jnp.full((size, pixels), -1, jnp.int32))
        _, sums = jax.lax.while_loop(lambda c: more(group, c[0], shape.chunk, c[1].trans), step, (jnp.int32(0), start))
        maps = jnp.concatenate([sums.features, jnp.stack(sums[2:7], 1)], 1)
        return out[0].at[group.tiles].set(maps), out[1].at[group.tiles].set(sums.slot)

    start = jnp.zeros((grid.count + 1, N_MAPS, pixels), dtype), jnp.full((grid.count + 1, pixels), -1, jnp.int32)
    maps, median = jax.lax.fori_loop(0, groups.shape[0], one_group, start)
    return untiled(maps, grid, width, height), median


class _Walk(NamedTuple):
    """What a group's walk from front to back carries, and the buffers that a step's rows leave their results in."""

    trans: jax.Array  # [G, P] transmittance in front of the row
    behind: jax.Array  # [G, P] what the row and those behind it add to the loss's derivative
    weights: jax.Array  # [G, chunk, P] w of each row of the step
    d_logs: jax.Array  # [G, chunk, P] derivative by the natural logarithm of each row's response
    d_inverses: jax.Array  # [G, chunk, P] derivative by I, as far as the maps read it


def _walk_row(walk: _Walk, row: tuple[jax.Array, ...], d_pixel: jax.Array, median: jax.Array) -> _Walk:
    """One row further: its place in the step, its slots [G], raw responses and I [G, P], features [G, 6]."""
    at, slot, raw, inverse, value = row
    alpha = capped(raw)
    after = walk.trans * (1 - alpha)
    blended = after >= MIN_TRANSMITTANCE
    weight = jnp.where(blended, alpha * walk.trans, 0)
    depth = 1 / inverse
    d_depth, d_first, d_second, d_alpha, d_median = (d_pixel[:, N_FEATURES + i] for i in range(5))
    gain = d_alpha + depth * d_depth + inverse * (d_first + inverse * d_second)
    for i in range(N_FEATURES):
        gain = gain + value[:, i, None] * d_pixel[:, i]
    behind = walk.behind - weight * gain
    d_log = jnp.where(blended & (raw >= MIN_ALPHA), raw * (walk.trans * gain - behind / (1 - alpha)), 0)
    by_depth = weight * d_depth + jnp.where(median == slot[:, None], d_median, 0)
    d_inverse = weight * (d_first + 2 * inverse * d_second) - by_depth * depth * depth
    return _Walk(after, behind, put(walk.weights, weight, at), put(walk.d_logs, d_log, at),
                 put(walk.d_inverses, d_inverse, at))


def _d_planes(planes: jax.Array, hits: Hits, d_log: jax.Array, d_inverse: jax.Array, basis: jax.Array) -> jax.Array:
    """[chunk, G, 12] derivative by the planes from those by ln response and I, [chunk, G, P] each."""
    by_disk, by_screen = jnp.where(hits.disk, d_log, 0), jnp.where(hits.disk, 0, d_log)
    scale = -by_disk / (hits.inverse * hits.inverse)
    on_disk = hits.u * hits.u + hits.v * hits.v
    d_inverse = jnp.where(hits.hit, d_inverse - scale * on_disk / hits.inverse, 0)
    d_rays = jnp.stack([scale * hits.u, scale * hits.v, d_inverse, by_screen, d_log])
    sums = jnp.einsum("kcgp,pb->kcgb", d_rays, basis)
    # −½ρ of the filter has the derivative 2·(pixel − centre) by the centre, as LOW_PASS says.
    screen = [LOW_PASS * (sums[3, ..., 1 + i] - planes[..., 9 + i] * sums[3, ..., 0]) for i in range(2)]
    return jnp.concatenate([*(sums[i, ..., :3] for i in range(3)), jnp.stack(screen, -1),
                            math.log(2) * sums[4, ..., :1]], -1)


def _backward(geometry: jax.Array, features: jax.Array, lists: TileLists, maps: jax.Array, median: jax.Array,
              d_maps: jax.Array, near: float) -> jax.Array:
    """[N, 18] gradient of the table's rows from maps and their gradient [H, W, 11]."""
    grid, shape, pixels = lists.grid, backward_shape(), lists.grid.side**2
    table, n, dtype = _table(geometry, features), features.shape[0], features.dtype
    groups, size = grouped(lists, grid, shape)
    d_tiles = tiled(d_maps, grid)
    totals = tiled(jnp.sum(maps[..., :-1] * d_maps[..., :-1], -1, keepdims=True), grid)[:, 0]
    x, y = pixel_offsets(grid.side, dtype)
    basis = jnp.pad(jnp.stack([jnp.ones_like(x), x, y], -1), ((0, 0), (0, LANES - 3)))

    def one_group(index, carry):
        group = group_of(lists, grid, groups[index], dtype)
        d_pixel, of_median = d_tiles[group.tiles], median[group.tiles]
        d_wide = jnp.pad(d_pixel[:, :N_FEATURES].swapaxes(1, 2), ((0, 0), (0, 0), (0, LANES - N_FEATURES)))

        def step(carry):
            k, walk, grads = carry
            index, used = chunk_rows(lists, group, k, shape.chunk)
            rows = table.at[index].get(mode="promise_in_bounds")
            planes, to_rows = jax.vjp(lambda g: _planes(g, group.centre, used), rows[..., :N_GEOMETRY])
            hits = _hits(planes, grid.side, near)
            places = jnp.arange(shape.chunk, dtype=jnp.int32)
            slots = group.begin + k * shape.chunk + places[:, None]
            walk, _ = jax.lax.scan(lambda walk, row: (_walk_row(walk, row, d_pixel, of_median), None), walk,
                                   (places, slots, hits.raw, hits.inverse, rows[..., N_GEOMETRY:]))
            d_planes = _d_planes(planes, hits, walk.d_logs.swapaxes(0, 1), walk.d_inverses.swapaxes(0, 1), basis)
            d_feature = jnp.einsum("gcp,gpf->cgf", walk.weights, d_wide)[..., :N_FEATURES]
            d_rows = jnp.concatenate([to_rows(d_planes)[0], d_feature], -1)
            return k + 1, walk, grads.at[jnp.where(used, index, n)].add(d_rows, mode="promise_in_bounds")

        buffers, grads = carry
        walk = _Walk(jnp.ones((size, pixels), dtype), totals[group.tiles], *buffers)
        _, walk, grads = jax.lax.while_loop(lambda c: more(group, c[0], shape.chunk, c[1].trans), step,
                                            (jnp.int32(0), walk, grads))
        return walk[2:], grads

    # Buffers pass from group to group, as zeroing them for every step costs as much as a scatter.
    buffers = tuple(jnp.full((size, shape.chunk, pixels), i, dtype) for i in range(3))
    _, grads = jax.lax.fori_loop(0, groups.shape[0], one_group, (buffers, jnp.zeros_like(table)))
    return grads[:-1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def blend_surfels(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int,
                  near: float) -> jax.Array:
    """[H, W, 11]: Σ w·feature per feature, Σ w·depth, Σ w·I, Σ w·I², Σ w (alpha), median depth, without background.

    ``geometry`` [N, 12] and ``features`` [N, 6] as in ``splat.surfel.geometry.Surfels``; I is one over the depth of
    the hit, ``near`` in world units. Differentiable in both; list membership, the near plane, and the 1/255 and 1e-4
    tests count as constants.
    """
    return _maps(geometry, features, lists, width, height, near)[0]


def _maps(geometry, features, lists, width, height, near):
    forward = pallas.forward if in_kernels() else _forward
    return each(forward, width=width, height=height, near=near)(geometry, features, lists)


def _blend_fwd(geometry, features, lists, width, height, near):
    maps, median = _maps(geometry, features, lists, width, height, near)
    return maps, (geometry, features, lists, maps, median)


def _blend_bwd(width, height, near, saved, d_maps):
    grads = each(pallas.backward if in_kernels() else _backward, near=near)(*saved, d_maps)
    return grads[:, :N_GEOMETRY], grads[:, N_GEOMETRY:], None


blend_surfels.defvjp(_blend_fwd, _blend_bwd)
