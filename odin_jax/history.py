"""A check that replays the recorded history of a run and proves that its synchronisation held (paper §4.3).

Every row p and group of fields f has two counts: ``made(p)``, updates that units have produced, and ``seen_f(p)``,
those that a reader can see. Their difference is how many updates a read skips. With ``C_A`` the rows that unit A
really updates and ``R⁺``, ``W⁺`` the declared scopes, ``check`` proves for every unit B that observes state, A = B − 1:

* ``made(p) − seen_f(p) = [p ∈ L_B]`` for all p ∈ R⁺(B) and every field read: rows declared late skip exactly one
  update, which is A's since A − 1 is published; all other rows skip none;
* ``L_B ≠ ∅`` only on the throughput-first path after the decision "delayed", and then ``L_B ⊆ R⁺(B) \\ W⁺(B)`` (RAW
  only), ``|L_B| ≤ τ |R⁺(B)|``, ``‖g_A(p)‖ ≤ τ · mean_{q ∈ C_A} ‖g_A(q)‖`` for all p ∈ L_B, and ``L_B ∩ L_A = ∅``;
* A no longer observes, A − 1 is published, B's structural version is the current one, and the decision is kept;
* ``C_B ⊆ R⁺(B)``, but for rows that B updates with gradients that earlier units left: they count with ``C_B`` for all
  else and are never read late; every row of ``C_A`` is published once per field group, geometry before colour before
  the rest, and all of A before any of B; nothing is in flight at a structural event or at the end.

The check shares the gate's equation and the names of parts with the runtime, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from odin_jax.recorder import FIELDS, PARTS, Decided, Event, Published, Read, Structural, Wrote
from sched.hazards import PATHS, Action, high_impact
from sched.rowsets import unpack

GATE_ROUNDING = 1e-4  # relative; the runtime takes the gate's mean over millions of rows in float32
SHOWN = 6  # rows that a violation names


@dataclass(frozen=True)
class Report:
    """What a replayed history proves."""

    violations: tuple[str, ...]  # one readable line each
    units: int  # units that observed state
    row_reads: int  # rows in their read scopes, summed
    late_reads: int  # of these read without their pending update
    late_writes: int  # of these updated by the reader after all, though declared read-only
    mispredicted: int  # rows updated outside the declared write scope (throughput-first), the late ones included
    actions: dict[str, int]  # decisions by action

    @property
    def holds(self) -> bool:
        """Whether the history obeys every rule."""
        return not self.violations


def check(history: Iterable[Event], n_rows: int, *, path: str, after_unit: int = 0, structural: int = 0) -> Report:
    """Replay ``history`` of a run over ``n_rows`` rows and report each broken rule (paper §4.3).

    ``path`` is one of ``sched.hazards.PATHS``; late rows are admitted on "throughput" alone, and "unvalidated", the
    control, is held to the quality-first rules. ``after_unit`` and ``structural`` are those of a resumed run's start.
    Raises ``ValueError`` for an unknown path or a set of rows of the wrong size.
    """
    if path not in PATHS:
        raise ValueError(f"path must be one of {', '.join(PATHS)}, not {path!r}")
    replay = _Replay(n_rows, path, after_unit, structural)
    for event in history:
        replay.take(event)
    replay.end()
    return replay.report()


@dataclass(eq=False)
class _Unit:
    """What the replay knows of a unit."""

    number: int
    reads: np.ndarray
    writes: np.ndarray
    late: np.ndarray
    observed: set[str] = field(default_factory=set)  # field groups
    active: np.ndarray | None = None
    carried: np.ndarray | None = None
    magnitude: np.ndarray | None = None
    done: dict[str, np.ndarray] = field(default_factory=dict)  # published rows per field group
    part: int = 0  # index of the newest published part

    @property
    def complete(self) -> bool:
        """All of its update is readable."""
        active = self.active
        return active is not None and not any((active & ~self.done[name]).any() for name in FIELDS)


class _Replay:
    """Version counts per row and field group, and the violations met so far."""

    def __init__(self, n_rows: int, path: str, after_unit: int, structural: int):
        self.path, self.newest, self.structural = path, after_unit, structural
        self.units: dict[int, _Unit] = {}  # the newest unit and those in flight
        self.decisions: dict[int, Decided] = {}  # by the unit that waits
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self._clear(n_rows)

    def _clear(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.made = np.zeros(n_rows, np.int32)
        self.seen = {name: np.zeros(n_rows, np.int32) for name in FIELDS}

    def take(self, event: Event) -> None:
        """Replay one event."""
        match event:
            case Decided():
                self._decide(event)
            case Read():
                self._read(event)
            case Wrote():
                self._write(event)
            case Published():
                self._publish(event)
            case Structural():
                self._change(event)

    def end(self) -> None:
        """The run is over: nothing may be pending."""
        for unit in self._in_flight():
            self._broken(f"unit {unit.number} is not published at the end")

    def report(self) -> Report:
        """All that was found."""
        names = ("units", "row_reads", "late_reads", "late_writes", "mispredicted")
        counts = {name: self.counts[name] for name in names}
        return Report(violations=tuple(self.violations), actions=dict(self.actions), **counts)

    def _decide(self, event: Decided) -> None:
        window = f"window {event.unit_a}→{event.unit_b}"
        self.actions[event.action.value] += 1
        if event.unit_b != event.unit_a + 1 or event.unit_b != self.newest + 1 or event.unit_b in self.decisions:
            self._broken(f"{window} is decided out of turn, after unit {self.newest} observed state")
        before = self.units.get(event.unit_a)
        if event.action is Action.DELAYED and (before is None or before.active is None):
            self._broken(f"{window} is delayed before unit {event.unit_a} has produced any evidence")
        self.decisions[event.unit_b] = event

    def _read(self, event: Read) -> None:
        name = f"unit {event.unit}"
        unit = self.units.get(event.unit)
        if unit is None:
            unit = self._enter(event)
            if event.unit != self.newest + 1:
                self._broken(f"{name} observes state after unit {self.newest}")
            self.newest = event.unit
            self.units[event.unit] = unit
            self._window(unit)
        if event.structural != self.structural:
            self._broken(f"{name} reads structural version {self.structural} with scopes of version {event.structural}")
        if unit.active is not None or unit.observed & set(event.fields):
            self._broken(f"{name} observes {', '.join(event.fields)} again")
        if unit.late.any() and not np.array_equal(unit.late, self._mask(event.late)):
            self._broken(f"{name} changes its late rows between reads")
        unit.observed |= set(event.fields)
        for fields in event.fields:
            self._versions(unit, fields)

    def _enter(self, event: Read) -> _Unit:
        reads = np.ones(self.n_rows, bool) if event.reads is None else self._mask(event.reads)
        writes = reads if event.writes is None else self._mask(event.writes)
        late = self._mask(event.late)
        self.counts.update(units=1, row_reads=int(reads.sum()), late_reads=int(late.sum()))
        return _Unit(event.unit, reads, writes, late)

    def _window(self, unit: _Unit) -> None:
        """What must hold of window A→B, and of those before it, when B begins to observe state."""
        name = f"unit {unit.number}"
        before = self.units.get(unit.number - 1)
        for other in self._in_flight():
            if other.number < unit.number - 1:
                self._broken(f"{name} observes state before unit {other.number} is published")
            elif other.number < unit.number and other.active is None:
                self._broken(f"{name} observes state while unit {other.number} still does")
        decision = self.decisions.pop(unit.number, None)
        if before is not None and not before.complete:
            if decision is None:
                self._broken(f"{name} observes state with unit {before.number} pending and no decision")
            elif decision.action is Action.BARRIER or self.path == "sync":
                self._broken(f"{name} passes the barrier of unit {before.number} ({decision.reason})")
        if unit.late.any():
            self._late(unit, before, decision)
        for number in [n for n in self.units if n < unit.number - 1 and self.units[n].complete]:
            del self.units[number]

    def _late(self, unit: _Unit, before: _Unit | None, decision: Decided | None) -> None:
        """What must hold of the rows that B reads late, but for their versions."""
        name, late = f"unit {unit.number}", unit.late
        if self.path != "throughput":
            self._broken(f"{name} reads {_rows(late)} late on the {self.path} path")
        self._none(late & ~unit.reads, f"{name} declares late, outside its read scope,")
        self._none(late & unit.writes, f"{name} reads late, though it declared to write them (WAW),")
        if decision is None or decision.action is not Action.DELAYED or before is None or before.active is None:
            self._broken(f"{name} reads {_rows(late)} late without a decision to")
            return
        if late.sum() > decision.tau * unit.reads.sum():
            self._broken(f"{name} reads {late.sum()} of {unit.reads.sum()} rows late, above tau {decision.tau}")
        self._none(late & before.late, f"{name} skips a second update of")
        if before.carried is not None:
            self._none(late & before.carried, f"{name} reads late, without evidence of their update,")
        if before.magnitude is None:
            self._broken(f"{name} reads {_rows(late)} late without evidence of unit {before.number}")
            return
        magnitude = np.asarray(before.magnitude, np.float64)
        failing = high_impact(late, before.active, magnitude, decision.tau * (1 + GATE_ROUNDING))
        self._none(failing, f"{name} reads late, against the gradient gate,")

    def _versions(self, unit: _Unit, fields: str) -> None:
        """The versions that B reads of one group of fields."""
        name = f"unit {unit.number}"
        skips = self.made - self.seen[fields]
        stale = unit.reads & ~unit.late & (skips > 0)
        self._none(stale & unit.writes, f"{name} reads without their pending update (WAW) the {fields} of")
        self._none(stale & ~unit.writes, f"{name} reads without their pending update (RAW) the {fields} of")
        self._none(unit.late & (skips > 1), f"{name} skips more than one update of the {fields} of")
        self._none(unit.late & (skips < 1), f"{name} declares late, though its update is published, the {fields} of")

    def _write(self, event: Wrote) -> None:
        unit = self.units.get(event.unit)
        if unit is None or unit.active is not None or unit.observed != set(FIELDS):
            self._broken(f"unit {event.unit} produces gradients without having observed state once")
            return
        unit.active, unit.magnitude = self._mask(event.active), event.magnitude
        unit.carried = self._mask(event.carried)
        own = unit.active & ~unit.carried
        unit.done = {name: np.zeros(self.n_rows, bool) for name in FIELDS}
        self.made += unit.active
        self._none(own & ~unit.reads, f"unit {unit.number} uses, outside its read scope,")
        outside = own & unit.reads & ~unit.writes
        if self.path in ("sync", "quality"):
            self._none(outside, f"unit {unit.number} updates, outside its write scope,")
        late = int((unit.active & unit.late).sum())
        self.counts.update(mispredicted=int(outside.sum()), late_writes=late)

    def _publish(self, event: Published) -> None:
        name = f"{event.part!r} of unit {event.unit}"
        unit = self.units.get(event.unit)
        if unit is None or unit.active is None:
            self._broken(f"{name} is published before the unit has gradients")
            return
        if any(other.number < event.unit for other in self._in_flight()):
            self._broken(f"{name} is published before unit {event.unit - 1}")
        part = list(PARTS).index(event.part)
        if part < unit.part or not set(event.fields) <= set(PARTS[event.part]):
            newest = list(PARTS)[unit.part]
            self._broken(f"{name} is published out of order: {', '.join(event.fields)} after {newest!r}")
        unit.part = max(part, unit.part)
        rows, repeated = self._sent(event.rows)
        self._none(repeated, f"{name} holds twice")
        for fields in event.fields:
            self._none(rows & unit.done[fields], f"{name} publishes again the {fields} of")
            self.seen[fields] += rows & unit.active & ~unit.done[fields]
            unit.done[fields] |= rows

    def _change(self, event: Structural) -> None:
        name = f"structural version {event.version}"
        for unit in self._in_flight():
            self._broken(f"{name} is made while unit {unit.number} is in flight")
        if event.after_unit != self.newest or event.version != self.structural + 1:
            self._broken(f"{name} after unit {event.after_unit} follows {self.structural} after unit {self.newest}")
        self.structural = event.version
        self.units.clear()
        self._clear(self.n_rows if event.n_rows is None else event.n_rows)

    def _in_flight(self) -> list[_Unit]:
        return [unit for unit in self.units.values() if not unit.complete]

    def _sent(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The set of rows that a part holds, and those it holds twice."""
        if rows.dtype.kind != "i":
            return self._mask(rows), np.zeros(self.n_rows, bool)
        if rows.size and rows.min() < 0:
            raise ValueError("a row list holds a negative row; pad it with the number of rows")
        times = np.bincount(rows[rows < self.n_rows].ravel(), minlength=self.n_rows)
        return times > 0, times > 1

    def _mask(self, rows: np.ndarray | None) -> np.ndarray:
        if rows is None:
            return np.zeros(self.n_rows, bool)
        mask = rows if rows.dtype == np.bool_ else unpack(rows, self.n_rows)
        if mask.shape != (self.n_rows,):
            raise ValueError(f"a set of rows has shape {mask.shape}, not ({self.n_rows},)")
        return mask

    def _none(self, rows: np.ndarray, what: str) -> None:
        if rows.any():
            self._broken(f"{what} {_rows(rows)}")

    def _broken(self, line: str) -> None:
        self.violations.append(line)


def _rows(rows: np.ndarray) -> str:
    numbers = np.flatnonzero(rows)
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return f"{numbers.size} row{'s' * (numbers.size != 1)} ({shown}{', …' * (numbers.size > SHOWN)})"
