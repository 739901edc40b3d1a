"""Every constant of 3DGS training that is a choice, and how the published schedule is shortened."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal, Self, get_args, get_type_hints

import tyro

from splat.density import DensityRules
from splat.errors import UserError

PUBLISHED_ITERATIONS = 30_000
SHORT_ITERATIONS = 7_000  # a run with fewer steps limits its growth, to ROWS_PER_STEP × its steps
ROWS_PER_STEP = 20
FROM_1 = ("iterations", "position_lr_steps", "batch", "sh_every", "densify_every", "reset_every", "cap", "max_scale",
          "levels", "max_rows")
INSIDE_0_1 = ("start_opacity", "reset_opacity", "start_energy", "momentum")


@dataclass(frozen=True)
class Gs3dConfig:
    """3DGS as published (spec §0.4, §1.5, §5). Steps are optimizer steps and count from 1."""

    options: ClassVar[str] = "gs3d"  # what the command line calls these
    iterations: Annotated[int, tyro.conf.Suppress] = PUBLISHED_ITERATIONS  # steps; the last one takes no optimizer step
    position_lr_start: float = 1.6e-4  # learning rate of the means at the start, per unit of scene extent
    position_lr_end: float = 1.6e-6  # learning rate of the means from position_lr_steps on
    position_lr_steps: int = 30_000  # steps over which the rate of the means falls, log-linearly
    sh_dc_lr: float = 0.0025  # learning rate of the colour coefficients of degree 0
    sh_rest_lr: float = 0.0025 / 20  # learning rate of the colour coefficients of degrees 1 to 3
    opacity_lr: float = 0.025  # learning rate of the opacity logits (0.05 in the release of 2023)
    scale_lr: float = 0.005  # learning rate of the log-scales
    rotation_lr: float = 0.001  # learning rate of the quaternions
    optimizer: Literal["adam", "sparse_adam"] = "adam"  # sparse: visible rows only, no bias correction
    batch: Annotated[int, tyro.conf.Suppress] = 1  # views B per step, for batch_rule
    batch_rule: Literal["none", "sqrt"] = "none"  # sqrt: learning rates × √B, ε/√B, β^B, as Grendel does
    sh_every: int = 1000  # steps until the next SH degree
    densify_from: int = 500  # densify after this step
    densify_until: int = 15_000  # statistics, densification and resets before this step
    densify_every: int = 100  # steps between densifications
    grad_threshold: float = 2e-4  # mean norm of the position gradient, NDC units, that makes a row grow
    split_share: float = 0.01  # growing rows larger than this share of the scene extent are split, others cloned
    prune_opacity: float = 0.005  # rows with less opacity are pruned
    prune_share: float = 0.1  # rows larger than this share of the scene extent are pruned, after prune_large_from
    prune_large_from: int = 3000  # large rows are pruned after this step
    reset_every: int = 3000  # steps between opacity resets
    reset_opacity: float = 0.01  # what opacities are reset to at most
    white_background: bool = False  # one more opacity reset at densify_from; on with --background white
    start_opacity: float = 0.1  # opacity of the first rows
    cap: Annotated[int | None, tyro.conf.Suppress] = None  # most rows there may ever be; None: no limit
    growth_limit: int | None = None  # rows from which on densification adds none; None: 20 × steps below 7,000 steps
    capacity_growth: float = 1.5  # ratio of one row capacity to the next; each change recompiles the step
    antialias: bool = False  # scale opacity by the footprint lost to the low-pass filter

    @classmethod
    def for_iterations(cls, iterations: int, **changes: object) -> Self:
        """The published schedule, shortened in proportion when there are fewer than 30,000 steps.

        Densification keeps its interval, because each needs enough views to judge by, and lasts longer, because few
        of them are left. Opacity resets, which take hundreds of steps to recover from, come every 3000 steps at any
        length. Below 7,000 steps rows stop growing at 20 per step of the run: more could not be trained in it.
        ``changes`` replace fields of the result.
        """
        if iterations >= PUBLISHED_ITERATIONS:
            return replace(cls(iterations=iterations), **changes)  # type: ignore[arg-type]
        share = iterations / PUBLISHED_ITERATIONS
        short = cls(
            iterations=iterations,
            position_lr_steps=iterations,
            sh_every=max(1, round(1000 * share)),
            densify_from=min(500, max(200, round(500 * share))),
            densify_until=round(iterations * (0.7 - 0.2 * share)),
            densify_every=min(100, max(50, iterations // 20)),
            prune_large_from=max(200, round(3000 * share)),
            growth_limit=ROWS_PER_STEP * iterations if iterations < SHORT_ITERATIONS else None,
        )
        return replace(short, **changes)  # type: ignore[arg-type]

    def fitted(self, iterations: int) -> Self:
        """``for_iterations(iterations)`` with every field that differs here from its default kept as it is
        here.
        """
        changes = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default and field.name != "iterations"
        }
        return self.for_iterations(iterations, **changes)

    def check(self) -> None:
        """Raise UserError, naming the option of the command line, for a value that cannot work."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            choices = get_args(hints[name])
            if value is None or isinstance(value, bool):
                continue
            if isinstance(value, str):
                fault = "" if value in choices else f"choose {' or '.join(map(str, choices))}"
            elif not math.isfinite(value):
                fault = "must be a finite number"
            elif name in FROM_1:
                fault = "" if value >= 1 else "must be at least 1"
            elif name in INSIDE_0_1:
                fault = "" if 0 < value < 1 else "must be between 0 and 1, both excluded"
            elif name == "capacity_growth":
                fault = "" if value > 1 else "must be more than 1"
            elif name in ("position_lr_start", "position_lr_end"):
                fault = "" if value > 0 else "must be more than 0"
            else:
                fault = "" if value >= 0 else "must be at least 0"
            if fault:
                raise UserError(f"--{self.options}.{name.replace('_', '-')} {value}: {fault}")

    @property
    def rules(self) -> DensityRules:
        """The thresholds of density control."""
        return DensityRules(
            self.grad_threshold, self.split_share, self.prune_opacity, self.prune_share, self.cap, self.growth_limit
        )
