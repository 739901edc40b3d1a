"""TamingGS: 3DGS with a budget of rows that is reached exactly, and rows chosen by score (spec §3).

The renderer and the loss are those of 3DGS; its backward pass already adds up per row. Four things differ:

* Densification grows along a curve to the budget, by a score over some training views, and prunes half of what 3DGS
  would (``splat.taming``). The score is a structural phase: it runs where the state has settled, the same on all hosts.
* The colour coefficients of degrees 1 to 3 have an Adam of their own with its own count of steps, and are stepped every
  16th step with the gradient of all 16. The sum is a rank's own, over its views, until it is published in that step: a
  row then is updated that the unit itself may not have seen, so the evidence names these ``carried`` rows. A sum begins
  anew at a densification, whose rows have no gradient in the released code either.
* After the last densification opacities are |x| with x trained and started at the opacity, so that they may exceed 1;
  a response stays capped at 0.99. The moments of x are those of its logit by the chain rule, g_x = g_logit/(o(1 − o)),
  so Adam goes on at its pace, and the rate is a quarter of the logit's, the most that a sigmoid let an opacity move.
  (The released code never gives x to its optimizer.) ``TamingState.exported`` has logits again.
* Sparse Adam steps these coefficients of a row that was visible in any of the 16 steps and has a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from splat import density, optim, schedule
from splat.bounds import may_touch
from splat.cameras import Camera
from splat.gaussians import FIELDS, Gaussians
from splat.pipelines import state as states
from splat.pipelines.gs3d import SH_REST, Gs3d
from splat.pipelines.protocol import Evidence, View
from splat.pipelines.rows import AdamInputs, Rows, merged, only, present, with_more
from splat.pipelines.state import SplatState
from splat.pipelines.taming_config import TamingConfig
from splat.taming import choice
from splat.taming.budget import Growth, budget_of
from splat.taming.score import view_score
from splat.tiles import TileLists

SH = "sh_rest"  # the field that is not stepped every step
VIEWS = 4  # the purpose that sets the draw of scored views apart from others of the same seed
LEAST_SLOPE = 1e-6  # of the sigmoid at the switch to |x|, so that moments stay finite
MOST_OPACITY = 1 - 1e-6  # of an exported row: its logit is finite


@struct.dataclass
class TamingState(SplatState):
    """The state of 3DGS, and what the differences need."""

    sh_sum: jax.Array  # [N, 15, 3] gradient of ``sh_rest`` since its last step, summed over the rank's views
    sh_count: jax.Array  # [] int32 steps of ``sh_rest``
    high_opacity: jax.Array  # [] bool, the field ``opacity_logits`` holds x with opacity |x|
    first_rows: jax.Array  # [] int32 rows at the start
    budget: jax.Array  # [] int32 rows at the end

    @property
    def exported(self) -> Gaussians:
        """The rows as PLY files hold them: with the logit of the opacity, which is put into (0, 1)."""
        opacity = jnp.clip(jnp.abs(self.gaussians.opacity_logits), 1 - MOST_OPACITY, MOST_OPACITY)
        logits = jnp.where(self.high_opacity, jnp.log(opacity) - jnp.log1p(-opacity), self.gaussians.opacity_logits)
        return replace(self.gaussians, opacity_logits=logits)


@struct.dataclass
class TamingEvidence(Evidence):
    """What a unit did, and what it leaves to later ones."""

    sh_sum: jax.Array  # [N, 15, 3] as in the state, after the unit
    carried: jax.Array  # [N] bool: rows updated by the gradients of earlier units, in the unit that steps ``sh_rest``


@struct.dataclass
class Inputs(AdamInputs):
    """What a step needs with a second Adam; ``count`` and ``corrections`` are those of the first."""

    sh_count: jax.Array  # [] int32 steps of ``sh_rest`` after this one
    sh_corrections: jax.Array  # [2] float32


class Taming(Gs3d):
    """The TamingGS pipeline; see ``splat.pipelines.protocol`` for the contract of each method."""

    name = "taming"
    local_fields = ("stats", "sh_sum")

    def __init__(self, config: TamingConfig, views: int = 0):
        """``views``: how many training views there are, as ``survey`` finds out."""
        super().__init__(config)
        self.config: TamingConfig = config
        self.views = views

    def survey(self, photos: Sequence[np.ndarray]) -> dict[str, Any]:
        """How many training views there are; none is looked at."""
        return {"views": len(photos)}

    def with_survey(self, found: dict[str, Any]) -> Taming:
        """The pipeline for so many training views."""
        surveyed = copy(self)
        surveyed.views = int(found["views"])
        return surveyed

    def init(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> TamingState:
        """The state of 3DGS with the budget; of more points than that a random subset is taken."""
        config = self.config
        budget = budget_of(config.mode, config.budget, len(points), config.growth_limit, config.cap)
        points, colours = states.first_points(points, colours, budget, seed)
        first = super().init(points, colours, extent, seed)
        capacity = states.capacity_for(len(points), budget, config.capacity_growth)
        state = states.widened(first, max(capacity, len(first.alive)))
        return with_more(TamingState, state, sh_sum=_no_sum(len(state.alive)), sh_count=jnp.int32(0),
                         high_opacity=jnp.zeros((), bool), first_rows=jnp.int32(len(points)), budget=jnp.int32(budget))

    def loss_and_grad(self, state: TamingState, views: Sequence[View], step: jax.Array, pair_capacity: int,
                      bins: Sequence[TileLists] | None = None) -> tuple[Gaussians, TamingEvidence]:
        """As for 3DGS; the gradient of ``sh_rest`` is that of all units since its last step."""
        grads, evidence = super().loss_and_grad(state, views, step, pair_capacity, bins)
        return self.with_carried(state, grads, evidence, step, len(views))

    def with_carried(self, state: TamingState, grads: Gaussians, evidence: Evidence, step: jax.Array,
                     views: int) -> tuple[Gaussians, TamingEvidence]:
        """The mean gradient over so many ``views`` and the evidence, with what earlier units left of ``sh_rest``."""
        total = state.sh_sum + grads.sh_rest * views
        now = step % self.config.sh_rest_every == 0
        left = jnp.any(total != 0, axis=(1, 2))
        return replace(grads, sh_rest=total * (1 / views)), with_more(
            TamingEvidence, evidence, sh_sum=jnp.where(now, 0, total), carried=left & now)

    def observe(self, state: TamingState, evidence: TamingEvidence, step: jax.Array) -> TamingState:
        """The statistics of 3DGS, and the sum."""
        return cast(TamingState, replace(super().observe(state, evidence, step), sh_sum=evidence.sh_sum))

    def step_inputs(self, state: TamingState, step: jax.Array) -> Inputs:
        """As for 3DGS, with a count for each Adam."""
        both = super().step_inputs(state, step)
        first = optim.next_count(state.optimizer.count, replace(both.stepped, sh_rest=None))
        second = state.sh_count + both.stepped.sh_rest.astype(jnp.int32)
        return Inputs(first, both.rates, both.stepped, self.corrections(first), second, self.corrections(second))

    def with_rows(self, state: TamingState, rows: Rows, inputs: Inputs) -> TamingState:
        """The state after the optimizer step that gave ``rows``."""
        return cast(TamingState, replace(super().with_rows(state, rows, inputs), sh_count=inputs.sh_count))

    def step_rows(self, rows: Rows, grads: Any, visible: jax.Array, inputs: Inputs) -> Rows:
        """One step of each Adam for the fields that are its own."""
        names = present(grads)
        others = tuple(name for name in names if name != SH)
        if SH not in names:
            return super().step_rows(rows, grads, visible, inputs)
        seen = visible | jnp.any(grads.sh_rest != 0, axis=(1, 2))
        colours = super().step_rows(only(rows, (SH,)), only(grads, (SH,)), seen,
                                    replace(inputs, count=inputs.sh_count, corrections=inputs.sh_corrections))
        if not others:
            return colours
        return merged(colours, super().step_rows(only(rows, others), only(grads, others), visible, inputs))

    def stepped(self, step: jax.Array) -> Gaussians:
        """As for 3DGS, ``sh_rest`` only every so many steps."""
        fields_ = super().stepped(step)
        return replace(fields_, sh_rest=fields_.sh_rest & (step % self.config.sh_rest_every == 0))

    def exchanged_fields(self, step: int) -> tuple[str, ...]:
        """Fields that the optimizer step ``step`` changes."""
        if self.densifies(step) or step == self.config.iterations:
            return ()
        return tuple(name for name in FIELDS if name != SH or step % self.config.sh_rest_every == 0)

    def learning_rates(self, step: jax.Array, extent: jax.Array) -> Gaussians:
        """As for 3DGS, with the rate of |x| after the switch."""
        config, rates = self.config, super().learning_rates(step, extent)
        high = jnp.float32(config.high_opacity_lr * self._batch**0.5)
        return replace(rates, opacity_logits=jnp.where(step > config.switch, high, rates.opacity_logits))

    def opacities(self, state: TamingState, gaussians: Gaussians) -> jax.Array:
        """[N] |x| after the switch, the sigmoid of the logit before."""
        return jnp.where(state.high_opacity, jnp.abs(gaussians.opacity_logits), gaussians.opacities)

    def reach(self, state: TamingState, camera: Camera, drift: Gaussians) -> jax.Array:
        """[N] bool: rows that a render of ``camera`` may touch after any move within ``drift``."""
        logits, move = state.gaussians.opacity_logits, drift.opacity_logits
        most = jnp.where(state.high_opacity, jnp.log(jnp.abs(logits) + move), jax.nn.log_sigmoid(logits + move))
        return may_touch(state.gaussians, drift, camera, alive=state.alive, log_opacity=most, options=self.options())

    def due(self, step: int) -> dict[str, bool]:
        """The events of 3DGS, and the switch to |x|."""
        return {**super().due(step), "high_opacity": self.config.high_opacity and step == self.config.switch}

    def on_high_opacity(self, state: TamingState, step: int, views: Sequence[View]) -> TamingState:
        """The state with opacities in place of their logits, and the moments of those."""
        return _switched(state)

    def event_views(self, event: str, step: int, state: TamingState) -> Sequence[int]:
        """The training views that a densification scores by, drawn from (seed, step)."""
        if event != "densify":
            return ()
        random = np.random.default_rng(np.random.SeedSequence([int(state.seed), VIEWS, step]))
        return random.permutation(self.views)[: self.config.score_views].tolist()

    def on_densify(self, state: TamingState, step: int, views: Sequence[View]) -> TamingState:
        """The state with rows cloned, split and pruned, to the row what the curve allows."""
        plan, growth = self.growth(state), self.config.capacity_growth
        chosen = choice.choose(
            self.candidates(state, step), np.asarray(self.score(state, step, views)), plan.target(step),
            plan.number(step) < self.config.prunes, int(state.seed), int(state.structural_version))
        grown = states.after_choice(state, chosen, int(state.budget), growth)
        return replace(grown, sh_sum=_no_sum(len(grown.alive)))

    def growth(self, state: TamingState) -> Growth:
        """The curve of the run."""
        config = self.config
        return Growth(int(state.first_rows), int(state.budget), config.densify_from, config.densify_until,
                      config.densify_every)

    @property
    def row_limit(self) -> int | None:
        """None: room follows from the budget, which the state knows."""
        return None

    def candidates(self, state: TamingState, step: int) -> choice.Candidates:
        """What the thresholds of 3DGS say of each row (spec §1.5)."""
        large = jnp.asarray(step > self.config.prune_large_from)
        return choice.Candidates(*map(np.asarray, _candidates(state, large, self.config.rules)))

    def score(self, state: TamingState, step: int, views: Sequence[View]) -> jax.Array:
        """[N] scores of the rows, summed over ``views``; 0 without any."""
        degree, total = schedule.sh_degree(step, self.config.sh_every), jnp.zeros(len(state.alive))
        for view in views:
            total = total + view_score(state.gaussians, state.alive, state.stats.mean_gradient, degree, view,
                                       self.options(), self.config.weights)
        return total

    def told(self, state: TamingState, step: int) -> dict[str, Any]:
        """Budget and target after the events of ``step``."""
        plan = self.growth(state)
        done = max(min(step, self.config.densify_until - 1) // plan.densify_every * plan.densify_every, 0)
        target = plan.target(done) if done > plan.densify_from else plan.start
        return {"budget": plan.budget, "target": target}


def _no_sum(rows: int) -> jax.Array:
    return jnp.zeros((rows, SH_REST, 3), jnp.float32)


@jax.jit
def _switched(state: TamingState) -> TamingState:
    opacity = state.gaussians.opacities
    slope = jnp.maximum(opacity * (1 - opacity), LEAST_SLOPE)
    mu, nu = state.optimizer.mu, state.optimizer.nu
    return replace(
        state,
        gaussians=replace(state.gaussians, opacity_logits=opacity),
        optimizer=optim.AdamState(
            state.optimizer.count,
            replace(mu, opacity_logits=mu.opacity_logits / slope),
            replace(nu, opacity_logits=nu.opacity_logits / slope**2),
        ),
        high_opacity=jnp.ones((), bool),
    )



@partial(jax.jit, static_argnames="rules")
def _candidates(state: TamingState, size_prune: jax.Array, rules: density.DensityRules) -> tuple[jax.Array, ...]:
    """The fields of ``choice.Candidates``."""
    largest = jnp.max(state.gaussians.scales, axis=-1)
    wanting = state.alive & (state.stats.mean_gradient >= rules.grad_threshold)
    large = largest > rules.split_share * state.extent
    too_large = size_prune & (largest > rules.prune_share * state.extent)
    prune = state.alive & ((state.gaussians.opacities < rules.prune_opacity) | too_large)
    return state.alive, wanting & ~large, wanting & large, prune
