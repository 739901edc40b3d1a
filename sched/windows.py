"""Static asynchronous scheduling (SAS, paper §4.2): which transitions A→B between units may overlap.

A candidate window launches A's publication asynchronously after A's backward and is validated before B
observes state; a blocking one waits for all of it. The plan never admits a read: the runtime validates every
candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sched.cluster import Cluster
from sched.phases import Event, PhaseGraph, PhaseProfile
from sched.rlg import Rlg
from sched.rowsets import count, shared

CANDIDATE = "weak coupling"
BLOCKING = ("high coupling", "memory", "structural", "all blocking")


@dataclass(frozen=True)
class Window:
    """The transition from one unit to the next, as planned."""

    reason: str  # CANDIDATE, or one of BLOCKING
    coupling: float  # largest retained RLG weight between a view of A and a view of B
    share: float  # predicted share of A's rows that B reads; NaN without geometry
    seconds: float  # expected length of the overlap
    live_bytes: float  # of both units in flight

    @property
    def blocking(self) -> bool:
        """Whether B waits for all of A's publication."""
        return self.reason != CANDIDATE


@dataclass(frozen=True)
class StructuralRule:
    """A structural event after the steps ``first``, ``first + every``, … up to and including ``last``
    (1-based).
    """

    event: str
    first: int
    last: int
    every: int

    def due(self, step: int) -> bool:
        """Whether the event follows 1-based ``step``."""
        return self.first <= step <= self.last and (step - self.first) % self.every == 0


@dataclass(frozen=True)
class WindowRules:
    """When a window is planned as blocking."""

    coupling_limit: float = 0.7  # Jaccard similarity of two views above which their units do not overlap
    memory_bytes: float = float("inf")  # budget for the live state of two units in flight, per rank
    ranks: int = 1  # ranks that share a unit's views
    all_blocking: bool = False  # the control without SAS


def unit_coupling(rlg: Rlg, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Largest retained weight between the views of paired units: ``first`` [n, B], ``second`` [n, C] → [n].

    A view in both units counts as weight 1: it reads what it wrote.
    """
    n, batch, other = len(first), first.shape[1], second.shape[1]
    row = np.repeat(first, other, axis=1).ravel()
    col = np.tile(second, (1, batch)).ravel()
    weight = np.asarray(rlg.weights[row, col]).ravel()
    return np.where(row == col, 1.0, weight).reshape(n, -1).max(axis=1)


def plan_windows(
    units: np.ndarray,
    rlg: Rlg,
    profile: PhaseProfile,
    rules: WindowRules,
    *,
    scopes: np.ndarray | None = None,
    n_points: int = 0,
    cluster: Cluster | None = None,
) -> tuple[Window, ...]:
    """One window from each unit to the next, the last to the first, since longer runs repeat the plan.

    ``units`` [n, B]; ``scopes`` packed rows [V, W] of ``n_points`` sampled points or None: then a unit is
    taken to touch all rows.
    """
    following = np.roll(units, -1, axis=0)
    coupling = unit_coupling(rlg, units, following)
    share = np.full(len(units), np.nan)
    touched = np.ones(len(units))
    if scopes is not None:
        unions = np.bitwise_or.reduce(scopes[units], axis=1)
        share = shared(unions, np.roll(unions, -1, axis=0))
        touched = count(unions) / max(n_points, 1)
    views = -(-units.shape[1] // rules.ranks)
    rows = touched * profile.rows
    publish = profile.seconds("exchange", 0, rows) + profile.seconds("update", 0, rows)
    if cluster is not None:
        publish = publish + np.array([cluster.all_reduce_seconds(size) for size in rows * profile.row_bytes])
    compute = profile.compute_seconds(views, np.roll(rows, -1))
    seconds = np.minimum(publish * (1 - np.nan_to_num(share)), compute)
    live = profile.live_bytes(2 * views, rows + np.roll(rows, -1))
    reasons = np.select(
        [np.full(len(units), rules.all_blocking), coupling > rules.coupling_limit, live > rules.memory_bytes],
        ["all blocking", "high coupling", "memory"],
        CANDIDATE,
    )
    columns = (reasons, coupling, share, seconds, live)
    return tuple(
        Window(str(r), float(c), float(s), float(t), float(m)) for r, c, s, t, m in zip(*columns, strict=True)
    )


def points_of(graph: PhaseGraph, unit: int) -> tuple[Event, Event]:
    """(launch, validation) events of the window that starts at ``unit`` (0-based step)."""
    return Event(unit, graph.launch), Event(unit + 1, graph.observes)


def structural_event(rules: Iterable[StructuralRule], step: int) -> str | None:
    """The first structural event due after 1-based ``step``, or None."""
    return next((rule.event for rule in rules if rule.due(step)), None)
