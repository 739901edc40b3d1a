"""The choices of 2DGS training: those of 3DGS with other defaults, and the regularisers (spec §2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import tyro

from splat.errors import UserError
from splat.pipelines.gs3d_config import PUBLISHED_ITERATIONS, Gs3dConfig
from splat.surfel.options import SurfelOptions


@dataclass(frozen=True)
class Gs2dConfig(Gs3dConfig):
    """2DGS as published (spec §2). Steps are optimizer steps and count from 1."""

    options: ClassVar[str] = "gs2d"
    opacity_lr: float = 0.05  # learning rate of the opacity logits
    prune_opacity: float = 0.05  # rows with less opacity are pruned
    antialias: Annotated[bool, tyro.conf.Suppress] = False  # surfels have a low-pass filter of their own
    normal_weight: float = 0.05  # weight of the disagreement of normals with the depth map; 0: none
    normal_from: int = 7000  # that term is added after this step
    distortion_weight: float = 0.0  # weight of the spread of hits along a ray (1000 for DTU as published); 0: none
    distortion_from: int = 3000  # that term is added after this step
    # Share of the median depth in the surface that normals are compared with, the rest being the expected depth:
    # 0 for unbounded scenes, 1 for objects
    depth_ratio: float = 0.0
    near: float = SurfelOptions.near  # hits closer than this are not seen, world units
    far: float = SurfelOptions.far  # depth at which the distortion's depth coordinate is 1, world units
    centre_cutoff: float = SurfelOptions.centre_cutoff  # radius of the disk whose box the low-pass filter is in

    @classmethod
    def for_iterations(cls, iterations: int, **changes: object) -> Self:
        """As for 3DGS; the regularisers start at the same share of the run as in the published one."""
        share = min(iterations / PUBLISHED_ITERATIONS, 1.0)
        starts = {name: round(getattr(cls, name) * share) for name in ("normal_from", "distortion_from")}
        return super().for_iterations(iterations, **{**starts, **changes})

    def check(self) -> None:
        """Raise UserError, naming the option of the command line, for a value that cannot work."""
        super().check()
        if self.depth_ratio > 1:
            raise UserError(f"--{self.options}.depth-ratio {self.depth_ratio}: must be between 0 and 1")
        if self.antialias:
            raise UserError(f"--{self.options}.antialias: surfels have a low-pass filter of their own; leave it out")
        for name in ("near", "centre_cutoff"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{self.options}.{name.replace('_', '-')} {getattr(self, name)}: must be more than 0")
        if self.far <= self.near:
            raise UserError(f"--{self.options}.far {self.far}: must be more than --{self.options}.near {self.near}")
