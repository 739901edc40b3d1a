"""A timeline of a plan on R ranks, from a phase profile, per-view scopes and a cluster description.

Each rank has a compute lane; the ranks share one communication lane, as collectives start when the last rank
is there. Admission is ``sched.hazards.decide`` and assignment ``sched.dispatch.assign``: the code the runtime
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sched.cluster import Cluster
from sched.dispatch import assign, assign_static
from sched.hazards import Action, Decision, Hazards, count, decide, high_impact, raw, war, waw
from sched.phases import PhaseProfile
from sched.rowsets import count as count_rows
from sched.rowsets import union, unpack
from sched.windows import Window


@dataclass(frozen=True)
class Scopes:
    """Rows of each view as packed words [V, W]; ``scale`` primitives stand behind each bit."""

    read: np.ndarray  # R⁺
    write: np.ndarray  # W⁺ ⊆ R⁺; also taken as the realized active rows
    n_rows: int  # bits in use
    scale: float = 1.0

    def rows(self, words: np.ndarray) -> float:
        """Primitives in a packed set."""
        return float(count(words)) * self.scale


@dataclass(frozen=True)
class Span:
    """One bar of the timeline."""

    rank: int  # −1: the communication lane
    unit: int
    phase: str
    start: float  # seconds
    end: float


@dataclass(frozen=True)
class Timeline:
    """What a simulated run took."""

    path: str
    seconds: float
    samples_per_s: float
    exposed_s: np.ndarray  # [R] seconds a rank waited for publications
    idle_share: np.ndarray  # [R] share of the run a rank did not compute
    decisions: tuple[Decision, ...]  # one per window
    spans: tuple[Span, ...]


@dataclass
class _Lanes:
    """The clock while a timeline is made."""

    free: np.ndarray  # [R] when a rank's compute lane is free
    comm: float = 0.0  # when the communication lane is free
    busy: np.ndarray = field(default_factory=lambda: np.zeros(0))
    exposed: np.ndarray = field(default_factory=lambda: np.zeros(0))
    spans: list[Span] = field(default_factory=list)

    def compute(self, rank: int, unit: int, phase: str, start: float, seconds: float) -> float:
        if seconds > 0:
            self.spans.append(Span(rank, unit, phase, start, start + seconds))
            self.busy[rank] += seconds
        self.free[rank] = start + seconds
        return self.free[rank]

    def exchange(self, unit: int, phase: str, ready: float, seconds: float) -> float:
        start = max(ready, self.comm)
        if seconds > 0:
            self.spans.append(Span(-1, unit, phase, start, start + seconds))
        self.comm = start + seconds
        return self.comm


def simulate(
    units: np.ndarray,
    windows: tuple[Window, ...],
    scopes: Scopes,
    profile: PhaseProfile,
    cluster: Cluster,
    *,
    path: str = "quality",
    dds: bool = True,
    magnitude: np.ndarray | None = None,
    tau: float = 0.2,
    structural: frozenset[int] = frozenset(),
) -> Timeline:
    """Run ``units`` [n, B] once through. ``windows`` has the n − 1 or n transitions from each unit to the
    next.

    ``path`` is "sync", "quality" or "throughput"; ``magnitude`` [V, n_rows] is gradient evidence per view,
    without which no read is delayed; ``structural`` has the positions of units that a structural event
    follows.
    """
    lanes = _Lanes(np.zeros(cluster.ranks), busy=np.zeros(cluster.ranks), exposed=np.zeros(cluster.ranks))
    view_rows = count_rows(scopes.read) * scopes.scale
    decisions: list[Decision] = []
    parts: tuple[float, float, float] = (
        0.0,
        0.0,
        0.0,
    )  # when B's geometry, B's colour and all of A are published
    skipped = np.zeros_like(scopes.read[0])
    for position, unit in enumerate(units):
        backward_end = _compute(lanes, position, unit, view_rows, profile, cluster, parts, path, dds)
        last = position + 1 == len(units)
        following = unit if last else units[position + 1]
        decision, urgent, skipped = _admit(
            unit,
            following,
            None if last else windows[position],
            scopes,
            path,
            tau,
            magnitude,
            skipped,
            last or position in structural,
        )
        if not last:
            decisions.append(decision)
        parts = _publish(lanes, position, unit, decision, urgent, backward_end, scopes, profile, cluster)
    seconds = max(float(lanes.free.max()), lanes.comm)
    return Timeline(
        path,
        seconds,
        units.size / seconds,
        lanes.exposed,
        1 - lanes.busy / seconds,
        tuple(decisions),
        tuple(lanes.spans),
    )


def _compute(
    lanes: _Lanes,
    position: int,
    unit: np.ndarray,
    view_rows: np.ndarray,
    profile: PhaseProfile,
    cluster: Cluster,
    parts: tuple[float, float, float],
    path: str,
    dds: bool,
) -> float:
    """Run the unit's views on the ranks; returns when the last rank ends backward."""
    rows = view_rows[unit]
    costs = np.array([profile.compute_seconds(1, r) for r in rows])
    ranks = (
        assign(costs, cluster.ranks, queued=lanes.free - lanes.free.min())
        if dds
        else assign_static(len(unit), cluster.ranks)
    )
    for rank in range(cluster.ranks):
        mine = ranks == rank
        views, touched = int(mine.sum()), float(rows[mine].sum())
        if path != "sync" and views:
            lanes.compute(rank, position, "scope", lanes.free[rank], profile.seconds("scope", views, touched))
        for phase, gate in (("preprocess", parts[0]), ("render", parts[1]), ("backward", parts[1])):
            start = max(lanes.free[rank], gate)
            lanes.exposed[rank] += start - lanes.free[rank]
            lanes.compute(
                rank, position, phase, start, profile.seconds(phase, views, touched) if views else 0.0
            )
    late = np.maximum(parts[2] - lanes.free, 0.0)  # both slots of the ring are full until A is published
    lanes.exposed += late
    lanes.free += late
    return float(lanes.free.max())


def _admit(
    unit: np.ndarray,
    following: np.ndarray,
    window: Window | None,
    scopes: Scopes,
    path: str,
    tau: float,
    magnitude: np.ndarray | None,
    skipped: np.ndarray,
    barrier: bool,
) -> tuple[Decision, np.ndarray, np.ndarray]:
    """(decision, packed rows published before B, rows that have skipped one update after this window)."""
    write_a, read_a = union(scopes.write[unit]), union(scopes.read[unit])
    write_b, read_b = union(scopes.write[following]), union(scopes.read[following])
    late = raw(write_a, read_b, write_b)
    failing = None
    if magnitude is not None and path == "throughput":
        strength = magnitude[unit].sum(axis=0)
        active, delayed = (unpack(rows, scopes.n_rows) for rows in (write_a, late))
        failing = int(high_impact(delayed, active, strength, tau).sum())
    counts = Hazards(
        int(count(waw(write_a, write_b))),
        int(count(late)),
        int(count(war(read_a, write_a, write_b))),
        int(count(read_b)),
        failing,
        int(count(late & skipped)),
    )
    blocking = window.reason if window is not None and window.blocking else None
    decision = decide(counts, path=path, tau=tau, blocking=blocking, structural=barrier)
    if decision.action is Action.DELAYED:
        return decision, write_a & write_b, late
    return decision, write_a & read_b, np.zeros_like(skipped)


def _publish(
    lanes: _Lanes,
    position: int,
    unit: np.ndarray,
    decision: Decision,
    urgent: np.ndarray,
    ready: float,
    scopes: Scopes,
    profile: PhaseProfile,
    cluster: Cluster,
) -> tuple[float, float, float]:
    """Put the unit's publication on the lanes; returns when its three parts are readable."""
    total = scopes.rows(union(scopes.write[unit]))
    first = total if decision.action is Action.BARRIER else scopes.rows(urgent)
    launch = profile.seconds("exchange", 0, 0)

    def part(phase: str, rows: float, size: int) -> float:
        sent = cluster.all_reduce_seconds(rows * size) + profile.seconds("exchange", 0, rows) - launch
        return lanes.exchange(position, phase, ready, sent + (launch if rows else 0.0))

    if decision.action is Action.BARRIER:
        end = part("exchange", total, profile.row_bytes)
        done = end + profile.seconds("update", 0, total)
        _wait(lanes, position, end, profile.seconds("update", 0, total))
        return done, done, done
    geometry = part("urgent geometry", first, profile.geometry_bytes) if first else ready
    colour = part("urgent colour", first, profile.colour_bytes) if first else ready
    rest = part("rest", total - first, profile.row_bytes) if total > first else colour
    if first:
        _wait(lanes, position, geometry, profile.seconds("update", 0, first))
    return geometry, colour, rest


def _wait(lanes: _Lanes, position: int, until: float, update: float) -> None:
    """Every rank waits for a publication on its compute lane and applies the update there."""
    for rank in range(len(lanes.free)):
        lanes.exposed[rank] += max(until - lanes.free[rank], 0.0)
        lanes.compute(rank, position, "update", max(lanes.free[rank], until), update)
