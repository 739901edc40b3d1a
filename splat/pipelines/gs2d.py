"""2D Gaussian splatting: the steps and events of 3DGS on surfels, with regularisers (spec §2).

Rows are ``Gaussians`` with two scales; the normal is the third axis of the rotation. Density control goes by the
gradient of the spec's §2.7, which is that of the surfel renderer's probe, and a split moves children within the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from splat import schedule
from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.pipelines import unit
from splat.pipelines.gs2d_config import Gs2dConfig
from splat.pipelines.gs3d import SOLID, Gs3d
from splat.pipelines.mixed import MixedSurfels
from splat.pipelines.protocol import Evidence, View
from splat.pipelines.state import SplatState
from splat.surfel.bounds import may_touch_surfels
from splat.surfel.losses import Regularisers, regularisation, surface_depth
from splat.surfel.options import SurfelOptions
from splat.surfel.render import SurfelOutput, bin_surfels, count_surfel_pairs, render_surfels
from splat.tiles import TileLists

START_ROTATIONS = 2  # the purpose that sets these random numbers apart from others of the same seed


class Gs2d(MixedSurfels, Gs3d):
    """The 2DGS pipeline; see ``splat.pipelines.protocol.Pipeline`` for the contract of each method."""

    name = "2dgs"
    config: Gs2dConfig

    def first_rows(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> Gaussians:
        """A surfel for each point, rotated at random: uniform in [0, 1)⁴, not normalised (spec §0.1)."""
        rows = super().first_rows(points, colours, extent, seed)
        quats = np.random.default_rng([seed, START_ROTATIONS]).random((rows.count, 4))
        return replace(rows, log_scales=rows.log_scales[:, :2], quats=jnp.asarray(quats, jnp.float32))

    def scope(self, state: SplatState, camera: Camera) -> tuple[jax.Array, jax.Array]:
        """([N] bool rows that a render of ``camera`` touches, [] int32 tile-row pairs); one program per image size."""
        return _scope(state.gaussians, state.alive, camera, self.surfel_options())

    def lists(self, state: SplatState, camera: Camera, pair_capacity: int) -> TileLists:
        """The tile lists of one view."""
        return bin_surfels(state.gaussians, camera, pair_capacity, alive=state.alive, options=self.surfel_options())

    def loss_and_grad(self, state: SplatState, views: Sequence[View], step: jax.Array, pair_capacity: int,
                      bins: Sequence[TileLists] | None = None) -> tuple[Gaussians, Evidence]:
        """Gradient of the mean loss over the views, and the evidence; jittable with ``pair_capacity`` static."""
        degree = schedule.sh_degree(step, self.config.sh_every)
        options, weights, ratio = self.surfel_options(pair_capacity), self.regularisers(step), self.config.depth_ratio

        def draw(gaussians: Gaussians, probe: jax.Array, view: View, lists: TileLists | None) -> SurfelOutput:
            return render_surfels(gaussians, view.camera, alive=state.alive, background=view.background,
                                  sh_degree=degree, probe=probe, options=options, lists=lists)

        def regularise(out: SurfelOutput, view: View) -> jax.Array:
            return regularisation(out, view.camera, weights, ratio)

        of_view = partial(unit.view_loss_and_grad, draw, state.gaussians, regularise=regularise)
        return unit.loss_and_grad(of_view, state.gaussians, views, bins)

    def reach(self, state: SplatState, camera: Camera, drift: Gaussians) -> jax.Array:
        """[N] bool: rows that a render of ``camera`` may touch after any move within ``drift``."""
        return may_touch_surfels(state.gaussians, drift, camera, alive=state.alive, options=self.surfel_options())

    def render(self, gaussians: Gaussians, camera: Camera, background: jax.Array,
               pair_capacity: int) -> tuple[jax.Array, jax.Array]:
        """([H, W, 3] unclamped image, [] int32 tile-row pairs wanted) of exported rows, all alive, SH degree 3."""
        out = self.maps(gaussians, camera, background, pair_capacity)
        return out.image, out.pairs

    def surface(self, gaussians: Gaussians, camera: Camera, background: jax.Array,
                pair_capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(image [H, W, 3], depth of the surface [H, W] in world units, tile-row pairs wanted) of exported rows.

        The depth is 0 where half or more of the light passes.
        """
        out = self.maps(gaussians, camera, background, pair_capacity)
        depth = jnp.where(out.alpha > SOLID, surface_depth(out, self.config.depth_ratio), 0)
        return out.image, depth, out.pairs

    def maps(self, gaussians: Gaussians, camera: Camera, background: jax.Array, pair_capacity: int) -> SurfelOutput:
        """All that a view of exported rows shows, all alive, SH degree 3; NaN when the pairs exceed their room."""
        return render_surfels(gaussians, camera, background=background, options=self.surfel_options(pair_capacity))

    def regularisers(self, step: jax.Array) -> Regularisers:
        """The weights of the regularisers at ``step`` (spec §2.6)."""
        config = self.config
        return Regularisers(
            jnp.where(step > config.normal_from, jnp.float32(config.normal_weight), 0),
            jnp.where(step > config.distortion_from, jnp.float32(config.distortion_weight), 0))

    def surfel_options(self, pair_capacity: int | None = None) -> SurfelOptions:
        """How to render, with a static room for tile-row pairs."""
        config = self.config
        return SurfelOptions(pair_capacity, config.near, config.far, config.centre_cutoff)


@partial(jax.jit, static_argnames="options")
def _scope(gaussians: Gaussians, alive: jax.Array, camera: Camera, options: SurfelOptions) -> tuple[Any, Any]:
    return count_surfel_pairs(gaussians, camera, alive=alive, options=options)
