"""A tiny executor of windows on numpy: what a right runtime does, told to a recorder, and what its reads really saw."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from odin_jax.recorder import FIELDS, Recorder
from odin_jax.versions import REST, URGENT, VersionedState, change_structure, commit, observe, produce, publish
from sched.hazards import Action, Decision, Hazards, count, decide, high_impact, raw, war, waw

BUCKET = 4  # row lists are padded to multiples of this


@dataclass(frozen=True)
class Task:
    """A unit: its scopes and what its backward gives, bool [N], and when the rest of the unit before is published."""

    reads: np.ndarray
    writes: np.ndarray
    active: np.ndarray
    magnitude: np.ndarray | None
    scoped: bool = True  # False: its scope is missing
    structural: bool = False  # a structural event comes before it
    blocking: str | None = None  # the plan's reason
    rest: str = "after"  # "before" it observes state, "during" its computation, "after" it


@dataclass
class Run:
    """A run over ``n_rows`` rows; a row's value is the number of updates that it got."""

    n_rows: int
    path: str
    tau: float
    recorder: Recorder = field(init=False)
    skipped: list[np.ndarray] = field(default_factory=list)  # per unit int [2, N]: updates that its read did not see

    def __post_init__(self):
        self.recorder = Recorder(self.n_rows)
        self.now = VersionedState({name: np.zeros(self.n_rows, int) for name in FIELDS})
        self.made = np.zeros(self.n_rows, int)
        self.tasks: dict[int, Task] = {}
        self.urgent = np.zeros(self.n_rows, bool)

    def all(self, tasks: list[Task]) -> Run:
        """Runs ``tasks`` and drains the last one."""
        for number, task in enumerate(tasks, 1):
            self.window(number, task)
        self.drain()
        return self

    def window(self, unit: int, task: Task) -> None:
        """Validates the window before ``unit``, publishes what it must wait for, and computes ``unit``."""
        self.tasks[unit] = task
        decision, late = self.validate(unit, task)
        if task.structural:
            self.drain()
            self.now = change_structure(self.now, self.now.state)
            self.recorder.structural(unit - 1, self.now.structural)
        if decision.action is Action.BARRIER:
            self.drain()
        elif self.now.pending is not None:
            self.urgent = self.tasks[unit - 1].active & task.reads & ~late
            if self.path != "unvalidated":
                self.part(URGENT[0])
                self.part(URGENT[1])
            if task.rest == "before":
                self.drain()
                late = np.zeros_like(late)
        self.observe(unit, task, late)
        if task.rest == "during":
            self.drain()
        self.now = produce(self.now, unit, None)
        self.recorder.produced(unit, task.active, task.magnitude)
        self.made = self.made + task.active
        if task.rest == "after":
            self.drain(keep=unit)

    def validate(self, unit: int, task: Task) -> tuple[Decision, np.ndarray]:
        """The decision of DAS and the rows to read late, by the rules that the runtime uses."""
        late = np.zeros(self.n_rows, bool)
        before = self.tasks.get(unit - 1)
        if before is None or self.now.pending is None:
            return Decision(Action.PROCEED, "nothing pending"), late
        delayed = raw(before.active, task.reads, task.writes)
        failing = None
        if before.magnitude is not None:
            failing = int(count(high_impact(delayed, before.active, before.magnitude, self.tau)))
        hazards = Hazards(
            waw=int(count(waw(before.active, task.writes))),
            raw=int(count(delayed)),
            war=int(count(war(before.reads, before.writes, task.writes))),
            read_b=int(count(task.reads)),
            failing=failing,
            skipped=0 if self.now.skipped is None else int(count(delayed & self.now.skipped)),
        )
        decision = decide(
            hazards if task.scoped else None,
            path=self.path,
            tau=self.tau,
            blocking=task.blocking,
            structural=task.structural,
        )
        self.recorder.decided(unit - 1, unit, decision, self.tau)
        if decision.action is Action.DELAYED:
            late = delayed
        elif self.path == "unvalidated" and decision.action is Action.PROCEED:
            late = before.active & task.reads
        return decision, late

    def observe(self, unit: int, task: Task, late: np.ndarray) -> None:
        """``unit`` takes the published state; the control without validation keeps no record of late rows."""
        declared = late if late.any() else None
        kept = None if self.path == "unvalidated" else declared
        self.now = observe(self.now, unit, self.now.structural, kept)
        reads, writes = (task.reads, task.writes) if task.scoped else (None, None)
        self.recorder.observed(unit, self.now.structural, reads, writes, declared)
        self.skipped.append(np.stack([np.where(task.reads, self.made - self.now.state[name], 0) for name in FIELDS]))

    def part(self, part: str) -> None:
        """One part of the publication of the pending unit, as a padded list of rows."""
        slot = self.now.pending
        assert slot is not None
        rows = self.tasks[slot.unit].active & (~self.urgent if part == REST else self.urgent)
        state = dict(self.now.state)
        for name in FIELDS if part == REST else part.split()[1:]:
            state[name] = state[name] + rows
        self.now = publish(self.now, slot.unit, part, state)
        numbers = np.flatnonzero(rows)
        self.recorder.published(
            slot.unit, part, np.pad(numbers, (0, -numbers.size % BUCKET), constant_values=self.n_rows)
        )

    def drain(self, keep: int | None = None) -> None:
        """Publishes all that is pending, but for unit ``keep``."""
        while (slot := self.now.pending) is not None and slot.unit != keep:
            for part in (*URGENT, REST)[len(slot.parts) :]:
                self.part(part)
            self.now = commit(self.now, slot.unit)
            self.urgent = np.zeros(self.n_rows, bool)
