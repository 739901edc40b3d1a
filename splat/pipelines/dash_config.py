"""Every constant of DashGS training that is a choice: 3DGS with other defaults, and a budget (spec §4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from splat.pipelines.gs3d_config import PUBLISHED_ITERATIONS, Gs3dConfig

NEVER = 1_000_000_000  # a step that no run reaches
DENSIFY_SHARE = 0.9  # of the steps of a run, that densification lasts: 27,000 of 30,000


@dataclass(frozen=True)
class DashConfig(Gs3dConfig):
    """DashGS as published, over 3DGS with opacity rate 0.025. Steps are optimizer steps and count from 1."""

    options: ClassVar[str] = "dash"
    densify_until: int = 27_000  # densification, resets and lower resolutions before this step
    prune_large_from: int = NEVER  # no row is pruned for its size
    max_scale: int = 8  # photos are never made smaller than by this factor
    start_energy: float = 0.25  # least share of a photo's |FFT| that training starts with
    levels: int = 32  # resolution levels, of equal steps of |FFT|
    powers_of_two: bool = False  # train at scales 1, 2, 4 and 8 only, the next finer ones: fewer programs to compile
    max_rows: int | None = None  # budget of rows, fixed; None: by momentum
    start_momentum: float = 5.0  # rows that the budget first allows beyond the first rows, in units of those
    momentum: float = 0.98  # share of the momentum that a densification keeps
    most_added: int = 1_000_000  # most rows that one densification adds to the momentum
    most_growth: float = 0.2  # most growth of the rows in one densification, share

    @classmethod
    def for_iterations(cls, iterations: int, **changes: object) -> DashConfig:
        """As for 3DGS, but densification lasts 9 tenths of the steps, whatever their number."""
        short = super().for_iterations(iterations)
        if iterations < PUBLISHED_ITERATIONS:
            short = replace(short, densify_until=round(DENSIFY_SHARE * iterations), prune_large_from=NEVER)
        return replace(short, **changes)  # type: ignore[arg-type]
