"""The phase task graph (paper §4.1.2): which phases a task unit passes through, in which legal order, at
what cost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sched.errors import PlanError

Amount = Any  # a number, or an array with one entry per unit

PIPELINES = ("3dgs", "2dgs", "taming", "dash")
REGIMES = ("dp", "mp")
PROFILE_VERSION = 1

STRUCTURAL = {  # events that advance the structural version, by pipeline (spec §5)
    "3dgs": ("densify", "prune", "opacity_reset", "sh_degree"),
    "2dgs": ("densify", "prune", "opacity_reset", "sh_degree"),
    "taming": ("score", "densify", "prune", "opacity_reset", "sh_degree", "optimizer"),
    "dash": ("densify", "prune", "opacity_reset", "sh_degree", "resolution"),
}


@dataclass(frozen=True)
class Event:
    """A phase operator bound to a task unit."""

    unit: int  # position in the schedule
    phase: str


@dataclass(frozen=True)
class PhaseGraph:
    """Legal order of one unit's phases, and where overlap may begin and must be validated."""

    phases: tuple[str, ...]  # in one legal order
    edges: tuple[tuple[str, str], ...]  # (before, after)
    communication: tuple[str, ...]  # phases on the communication lane; the others compute
    launch: str  # phase of A that may run beside B
    observes: str  # first phase of B that reads mutable state: validation comes before it
    barriers: tuple[str, ...]  # structural events that synchronise everything

    def bind(self, unit: int) -> tuple[Event, ...]:
        """This graph's phase operators for one unit, in legal order."""
        return tuple(Event(unit, phase) for phase in self.phases)

    def legal(self, trace: list[Event]) -> bool:
        """Whether a trace of events keeps the order of the phases within every unit and has no phase
        twice.
        """
        at = {event: i for i, event in enumerate(trace)}
        return len(at) == len(trace) and all(
            at[Event(unit, a)] < at[Event(unit, b)]
            for unit in {e.unit for e in trace}
            for a, b in self.edges
            if Event(unit, a) in at and Event(unit, b) in at
        )


def phase_graph(pipeline: str = "3dgs", regime: str = "dp") -> PhaseGraph:
    """The graph of a pipeline in data (dp) or mixed (mp) parallelism. Raises ``PlanError`` for unknown
    names.

    In mp projected rows travel to the ranks that render them (``gather``), and their gradients travel back
    (``exchange``); in dp ``exchange`` sums replicas. ``structural`` comes last, only in steps with such an
    event.
    """
    if pipeline not in PIPELINES:
        raise PlanError(f"pipeline {pipeline!r} is unknown; choose one of {', '.join(PIPELINES)}")
    if regime not in REGIMES:
        raise PlanError(f"parallel regime {regime!r} is unknown; choose one of {', '.join(REGIMES)}")
    gather = ("gather",) if regime == "mp" else ()
    phases = ("scope", "preprocess", *gather, "render", "backward", "exchange", "update", "structural")
    return PhaseGraph(
        phases,
        tuple(pairwise(phases)),
        (*gather, "exchange"),
        "exchange",
        "preprocess",
        STRUCTURAL[pipeline],
    )


@dataclass(frozen=True)
class PhaseCost:
    """Duration of one phase: ``seconds + per_view · views + per_row · rows`` on one rank."""

    seconds: float = 0.0  # per unit
    per_view: float = 0.0  # seconds per view
    per_row: float = 0.0  # seconds per row in scope, summed over the views

    def of(self, views: float, rows: Amount) -> Amount:
        """Seconds for ``views`` views that together have ``rows`` rows in scope."""
        return self.seconds + self.per_view * views + self.per_row * rows


@dataclass(frozen=True)
class PhaseProfile:
    """Measured costs of a pipeline's phases and sizes of what is alive; ``docs/scheduling.md`` has the
    JSON schema.
    """

    pipeline: str
    regime: str
    rows: int  # primitives in the measured model
    geometry_bytes: int  # of one row's published geometry fields
    colour_bytes: int  # of one row's published colour fields
    live_view_bytes: int  # activations of one view in flight
    phases: dict[str, PhaseCost] = field(default_factory=dict)

    @property
    def row_bytes(self) -> int:
        """Bytes of one published row."""
        return self.geometry_bytes + self.colour_bytes

    def seconds(self, phase: str, views: float, rows: Amount) -> Amount:
        """Duration of ``phase``; 0 for a phase the profile does not have."""
        return self.phases.get(phase, PhaseCost()).of(views, rows)

    def compute_seconds(self, views: float, rows: Amount) -> Amount:
        """From state observation to the end of backward, on one rank."""
        return sum(self.seconds(phase, views, rows) for phase in ("preprocess", "render", "backward"))

    def live_bytes(self, views: int, rows: Amount) -> Amount:
        """A unit in flight: activations of its views and the staged gradients of its rows."""
        return self.live_view_bytes * views + self.row_bytes * rows


NOMINAL = PhaseProfile(  # roughly chia_apartments at half size on one CPU core per rank: measure your own
    "3dgs",
    "dp",
    rows=48_000,
    geometry_bytes=44,
    colour_bytes=192,
    live_view_bytes=64 << 20,
    phases={
        "scope": PhaseCost(per_view=0.015),
        "preprocess": PhaseCost(per_view=0.01, per_row=1e-6),
        "render": PhaseCost(per_view=0.07, per_row=7e-6),
        "backward": PhaseCost(per_view=0.13, per_row=13e-6),
        "exchange": PhaseCost(seconds=0.01),
        "update": PhaseCost(per_row=2e-7),
    },
)


def load_profile(path: str | Path) -> PhaseProfile:
    """Read a phase profile from JSON. Raises ``PlanError`` that names the file and the field."""
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise PlanError(f"{path}{line}: is not JSON; write the profile anew") from error
    if not isinstance(data, dict) or data.get("format") != "odin-phase-profile":
        raise PlanError(f"{path}: field format is not 'odin-phase-profile'")
    if data.get("version") != PROFILE_VERSION:
        raise PlanError(
            f"{path}: field version is {data.get('version')!r}; this program reads {PROFILE_VERSION}"
        )
    return _profile(path, data)


def save_profile(profile: PhaseProfile, path: str | Path) -> None:
    """Write a phase profile as JSON."""
    names = ("pipeline", "regime", "rows", "geometry_bytes", "colour_bytes", "live_view_bytes")
    data = {
        "format": "odin-phase-profile",
        "version": PROFILE_VERSION,
        **{name: getattr(profile, name) for name in names},
        "phases": {name: vars(cost) for name, cost in profile.phases.items()},
    }
    Path(path).write_text(json.dumps(data, indent=1) + "\n")


def _profile(path: str | Path, data: dict) -> PhaseProfile:
    phases = data.get("phases")
    if not isinstance(phases, dict):
        raise PlanError(f"{path}: field phases must map phase names to seconds, per_view and per_row")
    costs = {}
    for name, cost in phases.items():
        if not isinstance(cost, dict) or not set(cost) <= {"seconds", "per_view", "per_row"}:
            raise PlanError(f"{path}: field phases.{name} may have seconds, per_view and per_row only")
        costs[name] = PhaseCost(**{key: _number(path, f"phases.{name}.{key}", v) for key, v in cost.items()})
    sizes = {
        key: int(_number(path, key, data.get(key)))
        for key in ("rows", "geometry_bytes", "colour_bytes", "live_view_bytes")
    }
    known = phase_graph(str(data.get("pipeline")), str(data.get("regime"))).phases
    unknown = [name for name in costs if name not in known]
    if unknown:
        raise PlanError(f"{path}: field phases.{unknown[0]} is no phase; the phases are {', '.join(known)}")
    return PhaseProfile(data["pipeline"], data["regime"], phases=costs, **sizes)


def _number(path: str | Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise PlanError(f"{path}: field {name} must be a number of at least 0, not {value!r}")
    return value
