"""Render surfels from a camera: image, alpha, normals, depths and distortion (spec §2)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from splat import tiles
from splat.cameras import Camera
from splat.finite import check_numbers
from splat.gaussians import Gaussians
from splat.raster.settings import tile_side
from splat.render import with_room, without_colours
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
    check_numbers(gaussians, camera, alive, "surfels")
    options, side = with_room(options, lists, (gaussians, camera), {"alive": alive}, _count_pairs)
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
    visible = tiles.touched(outline, camera.width, camera.height)
    return shown(maps, lists, background, options, visible)


def shown(maps: jax.Array, lists: tiles.TileLists, background: jax.Array | None, options: SurfelOptions,
          visible: jax.Array) -> SurfelOutput:
    """The output that the blended ``maps`` [H, W, 11] of ``splat.surfel.blend`` stand for."""
    maps = jnp.where(lists.overflow, jnp.nan, maps)
    image, normal = maps[..., :3], maps[..., 3:6]
    depth, first, second, alpha, median = (maps[..., i] for i in range(6, 11))
    scale = options.far / (options.far - options.near) * options.near
    if background is not None:
        image = image + (1 - alpha)[..., None] * background
    return SurfelOutput(image, alpha, normal, depth, median, scale**2 * (alpha * second - first * first), visible,
                        lists.pairs, lists.overflow)


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
