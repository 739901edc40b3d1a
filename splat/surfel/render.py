"""Render surfels from a camera: image, alpha, normals, depths and distortion (spec §2)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from splat import tiles
from splat.cameras import Camera
from splat.errors import UserError
from splat.finite import check_camera, check_finite, check_size, is_concrete
from splat.gaussians import Gaussians
from splat.raster.settings import COARSE_TILE, tile_side
from splat.render import PAIRS_PER_ROW, pair_bucket, without_colours
from splat.shapes import check_inputs
from splat.surfel.blend import blend_surfels
from splat.surfel.geometry import project
from splat.surfel.options import SurfelOptions


@struct.dataclass
class SurfelOutput:
    """The maps of a view and what it took to make them."""

    image: jax.Array  # [H, W, 3] colour over the background, not clamped
    alpha: jax.Array  # [H, W] Σ w
    normal: jax.Array  # [H, W, 3] Σ w·n, camera axes, n of each row towards the camera; not normalised
    depth: jax.Array  # [H, W] expected depth Σ w·z of the hits, world units (divide by alpha for a mean)
    median_depth: jax.Array  # [H, W] depth of the last hit in front of which more than half is let through; 0: none
    distortion: jax.Array  # [H, W] Σ_{j<i} w_i w_j (m_i − m_j)², m from 0 at ``near`` to 1 at ``far``
    visible: jax.Array  # [N] bool, the row's outline reaches the image
    pairs: jax.Array  # [] int32, tile-row pairs needed
    overflow: jax.Array  # [] bool, pairs exceed the capacity; all maps are then NaN


def render_surfels(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
                   background: jax.Array | None = None, sh_degree: int | jax.Array = 3,
                   probe: jax.Array | None = None, options: SurfelOptions | None = None,
                   lists: tiles.TileLists | None = None) -> SurfelOutput:
    """Render N surfels (``gaussians`` with two scales each) from ``camera``.

    Arguments, transformations and what happens where the pairs exceed their room are those of ``splat.render``; what
    ``probe`` moves is said in ``splat.surfel.geometry.project``.

    Raises UserError as ``splat.render`` does.
    """
    options = options or SurfelOptions()
    check_inputs(gaussians, camera, alive, background, sh_degree, probe, scales=2)
    if gaussians.count == 0:
        raise UserError("there are no surfels to render: pass at least one row, which may be one that is not alive")
    if is_concrete((gaussians, alive)):
        check_finite(gaussians, alive)
    check_size(camera)
    if is_concrete(camera):
        check_camera(camera)
    side = tile_side(camera.width, camera.height)
    if lists is None and options.pair_capacity is None:
        counted = is_concrete((gaussians, camera, alive))
        room = _counted(gaussians, camera, alive, options) if counted else max(PAIRS_PER_ROW * gaussians.count, 4096)
        options, side = dataclasses.replace(options, pair_capacity=room), side if counted else COARSE_TILE
    return _render(gaussians, camera, alive, background, sh_degree, probe, options, side, lists)


@functools.partial(jax.jit, static_argnames=("options", "side"), inline=True)
def _render(gaussians: Gaussians, camera: Camera, alive: jax.Array | None, background: jax.Array | None,
            sh_degree: int | jax.Array, probe: jax.Array | None, options: SurfelOptions, side: int,
            lists: tiles.TileLists | None) -> SurfelOutput:
    rows = project(gaussians, camera, alive=alive, sh_degree=sh_degree, probe=probe, options=options)
    outline = jax.lax.stop_gradient(rows.outline)
    if lists is None:
        lists = tiles.build(outline, camera.width, camera.height, options.pair_capacity or 1, side)
    maps: Any = blend_surfels(rows.geometry, rows.features, lists, camera.width, camera.height, options.near)
    maps = jnp.where(lists.overflow, jnp.nan, maps)
    image, normal = maps[..., :3], maps[..., 3:6]
    depth, first, second, alpha, median = (maps[..., i] for i in range(6, 11))
    scale = options.far / (options.far - options.near) * options.near
    if background is not None:
        image = image + (1 - alpha)[..., None] * background
    return SurfelOutput(image, alpha, normal, depth, median, scale**2 * (alpha * second - first * first),
                        tiles.touched(outline, camera.width, camera.height), lists.pairs, lists.overflow)


def bin_surfels(gaussians: Gaussians, camera: Camera, pair_capacity: int, *, alive: jax.Array | None = None,
                options: SurfelOptions | None = None) -> tiles.TileLists:
    """The tile lists of a view from geometry alone, for ``render_surfels(…, lists=…)``; as ``splat.bin_view``."""
    rows = project(without_colours(gaussians), camera, alive=alive, sh_degree=0, probe=None,
                   options=options or SurfelOptions())
    side = tile_side(camera.width, camera.height)
    return tiles.build(jax.lax.stop_gradient(rows.outline), camera.width, camera.height, pair_capacity, side)


def count_surfel_pairs(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
                       options: SurfelOptions | None = None) -> tuple[jax.Array, jax.Array]:
    """([N] bool rows that the renderer touches in this view, [] int32 tile-row pairs it needs room for)."""
    rows = project(gaussians, camera, alive=alive, sh_degree=0, probe=None, options=options or SurfelOptions())
    return tiles.count(rows.outline, camera.width, camera.height, tile_side(camera.width, camera.height))


_count_pairs = jax.jit(count_surfel_pairs, static_argnames=("options",))


def _counted(gaussians: Gaussians, camera: Camera, alive: jax.Array | None, options: SurfelOptions) -> int:
    with jax.ensure_compile_time_eval():
        return pair_bucket(int(_count_pairs(gaussians, camera, alive=alive, options=options)[1]))
