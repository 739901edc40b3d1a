"""Rendering divided between the owners of rows and the ranks that have the pixels (Grendel, spec §6.1).

The owner of a row projects it for every view of a unit (``screen``). What comes out, the *attributes* of the row in
that view, is all that a strip of the view needs (``strip_loss``), and the gradient of the attributes is all that the
owner needs to go back to the row's parameters. A row without attributes, all zero, is drawn nowhere.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from splat import schedule, tiles
from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.projection import Projected, project
from splat.raster.blend import blend
from splat.raster.settings import tile_side
from splat.strips import Strip, photometric_part, row_share, squared_error_part
from splat.surfel import geometry as surfels
from splat.surfel.blend import blend_surfels
from splat.surfel.losses import normal_misfit
from splat.surfel.render import shown


@struct.dataclass
class Screened:
    """Rows as one view shows them."""

    attributes: jax.Array  # [N, F] what a strip needs of each row; zero where the view does not show it
    visible: jax.Array  # [N] bool: the footprint reaches the image
    first: jax.Array  # [N] int32 first pixel row of the footprint
    last: jax.Array  # [N] int32 last pixel row of it; before the first where the row is not visible
    breadth: jax.Array  # [N] width of the footprint's box, pixels


@struct.dataclass
class StripEvidence:
    """What a strip did."""

    mse: jax.Array  # [] its part of the mean squared colour error of the view
    pairs: jax.Array  # [] int32, tile-row pairs
    overflow: jax.Array  # [] bool: more pairs than there was room for; nothing here may be used


class MixedGaussians:
    """What 3DGS and its siblings do of both halves."""

    sent_width = 10  # attributes of a row: centre (2), covariance (3), log2 opacity, colour (3), camera z
    returned_width = 10  # leading attributes that have a gradient

    def screen(self: Any, state: Any, gaussians: Gaussians, camera: Camera, step: jax.Array,
               probe: jax.Array) -> Screened:
        """The rows ``gaussians`` [N], in place of those of ``state``, in a view at 1-based ``step``; jittable.

        ``probe`` [N, 2] moves the rows in the image (NDC units); differentiable in it and in the rows.
        """
        proj = project(gaussians, camera, alive=state.alive, sh_degree=schedule.sh_degree(step, self.config.sh_every),
                       probe=probe, options=self.options(), opacities=self.opacities(state, gaussians))
        covariance = jnp.stack([jnp.where(proj.valid, part, 0) for part in proj.covariance], -1)
        attributes = [proj.geometry[:, :2], covariance, proj.geometry[:, 5:], proj.features]
        return _screened(jnp.concatenate(attributes, -1), jax.lax.stop_gradient(proj), camera)

    def strip_loss(self: Any, attributes: jax.Array, strip: Strip, step: jax.Array,
                   room: int) -> tuple[jax.Array, StripEvidence]:
        """What a strip adds to the loss of its view, from the attributes [E, F] of rows in the order of their ids.

        ``room``: static capacity for tile-row pairs.
        """
        camera = strip.camera
        centre, (xx, xy, yy), log2_opacity, features = _parts(attributes, strip)
        valid = features[:, 3] > 0
        det = jnp.where(valid, xx * yy - xy * xy, 1)
        geometry = jnp.stack([*centre, yy / det, -xy / det, xx / det, log2_opacity], -1)
        outline = Projected(geometry, features, (xx, xy, yy), jnp.exp2(log2_opacity), valid)
        lists = _lists(outline, camera, room)
        blended: Any = blend(geometry, features, lists, camera.width, camera.height)
        out = jnp.where(lists.overflow, jnp.nan, blended)
        image = out[..., :3] + (1 - out[..., 4])[..., None] * strip.background
        return photometric_part(image, strip), _evidence(image, strip, lists)


class MixedSurfels(MixedGaussians):
    """What 2DGS does of both halves; the outline travels with the surfel but has no gradient."""

    sent_width = surfels.N_GEOMETRY + surfels.N_FEATURES + 5  # with the outline's centre (2) and covariance (3)
    returned_width = surfels.N_GEOMETRY + surfels.N_FEATURES

    def screen(self: Any, state: Any, gaussians: Gaussians, camera: Camera, step: jax.Array,
               probe: jax.Array) -> Screened:
        """As ``MixedGaussians.screen``."""
        rows = surfels.project(gaussians, camera, alive=state.alive, probe=probe, options=self.surfel_options(),
                               sh_degree=schedule.sh_degree(step, self.config.sh_every))
        outline: Projected = jax.lax.stop_gradient(rows.outline)
        around = jnp.where(outline.valid[:, None], jnp.stack(outline.covariance, -1), 0)
        attributes = jnp.concatenate([rows.geometry, rows.features, outline.geometry, around], -1)
        return _screened(attributes, outline, camera)

    def strip_loss(self: Any, attributes: jax.Array, strip: Strip, step: jax.Array,
                   room: int) -> tuple[jax.Array, StripEvidence]:
        """As ``MixedGaussians.strip_loss``, with the regularisers."""
        camera, options, n = strip.camera, self.surfel_options(room), surfels.N_GEOMETRY
        shift = strip.top.astype(attributes.dtype)
        geometry = attributes[:, :n].at[:, jnp.array([1, 9])].add(-shift)
        features, outline = attributes[:, n : n + surfels.N_FEATURES], attributes[:, n + surfels.N_FEATURES :]
        z, log2_opacity = geometry[:, 10], geometry[:, 11]
        valid = z > 0
        around = Projected(outline[:, :2].at[:, 1].add(-shift), z[:, None],
                           tuple(jnp.where(valid, part, 1) for part in outline[:, 2:].T),  # type: ignore[arg-type]
                           jnp.exp2(log2_opacity), valid)
        lists = _lists(around, camera, room)
        maps: Any = blend_surfels(geometry, features, lists, camera.width, camera.height, options.near)
        out = shown(maps, lists, strip.background, options, valid)
        weights, share = self.regularisers(step), row_share(strip, attributes.dtype)
        inner = (strip.rows > 0) & (strip.rows < strip.height - 1)
        misfit = normal_misfit(out, camera, self.config.depth_ratio, inner[:, None])
        loss = photometric_part(out.image, strip) + weights.normal * jnp.sum(share * misfit)
        loss = loss + weights.distortion * jnp.sum(share * out.distortion)
        return loss, _evidence(out.image, strip, lists)


def _screened(attributes: jax.Array, outline: Projected, camera: Camera) -> Screened:
    visible = tiles.touched(outline, camera.width, camera.height)
    first, last = tiles.pixel_rows(outline, camera.height)
    return Screened(attributes, visible, first, jnp.where(visible, last, first - 1), 2 * tiles.footprint(outline)[1])


def _parts(attributes: jax.Array, strip: Strip) -> tuple[Any, Any, jax.Array, jax.Array]:
    """Centre with the strip's first row as zero, covariance, log2 opacity and features of rows [E]."""
    x, y, xx, xy, yy, log2_opacity = (attributes[:, i] for i in range(6))
    return (x, y - strip.top.astype(y.dtype)), (xx, xy, yy), log2_opacity, attributes[:, 6:]


def _lists(outline: Projected, camera: Camera, room: int) -> tiles.TileLists:
    side = tile_side(camera.width, camera.height)
    return tiles.build(jax.lax.stop_gradient(outline), camera.width, camera.height, room, side)


def _evidence(image: jax.Array, strip: Strip, lists: tiles.TileLists) -> StripEvidence:
    return StripEvidence(squared_error_part(image, strip), lists.pairs, lists.overflow)

