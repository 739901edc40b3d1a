"""DashGS: 3DGS trained from coarse photos to fine ones, with a budget of rows that follows the resolution (spec §4).

The renderer, the loss and the optimizer are those of 3DGS. ``survey`` finds once at which resolution to train when; the
scale changes only after steps with a densification, each change is a structural event. The density control prunes
first and then grows the rows with the largest gradients up to a target, which the resolution *of the next units* sets,
out of a budget with momentum. First rows and momentum are part of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from splat import density, schedule
from splat.errors import UserError
from splat.pipelines import frequency
from splat.pipelines.dash_config import DashConfig
from splat.pipelines.gs3d import Gs3d
from splat.pipelines.protocol import View
from splat.pipelines.rows import with_more
from splat.pipelines.state import SplatState

SURVEYED = ("max_scale", "start_energy", "levels")  # options that the survey depends on


@struct.dataclass
class DashState(SplatState):
    """The state of 3DGS and the budget."""

    first_rows: jax.Array  # [] int32 rows at the start, N_init
    momentum: jax.Array  # [] int32 rows that the budget allows beyond those


class Dash(Gs3d):
    """The DashGS pipeline; see ``splat.pipelines.protocol`` for the contract of each method."""

    name = "dash"

    def __init__(self, config: DashConfig, resolutions: frequency.Schedule | None = None):
        """``resolutions``: as ``survey`` finds them; None: full size from the start."""
        super().__init__(config)
        self.config: DashConfig = config
        self.resolutions = resolutions or frequency.Schedule((1.0,), (1.0,))

    def survey(self, photos: Sequence[np.ndarray]) -> dict[str, Any]:
        """The levels of resolution for photos [H, W, 3] uint8, as JSON values."""
        found = frequency.schedule_of(photos, *(getattr(self.config, name) for name in SURVEYED))
        return {**found._asdict(), **{name: getattr(self.config, name) for name in SURVEYED}}

    def with_survey(self, found: dict[str, Any]) -> Dash:
        """The pipeline with the levels that ``survey`` found. Raises UserError for those of other options."""
        for name in SURVEYED:
            before, now = found.get(name), getattr(self.config, name)
            if before != now:
                raise UserError(f"--dash.{name.replace('_', '-')} {now}: the run that is continued began with {before}"
                                "; keep that or start a new run")
        surveyed = copy(self)
        surveyed.resolutions = frequency.Schedule(tuple(found["scales"]), tuple(found["energies"]))
        return surveyed

    def init(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> DashState:
        """The state of 3DGS with the first budget."""
        state = super().init(points, colours, extent, seed)
        rows = int(np.count_nonzero(state.alive))
        return with_more(DashState, state, first_rows=jnp.int32(rows),
                         momentum=jnp.int32(self.config.start_momentum * rows))

    def scale(self, step: int) -> int:
        """⌊s⌋ of the schedule at the last densification before unit ``step``; 1 after the last one.

        With ``powers_of_two`` it is the largest of those that is not above ⌊s⌋.
        """
        config = self.config
        if step >= config.densify_until:
            return 1
        last = (step - 1) // config.densify_every * config.densify_every
        at = last if last > config.densify_from else 0
        scale = int(self.resolutions.scale(at, config.densify_until))
        return 1 << scale.bit_length() - 1 if config.powers_of_two else scale

    def due(self, step: int) -> dict[str, bool]:
        """The events of 3DGS, and "resolution" where the next unit has another scale."""
        return {**super().due(step), "resolution": self.scale(step + 1) != self.scale(step)}

    def on_resolution(self, state: DashState, step: int, views: Sequence[View]) -> DashState:
        """The state itself: the scale follows from the step."""
        return state

    def position_rate(self, step: jax.Array) -> jax.Array:
        """[] float32: the first rate until the scale falls below 2, from there log-linear (spec §4.2)."""
        config = self.config
        start = min(self.resolutions.fine_from(config.densify_until), config.position_lr_steps - 1)
        return schedule.log_linear(config.position_lr_start, config.position_lr_end, config.position_lr_steps - start,
                                   jnp.maximum(step - start, 0))

    def on_densify(self, state: DashState, step: int, views: Sequence[View]) -> DashState:
        """The state after pruning, growth up to the target, and with the momentum of the rows that wanted to grow."""
        config = self.config
        grown = super().on_densify(state, step, views)
        wanting = int(_wanting(state, config.grad_threshold, config.prune_opacity))
        momentum = int(config.momentum * int(state.momentum) + min(config.most_added, wanting))
        return replace(grown, momentum=jnp.int32(max(int(state.momentum), momentum)))

    def choice(self, state: DashState, step: int) -> density.Choice:
        """Rows to prune, and to grow as far as the target of ``step`` allows."""
        large = jnp.asarray(step > self.config.prune_large_from)
        return density.choose(state.gaussians, state.alive, state.stats.mean_gradient, state.extent, large,
                              self.config.rules, jnp.int32(self.target(state, step)))

    @property
    def row_limit(self) -> int | None:
        """As for 3DGS, or the fixed budget where that is less."""
        return min((limit for limit in (super().row_limit, self.config.max_rows) if limit is not None), default=None)

    def budget(self, state: DashState) -> int:
        """N_max: most rows that the schedule leads to."""
        return self.config.max_rows or int(state.first_rows) + int(state.momentum)

    def wanted(self, state: DashState, step: int) -> float:
        """N*: rows that the budget and the scale of the units after ``step`` allow (spec §4.3)."""
        budget, first, until = self.budget(state), int(state.first_rows), self.config.densify_until
        if step + self.config.densify_every >= until:
            return budget
        return first + (budget - first) / self.scale(step + 1) ** (2 - step / until)

    def target(self, state: DashState, step: int) -> int:
        """Rows up to which a densification after ``step`` grows: towards N*, by a share at most.

        At least as many as there are: with no growth wanted, rows that were pruned are regrown.
        """
        rows = int(np.count_nonzero(state.alive))
        share = (self.wanted(state, step) - rows) / max(rows, 1)
        return int(rows * (1 + min(max(share, 0.0), self.config.most_growth)))

    def told(self, state: DashState, step: int) -> dict[str, Any]:
        """N_max, N* and scale after the events of ``step``."""
        return {"budget": self.budget(state), "target": int(self.wanted(state, step)), "scale": self.scale(step + 1)}


@jax.jit
def _wanting(state: SplatState, threshold: float, faint: float) -> jax.Array:
    """[] int32 rows that are not pruned and whose gradient makes them grow."""
    kept = state.alive & (state.gaussians.opacities >= faint)
    return jnp.sum(kept & (state.stats.mean_gradient >= threshold), dtype=jnp.int32)
