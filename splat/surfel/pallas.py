"""Blending of surfels as a pair of GPU kernels: what ``splat.surfel.blend`` does in XLA's loops (spec §2.2 to §2.5)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from splat.projection import MIN_ALPHA
from splat.raster import kernels
from splat.raster.settings import SURFEL_KERNEL
from splat.raster.walk import MIN_TRANSMITTANCE, capped, tiled, untiled
from splat.surfel.geometry import LOW_PASS, N_FEATURES, N_GEOMETRY
from splat.surfel.hits import MEDIAN, N_MAPS, Hits, hits_of, planes_of
from splat.tiles import Grid, TileLists

N_COLUMNS = N_GEOMETRY + N_FEATURES


def forward(geometry: jax.Array, features: jax.Array, lists: TileLists, width: int, height: int,
            near: float) -> tuple[jax.Array, jax.Array]:
    """[H, W, 11] maps and [tiles + 1, P] list slot of the hit whose depth is the median, −1 for none."""
    grid, pixels = lists.grid, lists.grid.side**2
    out = (jax.ShapeDtypeStruct((grid.count, N_MAPS, pixels), features.dtype),
           jax.ShapeDtypeStruct((grid.count, pixels), jnp.int32))
    kernel = kernels.launch(partial(_forward, grid, near), grid, SURFEL_KERNEL, out)
    maps, median = kernel(*kernels.arguments(geometry, features, lists))
    return (untiled(jnp.pad(maps, ((0, 1), (0, 0), (0, 0))), grid, width, height),
            jnp.pad(median, ((0, 1), (0, 0)), constant_values=-1))


def backward(geometry: jax.Array, features: jax.Array, lists: TileLists, maps: jax.Array, median: jax.Array,
             d_maps: jax.Array, near: float) -> jax.Array:
    """[N, 18] gradient of geometry and features from maps and their gradient [H, W, 11]."""
    grid = lists.grid
    totals = tiled(jnp.sum(maps[..., :-1] * d_maps[..., :-1], -1, keepdims=True), grid)[:-1, 0]
    out = jax.ShapeDtypeStruct((len(lists.rows), N_COLUMNS), features.dtype)
    kernel = kernels.launch(partial(_backward, grid, near), grid, SURFEL_KERNEL, out)
    slots = kernel(*kernels.arguments(geometry, features, lists), tiled(d_maps, grid)[:-1], totals, median[:-1])
    return kernels.of_rows(slots, lists, len(features))


def _forward(grid: Grid, near: float, order: Any, starts: Any, rows: Any, table: Any, maps: Any, median: Any) -> None:
    tile, begin, end, centre = kernels.tile_of(grid, order, starts)
    x, y = kernels.offsets(grid.side, table.dtype)

    def row(slot: jax.Array, carry: Any) -> Any:
        trans, sums, middle, at = carry
        numbers = kernels.numbers(table, rows[slot], N_COLUMNS)
        hits = hits_of(planes_of(numbers[:N_GEOMETRY], centre), x, y, near)
        alpha = capped(hits.raw)
        after = trans * (1 - alpha)
        weight = jnp.where(after >= MIN_TRANSMITTANCE, alpha * trans, 0)
        depth, first = 1 / hits.inverse, weight * hits.inverse
        is_median = (weight > 0) & (trans > MEDIAN)
        parts = (*(weight * value for value in numbers[N_GEOMETRY:]), weight * depth, first, first * hits.inverse,
                 weight)
        return (after, tuple(total + part for total, part in zip(sums, parts, strict=True)),
                jnp.where(is_median, depth, middle), jnp.where(is_median, slot, at))

    nothing = jnp.zeros_like(x)
    start = (nothing + 1, (nothing,) * (N_MAPS - 1), nothing, jnp.full(x.shape, -1, jnp.int32))
    _, (_, sums, middle, at) = kernels.walk(begin, end, SURFEL_KERNEL.rows, row, start)
    for column, total in enumerate((*sums, middle)):
        maps[tile, column, :] = total
    median[tile, :] = at


def _backward(grid: Grid, near: float, order: Any, starts: Any, rows: Any, table: Any, d_tiles: Any, totals: Any,
              median: Any, out: Any) -> None:
    tile, begin, end, centre = kernels.tile_of(grid, order, starts)
    x, y = kernels.offsets(grid.side, table.dtype)
    d_pixel = [d_tiles[tile, column, :] for column in range(N_MAPS)]
    d_depth, d_first, d_second, d_alpha, d_median = d_pixel[N_FEATURES:]
    at = median[tile, :]

    def row(slot: jax.Array, carry: Any) -> Any:
        trans, behind = carry
        numbers = kernels.numbers(table, rows[slot], N_COLUMNS)
        planes, to_row = jax.vjp(lambda geometry: planes_of(geometry, centre), numbers[:N_GEOMETRY])
        hits = hits_of(planes, x, y, near)
        alpha = capped(hits.raw)
        after = trans * (1 - alpha)
        blended = after >= MIN_TRANSMITTANCE
        weight, depth = jnp.where(blended, alpha * trans, 0), 1 / hits.inverse
        gain = d_alpha + depth * d_depth + hits.inverse * (d_first + hits.inverse * d_second)
        for value, d_value in zip(numbers[N_GEOMETRY:], d_pixel, strict=False):
            gain = gain + value * d_value
        behind = behind - weight * gain
        d_log = jnp.where(blended & (hits.raw >= MIN_ALPHA), hits.raw * (trans * gain - behind / (1 - alpha)), 0)
        by_depth = weight * d_depth + jnp.where(at == slot, d_median, 0)
        d_inverse = weight * (d_first + 2 * hits.inverse * d_second) - by_depth * depth * depth
        (d_geometry,) = to_row(_d_planes(planes, hits, d_log, d_inverse, x, y))
        kernels.put(out, slot, (*d_geometry, *(jnp.sum(weight * d_pixel[i]) for i in range(N_FEATURES))))
        return after, behind

    start = (jnp.ones_like(x), totals[tile, :])
    reached, _ = kernels.walk(begin, end, SURFEL_KERNEL.rows, row, start)
    kernels.clear(out, reached, end)


def _d_planes(planes: list[jax.Array], hits: Hits, d_log: jax.Array, d_inverse: jax.Array, x: jax.Array,
              y: jax.Array) -> list[jax.Array]:
    """Derivatives by the planes from those by ln response and I [P]."""
    by_disk, by_screen = jnp.where(hits.disk, d_log, 0), jnp.where(hits.disk, 0, d_log)
    scale = -by_disk / (hits.inverse * hits.inverse)
    on_disk = hits.u * hits.u + hits.v * hits.v
    d_inverse = jnp.where(hits.hit, d_inverse - scale * on_disk / hits.inverse, 0)
    d_rays = [[jnp.sum(ray), jnp.sum(ray * x), jnp.sum(ray * y)]
              for ray in (scale * hits.u, scale * hits.v, d_inverse, by_screen)]
    # −½ρ of the filter has the derivative 2·(pixel − centre) by the centre, as LOW_PASS says.
    screen = [LOW_PASS * (d_rays[3][1 + i] - planes[9 + i] * d_rays[3][0]) for i in range(2)]
    return [*d_rays[0], *d_rays[1], *d_rays[2], *screen, math.log(2) * jnp.sum(d_log)]
