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


@dataclass(frozen=True)
class _Published:
    """When the parts of a pending publication are readable (s), and the update still to be computed."""

    geometry: float = 0.0  # rows that the next unit reads
    colour: float = 0.0
    rest: float = 0.0  # all rows
    update: float = 0.0  # seconds on each rank for the rest


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

    def wait(self, rank: int, until: float) -> float:
        """When a rank that waits for a publication may go on; what it waits is exposed."""
        self.exposed[rank] += max(until - self.free[rank], 0.0)
        return max(float(self.free[rank]), until)

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
    """Run ``units`` [n, B] once through. ``windows`` has the transition from each unit to the next.

    ``path`` is one of ``sched.hazards.PATHS``; ``magnitude`` [V, n_rows] is gradient evidence per view,
    without which no read is delayed; ``structural`` has the positions of units that an event follows.
    """
    run = _Run(scopes, profile, cluster, path, tau, magnitude, dds)
    decisions: list[Decision] = []
    pending = _Published()
    for position, unit in enumerate(units):
        ready = run.compute(position, unit, pending)
        if position + 1 == len(units):  # nothing follows that could read the rows early
            run.publish(position, unit, Decision(Action.BARRIER, "end"), run.no_rows, ready)
            break
        decision, urgent = run.admit(unit, units[position + 1], windows[position], position in structural)
        decisions.append(decision)
        pending = run.publish(position, unit, decision, urgent, ready)
    lanes = run.lanes
    seconds = max(float(lanes.free.max()), lanes.comm)
    idle = 1 - lanes.busy / seconds
    return Timeline(
        path, seconds, units.size / seconds, lanes.exposed, idle, tuple(decisions), tuple(lanes.spans)
    )


class _Run:
    """One simulated run: its inputs, its lanes and the rows that have skipped an update."""

    def __init__(
        self,
        scopes: Scopes,
        profile: PhaseProfile,
        cluster: Cluster,
        path: str,
        tau: float,
        magnitude: np.ndarray | None,
        dds: bool,
    ):
        self.scopes, self.profile, self.cluster = scopes, profile, cluster
        self.path, self.tau, self.magnitude, self.dds = path, tau, magnitude, dds
        ranks = cluster.ranks
        self.lanes = _Lanes(np.zeros(ranks), busy=np.zeros(ranks), exposed=np.zeros(ranks))
        self.view_rows = count_rows(scopes.read) * scopes.scale
        self.no_rows = np.zeros_like(scopes.read[0])
        self.skipped = self.no_rows

    def compute(self, position: int, unit: np.ndarray, pending: _Published) -> float:
        """Run the unit's views on the ranks; returns when the last rank ends backward."""
        lanes, profile = self.lanes, self.profile
        rows = self.view_rows[unit]
        costs = profile.compute_seconds(1, rows)
        if self.dds:
            ranks = assign(costs, self.cluster.ranks, queued=lanes.free - lanes.free.min())
        else:
            ranks = assign_static(len(unit), self.cluster.ranks)
        gates = (("preprocess", pending.geometry), ("render", pending.colour), ("backward", pending.colour))
        for rank in range(self.cluster.ranks):
            mine = ranks == rank
            views, touched = int(mine.sum()), float(rows[mine].sum())
            if self.path != "sync" and views:
                lanes.compute(
                    rank, position, "scope", lanes.free[rank], profile.seconds("scope", views, touched)
                )
            for phase, gate in gates:
                seconds = profile.seconds(phase, views, touched) if views else 0.0
                lanes.compute(rank, position, phase, lanes.wait(rank, gate), seconds)
            # both slots of the ring are taken until the unit before is published
            lanes.compute(rank, position - 1, "update", lanes.wait(rank, pending.rest), pending.update)
        return float(lanes.free.max())

    def admit(
        self, unit: np.ndarray, following: np.ndarray, window: Window, structural: bool
    ) -> tuple[Decision, np.ndarray]:
        """(decision, packed rows to be published before the following unit observes state)."""
        scopes = self.scopes
        write_a, read_a = union(scopes.write[unit]), union(scopes.read[unit])
        write_b, read_b = union(scopes.write[following]), union(scopes.read[following])
        late = raw(write_a, read_b, write_b)
        hazards = Hazards(
            int(count(waw(write_a, write_b))),
            int(count(late)),
            int(count(war(read_a, write_a, write_b))),
            int(count(read_b)),
            self._failing(unit, write_a, late),
            int(count(late & self.skipped)),
        )
        blocking = window.reason if window.blocking else None
        decision = decide(hazards, path=self.path, tau=self.tau, blocking=blocking, structural=structural)
        if decision.action is Action.DELAYED:
            self.skipped = late
            return decision, waw(write_a, write_b)
        self.skipped = self.no_rows
        return decision, write_a & read_b if decision.action is Action.PARTIAL else self.no_rows

    def _failing(self, unit: np.ndarray, write_a: np.ndarray, late: np.ndarray) -> int | None:
        if self.magnitude is None:
            return None
        active, delayed = (unpack(rows, self.scopes.n_rows) for rows in (write_a, late))
        return int(high_impact(delayed, active, self.magnitude[unit].sum(axis=0), self.tau).sum())

    def publish(
        self, position: int, unit: np.ndarray, decision: Decision, urgent: np.ndarray, ready: float
    ) -> _Published:
        """Put the unit's publication on the lanes; returns when its parts are readable."""
        total = self.scopes.rows(union(self.scopes.write[unit]))
        if decision.action is Action.BARRIER:
            end = self._send(position, "exchange", total, self.profile.row_bytes, ready)
            done = self._apply(position, end, total)
            return _Published(done, done, done)
        first = self.scopes.rows(urgent)
        geometry = self._send(position, "urgent geometry", first, self.profile.geometry_bytes, ready)
        colour = self._send(position, "urgent colour", first, self.profile.colour_bytes, geometry)
        rest = self._send(position, "rest", total - first, self.profile.row_bytes, colour)
        if first:
            geometry = self._apply(position, geometry, first)
        return _Published(geometry, colour, rest, self.profile.seconds("update", 0, total - first))

    def _send(self, position: int, phase: str, rows: float, size: int, ready: float) -> float:
        if not rows:
            return ready
        seconds = self.cluster.all_reduce_seconds(rows * size) + self.profile.seconds("exchange", 0, rows)
        return self.lanes.exchange(position, phase, ready, seconds)

    def _apply(self, position: int, published: float, rows: float) -> float:
        """Every rank waits for a publication and applies the update; returns when the last has done so."""
        seconds = self.profile.seconds("update", 0, rows)
        for rank in range(self.cluster.ranks):
            self.lanes.compute(rank, position, "update", self.lanes.wait(rank, published), seconds)
        return float(self.lanes.free.max())
