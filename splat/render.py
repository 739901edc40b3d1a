"""Render Gaussians from a camera: the library's main function (spec §1.1 to §1.4)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from splat import tiles
from splat.cameras import Camera
from splat.finite import check_numbers, is_concrete
from splat.gaussians import COLOUR_FIELDS, Gaussians
from splat.options import RenderOptions
from splat.projection import project
from splat.raster.blend import blend
from splat.raster.settings import COARSE_TILE, tile_side
from splat.shapes import check_inputs

PAIRS_PER_ROW = 16  # room for tile-row pairs per primitive where they cannot be counted beforehand


@struct.dataclass
class RenderOutput:
    """An image and what it took to make it."""

    image: jax.Array  # [H, W, 3] colour over the background, not clamped
    alpha: jax.Array  # [H, W] Σ w
    depth: jax.Array  # [H, W] expected depth Σ w·z, world units (divide by alpha for a mean)
    visible: jax.Array  # [N] bool, the row's footprint reaches the image
    pairs: jax.Array  # [] int32, tile-row pairs needed
    overflow: jax.Array  # [] bool, pairs exceed the capacity; image, alpha and depth are then NaN


def render(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
           background: jax.Array | None = None, sh_degree: int | jax.Array = 3, probe: jax.Array | None = None,
           opacities: jax.Array | None = None, options: RenderOptions | None = None,
           lists: tiles.TileLists | None = None) -> RenderOutput:
    """Render ``gaussians`` (N rows) from ``camera``.

    Pure; works under ``jit``, ``grad`` (to every field, to ``camera.view`` and ``camera.intrinsics``, to
    ``background`` [3] and to ``probe`` [N, 2], an offset of the centres in NDC units) and ``vmap`` over cameras.
    ``alive`` [N] bool masks rows that are only capacity. ``sh_degree`` 0..3 may be traced. ``opacities`` [N] ≥ 0 stand
    in for the sigmoid of the logits and may be above 1. A ``shard_map`` around it needs ``check_vma=False``.

    Room for tile-row pairs is ``options.pair_capacity``. Left at None it is counted when the inputs are concrete; under
    a transformation it is ``16·N``, with small images cut into coarser tiles, which need fewer pairs. Where it does not
    suffice nothing is dropped: the outputs become NaN and ``overflow`` is set, so that the step can be repeated with a
    larger one. With ``lists``, made by :func:`bin_view` of the same geometry and camera, that room is theirs.

    Raises UserError without rows, for arrays of another shape or kind than stated, and where a row that is alive or
    the camera holds a number that is not finite and the numbers are concrete; under a transformation they cannot be
    looked at and such rows are never drawn.
    """
    options = options or RenderOptions()
    check_inputs(gaussians, camera, alive, background, sh_degree, probe)
    check_numbers(gaussians, camera, alive, "Gaussians")
    masks = {"alive": alive, "opacities": opacities}
    options, side = with_room(options, lists, (gaussians, camera), masks, _count_pairs)
    return _render(gaussians, camera, alive, background, sh_degree, probe, opacities, options, side, lists)


# One compiled program where the caller has none; inlined into the caller's where they do.
@functools.partial(jax.jit, static_argnames=("options", "side"), inline=True)
def _render(gaussians: Gaussians, camera: Camera, alive: jax.Array | None, background: jax.Array | None,
            sh_degree: int | jax.Array, probe: jax.Array | None, opacities: jax.Array | None, options: RenderOptions,
            side: int, lists: tiles.TileLists | None) -> RenderOutput:
    proj = project(gaussians, camera, alive=alive, sh_degree=sh_degree, probe=probe, options=options,
                   opacities=opacities)
    if lists is None:
        lists = tiles.build(jax.lax.stop_gradient(proj), camera.width, camera.height, options.pair_capacity or 1, side)
    blended: Any = blend(proj.geometry, proj.features, lists, camera.width, camera.height)
    out = jnp.where(lists.overflow, jnp.nan, blended)
    image, depth, alpha = out[..., :3], out[..., 3], out[..., 4]
    if background is not None:
        image = image + (1 - alpha)[..., None] * background
    visible = tiles.touched(proj, camera.width, camera.height)
    return RenderOutput(image, alpha, depth, visible, lists.pairs, lists.overflow)


def bin_view(gaussians: Gaussians, camera: Camera, pair_capacity: int, *, alive: jax.Array | None = None,
             opacities: jax.Array | None = None, options: RenderOptions | None = None) -> tiles.TileLists:
    """The tile lists of a view, of ``pair_capacity`` slots, for ``render(…, lists=…)``. Pure, jittable.

    They follow from geometry alone (means, scales, rotations, opacities), so colours may still be on their way
    (design §7).
    """
    proj = project(without_colours(gaussians), camera, alive=alive, sh_degree=0, probe=None,
                   options=options or RenderOptions(), opacities=opacities)
    side = tile_side(camera.width, camera.height)
    return tiles.build(jax.lax.stop_gradient(proj), camera.width, camera.height, pair_capacity, side)


def without_colours(gaussians: Gaussians) -> Gaussians:
    """The rows with all colour coefficients zero."""
    return dataclasses.replace(
        gaussians, **{name: jnp.zeros_like(getattr(gaussians, name)) for name in COLOUR_FIELDS})


def count_pairs(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
                opacities: jax.Array | None = None,
                options: RenderOptions | None = None) -> tuple[jax.Array, jax.Array]:
    """([N] bool rows that the renderer touches in this view, [] int32 tile-row pairs it needs room for).

    The scope of a view on the state as it stands (design §6), with the renderer's own test.
    """
    proj = project(gaussians, camera, alive=alive, sh_degree=0, probe=None, options=options or RenderOptions(),
                   opacities=opacities)
    return tiles.count(proj, camera.width, camera.height, tile_side(camera.width, camera.height))


_count_pairs = jax.jit(count_pairs, static_argnames=("options",))


def with_room(options: Any, lists: tiles.TileLists | None, scene: tuple[Gaussians, Camera], masks: dict[str, Any],
              count: Callable[..., Any]) -> tuple[Any, int]:
    """(options with room for tile-row pairs, side of the tiles in pixels) of a render of ``scene`` with ``masks``.

    Room that is not given is counted by ``count``, jitted, where all inputs are concrete.
    """
    gaussians, camera = scene
    side = tile_side(camera.width, camera.height)
    if lists is not None or options.pair_capacity is not None:
        return options, side
    if not is_concrete((scene, masks)):
        room = max(PAIRS_PER_ROW * gaussians.count, 4096)
        return dataclasses.replace(options, pair_capacity=room), COARSE_TILE
    with jax.ensure_compile_time_eval():
        room = pair_bucket(int(count(*scene, **masks, options=options)[1]))
    return dataclasses.replace(options, pair_capacity=room), side


def pair_bucket(pairs: int) -> int:
    """The capacity for a count: the next of a few sizes a quarter apart, so that programs are compiled rarely."""
    size = 1024
    while size < pairs:
        size += max(size // 4 // 1024 * 1024, 1024)
    return size
