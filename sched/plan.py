"""The plan: everything the scheduler decides before training, as one frozen value (paper §4.2, "scheduled
graph").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sched.capture import Capture
from sched.errors import PlanError
from sched.windows import StructuralRule, Window, structural_event

CONTROLS = ("lp", "sds", "sas", "dds", "das", "hogwild")  # what an ablation may leave out
HOGWILD = (
    "lp",
    "sds",
    "das",
)  # "hogwild" leaves out these and every window is a candidate: nothing ever waits


@dataclass(frozen=True)
class PlanOptions:
    """How to plan; every value is kept in the plan."""

    batch: int = 4  # views per task unit, over all ranks
    regions: int = 4  # logical groups K
    top_k: int = 16  # neighbours retained per view in the locality graph
    track_cap: float = 99.9  # percentile of track length above which a track is thinned
    epochs: int = 8  # epochs with an order of their own; a longer run repeats them
    seed: int = 0  # of everything random in the plan
    graph: str = "tracks"  # locality graph: tracks, geometry or none
    cohesion: float = 0.5  # weight of coupling within a unit against Eq. 2; 0 is Eq. 2 alone
    refine_sweeps: int = 8  # rounds of local search per epoch where geometry is known; 0 is none
    coupling_limit: float = 0.7  # Jaccard similarity above which a window is blocking
    memory_gb: float | None = None  # budget for two units in flight per rank, 10⁹ bytes; None: no limit
    ranks: int = 1  # ranks that share a unit's views
    without: tuple[str, ...] = ()  # ablation: left out, of lp, sds, sas, dds, das; or hogwild

    def leaves_out(self, part: str) -> bool:
        """Whether the ablation removes ``part`` (lp, sds, sas, dds or das)."""
        return part in self.without or ("hogwild" in self.without and part in HOGWILD)

    def check(self) -> None:
        """Raise ``PlanError`` naming the first value out of range."""
        for name, low in (
            ("batch", 1),
            ("regions", 1),
            ("top_k", 1),
            ("epochs", 1),
            ("refine_sweeps", 0),
            ("ranks", 1),
        ):
            if getattr(self, name) < low:
                raise PlanError(
                    f"--{name.replace('_', '-')} must be at least {low}, not {getattr(self, name)}"
                )
        if self.seed < 0:
            raise PlanError(f"--seed must be at least 0, not {self.seed}")
        if self.graph not in ("tracks", "geometry", "none"):
            raise PlanError(f"--graph {self.graph!r} is unknown; choose tracks, geometry or none")
        for name, value in (("cohesion", self.cohesion), ("coupling-limit", self.coupling_limit)):
            if not 0 <= value < float("inf"):
                raise PlanError(f"--{name} must be a number of at least 0, not {value}")
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise PlanError(f"--memory-gb must be above 0, not {self.memory_gb}")
        unknown = [part for part in self.without if part not in CONTROLS]
        if unknown:
            raise PlanError(f"--without {unknown[0]!r} is unknown; choose of {', '.join(CONTROLS)}")
        if self.batch % self.ranks:
            raise PlanError(
                f"--batch {self.batch} cannot be shared equally by {self.ranks} ranks; "
                f"use a multiple of {self.ranks}"
            )


@dataclass(frozen=True)
class PlanStats:
    """What planning found; for people and reports, not for the runtime."""

    edges: int  # of the locality graph
    unseen_views: int  # views without tracks: nothing is known of their coupling
    coupling: float  # mean over windows of the largest retained weight between the two units
    random_coupling: float  # the same in random order
    share: (
        float  # mean share of a unit's rows that the next unit reads, over SfM points; NaN without geometry
    )
    random_share: float  # the same in random order


@dataclass(frozen=True, eq=False)
class Plan:
    """Unit order, windows and groups for one capture. Steps are 0-based here; a run of any length repeats
    the plan.
    """

    options: PlanOptions
    digest: str  # of the capture (names, tracks, poses)
    views: tuple[str, ...]  # names; the indices below point here
    labels: np.ndarray  # [V] int32 logical group of each view
    region_coupling: np.ndarray  # [K, K] mean weight between groups
    units: np.ndarray  # [E · n, B] int32
    unit_groups: np.ndarray  # [E · n] int32, group a unit was filled from; −1 in random order
    units_per_epoch: int  # n
    n_repeats: int  # last views of the repeat unit of each epoch that occur elsewhere in the epoch
    repeat_unit: np.ndarray  # [E] int32 index within the epoch, −1 if none
    windows: tuple[Window, ...]  # one from each unit to the next; the last leads back to the first
    structural: tuple[StructuralRule, ...]  # events that make a window blocking whatever it was planned as
    launch: str  # phase of A that overlaps B
    validate: str  # phase of B before which the window is validated
    stats: PlanStats
    warnings: tuple[str, ...]  # one line each

    def unit(self, step: int) -> np.ndarray:
        """[B] view indices of 0-based ``step``."""
        return self.units[step % len(self.units)]

    def window(self, step: int) -> Window:
        """The window from 0-based ``step`` to the next, blocking if a structural event follows that step."""
        window = self.windows[step % len(self.windows)]
        if structural_event(self.structural, step + 1) is None:
            return window
        return Window("structural", window.coupling, window.share, 0.0, window.live_bytes)

    def check(self, capture: Capture) -> None:
        """Raise ``PlanError`` unless the plan was made for exactly this capture."""
        if capture.n_views != len(self.views):
            raise PlanError(
                f"the plan is for {len(self.views)} training views, this scene has {capture.n_views}; "
                "make a new plan"
            )
        other = next((i for i, name in enumerate(self.views) if name != capture.names[i]), None)
        if other is not None:
            raise PlanError(
                f"the plan has {self.views[other]!r} as training view {other}, this scene has "
                f"{capture.names[other]!r}; make a new plan"
            )
        if capture.digest() != self.digest:
            raise PlanError(
                "the scene's tracks or camera poses differ from those the plan was made for; make a new plan"
            )
