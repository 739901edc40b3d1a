"""3D Gaussian splatting: initialisation, loss and gradient, optimizer step and density control (spec §0, §1).

One iteration is ``loss_and_grad`` → ``update`` → the events that are due, each by ``apply_event``. The
released code densifies *before* the optimizer step, and there a densified scene is made of new tensors that
have no gradient, so that step does nothing; after an opacity reset the opacities alone have none.
``update`` therefore leaves all fields alone at a step with a densification, the opacities at a step with a
reset, and all at the last step (spec §0.4, §1.5); with that, its order and ours give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from splat import density, optim, schedule
from splat.bounds import may_touch
from splat.cameras import Camera
from splat.density import DensityStats
from splat.gaussians import COLOUR_FIELDS, FIELDS, GEOMETRY_FIELDS, Gaussians
from splat.options import RenderOptions
from splat.pipelines import state as states
from splat.pipelines import unit
from splat.pipelines.gs3d_config import Gs3dConfig
from splat.pipelines.mixed import MixedGaussians
from splat.pipelines.protocol import Evidence, View
from splat.pipelines.rows import AdamInputs, Rows, only, present
from splat.pipelines.state import SplatState
from splat.render import bin_view, count_pairs, render
from splat.sh import C0
from splat.tiles import TileLists

SH_REST = 15  # coefficients of degrees 1 to 3
SOLID = 0.5  # alpha above which a pixel shows a surface


class Gs3d(MixedGaussians):
    """The 3DGS pipeline; see ``splat.pipelines.protocol.Pipeline`` for the contract of each method."""

    name = "3dgs"
    geometry_fields = GEOMETRY_FIELDS
    colour_fields = COLOUR_FIELDS
    local_fields = ("stats",)

    def __init__(self, config: Gs3dConfig):
        config.check()
        self.config = config
        self._batch = config.batch if config.batch_rule == "sqrt" else 1
        make = optim.sparse_adam if config.optimizer == "sparse_adam" else optim.dense_adam
        self._optimizer: Any = make(self._batch)

    def init(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> SplatState:
        """State from points [P, 3] (world units) and colours [P, 3] uint8 (spec §0.1).

        With a cap below P a random subset of the points is taken. Raises UserError without points.
        """
        config = self.config
        points, colours = states.first_points(points, colours, config.cap, seed)
        capacity = states.capacity_for(len(points), self.row_limit, config.capacity_growth)
        return states.start(self.first_rows(points, colours, extent, seed), capacity, self._optimizer, extent, seed)

    def first_rows(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> Gaussians:
        """A row for each point (spec §0.1)."""
        rows = len(points)
        logit = np.log(self.config.start_opacity / (1 - self.config.start_opacity))
        return Gaussians(
            means=jnp.asarray(points),
            log_scales=jnp.asarray(states.start_log_scales(points, extent)),
            quats=jnp.zeros((rows, 4), jnp.float32).at[:, 0].set(1),
            opacity_logits=jnp.full(rows, logit, jnp.float32),
            sh_dc=jnp.asarray((colours.astype(np.float32) / 255 - 0.5) / C0, jnp.float32),
            sh_rest=jnp.zeros((rows, SH_REST, 3), jnp.float32),
        )

    def scope(self, state: SplatState, camera: Camera) -> tuple[jax.Array, jax.Array]:
        """([N] bool rows that a render of ``camera`` touches, [] int32 tile-row pairs); one program per
        image size.
        """
        return _scope(state.gaussians, state.alive, self.opacities(state, state.gaussians), camera, self.options())

    def bins(self, state: SplatState, views: Sequence[View], pair_capacity: int) -> tuple[TileLists, ...]:
        """The tile lists of each view, from geometry alone; jittable with ``pair_capacity`` static."""
        return unit.each(lambda view: self.lists(state, view.camera, pair_capacity), views)

    def lists(self, state: SplatState, camera: Camera, pair_capacity: int) -> TileLists:
        """The tile lists of one view."""
        return bin_view(state.gaussians, camera, pair_capacity, alive=state.alive,
                        opacities=self.opacities(state, state.gaussians), options=self.options())

    def loss_and_grad(
        self, state: SplatState, views: Sequence[View], step: jax.Array, pair_capacity: int,
        bins: Sequence[TileLists] | None = None,
    ) -> tuple[Gaussians, Evidence]:
        """Gradient of the mean loss over the views, and the evidence; jittable with ``pair_capacity`` static.

        ``bins``: what ``bins`` gives for the same geometry, views and capacity; None: made here.
        """
        degree = schedule.sh_degree(step, self.config.sh_every)
        options = self.options(pair_capacity)

        def draw(gaussians: Gaussians, probe: jax.Array, view: View, lists: TileLists | None) -> Any:
            return render(gaussians, view.camera, alive=state.alive, background=view.background, sh_degree=degree,
                          probe=probe, opacities=self.opacities(state, gaussians), options=options, lists=lists)

        of_view = partial(unit.view_loss_and_grad, draw, state.gaussians)
        return unit.loss_and_grad(of_view, state.gaussians, views, bins)

    def update(self, state: SplatState, grads: Gaussians, evidence: Evidence, step: jax.Array) -> SplatState:
        """The statistics of the unit and one optimizer step; jittable, donate ``state`` at the jit boundary.

        Fields that have no gradient at ``step`` in the released code are not stepped (see the module's text).
        """
        inputs = self.step_inputs(state, step)
        rows = self.step_rows(self.rows(state), grads, evidence.visible_count > 0, inputs)
        return self.with_rows(self.observe(state, evidence, step), rows, inputs)

    def observe(self, state: SplatState, evidence: Evidence, step: jax.Array) -> SplatState:
        """The state with the density statistics of the unit added."""
        counting = step < self.config.densify_until
        stats = DensityStats(
            state.stats.grad_accum + jnp.where(counting, evidence.magnitude, 0),
            state.stats.denom + jnp.where(counting, evidence.visible_count, 0),
        )
        return replace(state, stats=stats)

    def step_inputs(self, state: SplatState, step: jax.Array) -> AdamInputs:
        """Count, rates, stepped fields and bias corrections of the optimizer step ``step``."""
        stepped = self.stepped(step)
        count = optim.next_count(state.optimizer.count, stepped)
        return AdamInputs(count, self.learning_rates(step, state.extent), stepped, self.corrections(count))

    def corrections(self, count: jax.Array) -> jax.Array:
        """[2] bias corrections of the step that ``count`` numbers."""
        return optim.bias_corrections(count, self._batch)

    def rows(self, state: SplatState) -> Rows:
        """Parameters and moments."""
        return Rows(state.gaussians, state.optimizer.mu, state.optimizer.nu)

    def with_rows(self, state: SplatState, rows: Rows, inputs: AdamInputs) -> SplatState:
        """The state after the optimizer step that gave ``rows``."""
        return replace(
            state, gaussians=rows.params, optimizer=optim.AdamState(inputs.count, rows.mu, rows.nu)
        )

    def step_rows(self, rows: Rows, grads: Any, visible: jax.Array, inputs: AdamInputs) -> Rows:
        """One optimizer step of the given rows [M] and of the fields that they have; ``visible`` [M] bool."""
        fields = present(grads)
        updates, after = self._optimizer.update(
            grads,
            optim.AdamState(inputs.count, rows.mu, rows.nu),
            rows.params,
            learning_rates=only(inputs.rates, fields),
            stepped=only(inputs.stepped, fields),
            visible=visible,
            count=inputs.count,
            corrections=inputs.corrections,
        )
        return Rows(jax.tree.map(jnp.add, rows.params, updates), after.mu, after.nu)

    def drift(self, state: SplatState, step: jax.Array) -> Gaussians:
        """Most that each geometry parameter may move in the pending optimizer step ``step`` (design §6)."""
        inputs = self.step_inputs(state, step)
        dense = self.config.optimizer != "sparse_adam"
        return optim.worst_step(
            state.optimizer, inputs.count, inputs.rates, inputs.stepped, batch=self._batch, bias_corrected=dense
        )

    def reach(self, state: SplatState, camera: Camera, drift: Gaussians) -> jax.Array:
        """[N] bool: rows that a render of ``camera`` may touch after any move within ``drift``."""
        return may_touch(state.gaussians, drift, camera, alive=state.alive, options=self.options())

    def opacities(self, state: SplatState, gaussians: Gaussians) -> jax.Array | None:
        """[N] opacities of the rows that ``state`` is trained in, differentiable; None: the sigmoid of the logits."""
        return None

    def learning_rates(self, step: jax.Array, extent: jax.Array) -> Gaussians:
        """Rate of each field at ``step`` as a ``Gaussians`` of [] float32 (spec §0.4), × √B under the √B
        rule.
        """
        config = self.config
        rates = Gaussians(
            extent * self.position_rate(step),
            *map(
                jnp.float32,
                (config.scale_lr, config.rotation_lr, config.opacity_lr, config.sh_dc_lr, config.sh_rest_lr),
            ),
        )
        return jax.tree.map(lambda rate: rate * jnp.float32(self._batch**0.5), rates)

    def position_rate(self, step: jax.Array) -> jax.Array:
        """[] float32 learning rate of the means per unit of scene extent."""
        config = self.config
        return schedule.log_linear(config.position_lr_start, config.position_lr_end, config.position_lr_steps, step)

    def stepped(self, step: jax.Array) -> Gaussians:
        """Which fields take an optimizer step at ``step``, as a ``Gaussians`` of [] bool."""
        all_ = ~(self.densifies(step) | (step == self.config.iterations))
        return Gaussians(**{**dict.fromkeys(FIELDS, all_), "opacity_logits": all_ & ~self.resets(step)})

    def events(self, step: int) -> tuple[str, ...]:
        """Names of the events of ``due`` that are, in its order."""
        return tuple(name for name, now in self.due(step).items() if now)

    def due(self, step: int) -> dict[str, bool]:
        """Whether each structural event comes after ``step``; a new SH degree holds from ``step + 1`` on."""
        every = self.config.sh_every
        raised = (step + 1) % every == 0 and (step + 1) // every <= schedule.MAX_SH_DEGREE
        return {"densify": self.densifies(step), "reset": self.resets(step), "sh_degree": raised}

    def apply_event(self, state: Any, event: str, step: int, views: Sequence[View] = ()) -> Any:
        """The state after a structural event; runs outside jit, may change the capacity."""
        change = getattr(self, f"on_{event}", None)
        if change is None:
            raise ValueError(f"{self.name} has no event {event!r}")
        state = change(state, step, views)
        return replace(state, structural_version=state.structural_version + 1)

    def on_densify(self, state: Any, step: int, views: Sequence[View]) -> Any:
        """The state with rows cloned, split and pruned."""
        return states.after_choice(state, self.choice(state, step), self.row_limit, self.config.capacity_growth)

    def on_reset(self, state: Any, step: int, views: Sequence[View]) -> Any:
        """The state with faint opacities."""
        return states.opacities_reset(state, self.config.reset_opacity)

    def on_sh_degree(self, state: Any, step: int, views: Sequence[View]) -> Any:
        """The state itself: the degree follows from the step."""
        return state

    def render(
        self, gaussians: Gaussians, camera: Camera, background: jax.Array, pair_capacity: int
    ) -> tuple[jax.Array, jax.Array]:
        """([H, W, 3] unclamped image, [] int32 tile-row pairs wanted) of exported rows, all alive, SH
        degree 3.
        """
        options = self.options(pair_capacity)
        out = render(gaussians, camera, background=background, options=options)
        return out.image, out.pairs

    def surface(
        self, gaussians: Gaussians, camera: Camera, background: jax.Array, pair_capacity: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(image [H, W, 3], mean depth [H, W] in world units, tile-row pairs wanted) of exported rows.

        The depth is 0 where half or more of the light passes.
        """
        out = render(gaussians, camera, background=background, options=self.options(pair_capacity))
        solid = out.alpha > SOLID
        return out.image, jnp.where(solid, out.depth / jnp.where(solid, out.alpha, 1), 0), out.pairs

    def options(self, pair_capacity: int | None = None) -> RenderOptions:
        """How to render, with a static room for tile-row pairs."""
        if pair_capacity is None:
            return RenderOptions(antialias=self.config.antialias)
        return RenderOptions(antialias=self.config.antialias, pair_capacity=pair_capacity)

    @property
    def row_limit(self) -> int | None:
        """Rows that there will never be more of, as far as known; room is made for them early."""
        return self.config.rules.limit

    def densifies(self, step: Any) -> Any:
        """Whether ``step``, an int or traced, ends with a densification."""
        config = self.config
        return schedule.due(step, config.densify_every, config.densify_from, config.densify_until)

    def resets(self, step: Any) -> Any:
        """Whether ``step``, an int or traced, ends with a reset of the opacities."""
        config = self.config
        on_white = config.white_background & (step == config.densify_from) & (step < config.densify_until)
        return schedule.due(step, config.reset_every, 0, config.densify_until) | on_white

    def choice(self, state: SplatState, step: int) -> density.Choice:
        """Which rows a densification after ``step`` clones, splits and prunes."""
        return density.choose(
            state.gaussians,
            state.alive,
            state.stats.mean_gradient,
            state.extent,
            jnp.asarray(step > self.config.prune_large_from),
            self.config.rules,
        )


@partial(jax.jit, static_argnames="options")
def _scope(
    gaussians: Gaussians, alive: jax.Array, opacities: jax.Array | None, camera: Camera, options: RenderOptions
) -> tuple[jax.Array, jax.Array]:
    return count_pairs(gaussians, camera, alive=alive, opacities=opacities, options=options)
