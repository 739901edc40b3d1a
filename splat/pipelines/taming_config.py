"""Every constant of TamingGS training that is a choice: 3DGS with other defaults, a budget and a score (spec §3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from splat.errors import UserError
from splat.pipelines.gs3d_config import PUBLISHED_ITERATIONS, Gs3dConfig
from splat.taming.score import ScoreWeights


@dataclass(frozen=True)
class TamingConfig(Gs3dConfig):
    """TamingGS as published, with the interval of its budget preset. Steps are optimizer steps and count from 1."""

    options: ClassVar[str] = "taming"
    mode: Literal["multiplier", "final_count"] = "multiplier"  # what budget counts: SfM points, or rows
    budget: float = 20.0  # rows at the end, or how many times the SfM points
    densify_every: int = 500  # steps between densifications; 100 for the large presets
    sh_rest_lr: float = 0.005 / 20  # learning rate of the colour coefficients of degrees 1 to 3
    sh_rest_every: int = 16  # these coefficients are stepped every so many steps, with the gradient of all of them
    score_views: int = 10  # random training views that a densification scores rows by
    prunes: int = 27  # so many densifications prune, the first ones
    high_opacity: bool = True  # opacities are |x| and may exceed 1 after high_opacity_from
    high_opacity_from: int | None = None  # step of that switch; None: densify_until
    high_opacity_lr: float = 0.025 / 4  # learning rate of x then; a quarter, as a sigmoid's slope is at most 1/4
    score_view: float = 50.0  # weight of a view's loss in the score of its rows
    score_error: float = 50.0  # weight of the error map in a pixel's weight
    score_edges: float = 50.0  # weight of the edge map in a pixel's weight
    score_gradient: float = 25.0  # weights of a row's components in its score: mean position gradient,
    score_opacity: float = 100.0  # opacity,
    score_depth: float = 5.0  # camera z,
    score_radius: float = 10.0  # 3 σ in the image,
    score_volume: float = 25.0  # product of the scales,
    score_distance: float = 50.0  # distances from its pixels to its centre,
    score_loss: float = 10.0  # weights of its pixels,
    score_count: float = 0.1  # its pixels,
    score_blend: float = 50.0  # its share in them

    @classmethod
    def for_iterations(cls, iterations: int, **changes: object) -> TamingConfig:
        """As for 3DGS, with densifications a twentieth of the run apart, though never more than the published 500."""
        short = super().for_iterations(iterations)
        if iterations < PUBLISHED_ITERATIONS:
            short = replace(short, densify_every=min(cls.densify_every, max(50, iterations // 20)))
        return replace(short, **changes)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise UserError, naming the option of the command line, for a value that cannot work."""
        super().check()
        for name in ("sh_rest_every", "score_views"):
            if getattr(self, name) < 1:
                raise UserError(f"--taming.{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if not self.budget > 0:
            raise UserError(f"--taming.budget {self.budget}: must be more than 0")
        if self.high_opacity_from is not None and self.high_opacity_from < self.densify_until:
            raise UserError(f"--taming.high-opacity-from {self.high_opacity_from}: density control needs opacities "
                            f"below 1; give a step from {self.densify_until} (--taming.densify-until) on")

    @property
    def switch(self) -> int:
        """Step after which opacities are |x|; beyond the run where they never are."""
        if not self.high_opacity:
            return self.iterations
        return self.densify_until if self.high_opacity_from is None else self.high_opacity_from

    @property
    def weights(self) -> ScoreWeights:
        """The weights of the score."""
        return ScoreWeights(self.score_view, self.score_error, self.score_edges, self.score_gradient,
                            self.score_opacity, self.score_depth, self.score_radius, self.score_volume,
                            self.score_distance, self.score_loss, self.score_count, self.score_blend)
