"""One unit after the other, with a validated window between them (paper §4.3, graph execution).

A runtime holds the versioned state and asks an executor to run units and publications. ``unit`` starts a unit and
returns while it computes; what it did is known when the next one is given, or at ``drain``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from odin_jax import versions
from odin_jax.admission import Admission, Counts
from odin_jax.executor import Executor, Programs, Times, Unit, scalar
from odin_jax.parallel.mesh import here
from odin_jax.publish import Publication
from odin_jax.recorder import Recorder
from odin_jax.stages import NUMBERS, Produced, Word
from odin_jax.versions import VersionedState
from sched.hazards import Action, Decision


class Assigned(NamedTuple):
    """A unit and which views its ranks run."""

    unit: Unit
    views: np.ndarray  # [R, S] index of each view within the training views


@dataclass(frozen=True)
class Window:
    """What happened between a unit and the next one, and what the unit did."""

    step: int  # the unit A
    loss: float  # mean over its views
    mse: float
    finite: bool  # of all its gradients
    pairs: np.ndarray  # [R, S] int32
    views: np.ndarray  # [R, S] as assigned
    seconds: np.ndarray  # [R] of forward and backward
    decision: Decision
    alive: int  # rows that exist
    active: int  # |C_A|
    read: int  # |R⁺(B)|; 0 where no unit followed
    urgent: int  # rows of C_A published before B observed state
    delayed: int  # rows of C_A that B read late
    size: tuple[int, int]  # width and height of the unit's largest view, pixels
    stop: bool  # some process was told to stop
    times: Times  # spans and waits since the window before


class Runtime:
    """Trains units on all ranks."""

    def __init__(self, programs: Programs, executor: Executor, admission: Admission, state: Any, step: int,
                 dense: bool = False, on_published: Callable[[int, Any], None] | None = None,
                 recorder: Recorder | None = None):
        """``state`` is on all ranks, after unit ``step``; ``dense``: every row is exchanged in every unit.

        ``on_published(step, state)`` is called whenever the update of a unit is wholly readable (paper §5, publication
        callback); ``recorder`` keeps what is read and published when, to be checked by ``odin_jax.history``.
        """
        self.now = VersionedState(state, published=step)
        self.admission = admission
        self._programs, self._executor, self._dense = programs, executor, dense
        self._on_published, self._recorder = on_published, recorder
        self._declared: tuple[Any, Any] = (None, None)  # packed R⁺ and W⁺ of the unit that starts next
        self.stopping = False  # this process was told to stop; all hear of it at the next window
        self.failed: Produced | None = None  # what a unit with numbers that are not finite produced
        self._last: Assigned | None = None
        self._resting: Any = None  # packed rows in the last part of the newest publication
        self._measure()

    def unit(self, assigned: Assigned, blocking: str | None = None) -> Window | None:
        """Start a unit; returns the window that led to it, None where none did.

        ``blocking``: why the plan has this window wait for everything, or None.
        """
        window = None
        if self._last is None:
            self._start(assigned.unit)
        else:
            window = self._window(self._last, assigned, blocking)
        self._last = assigned
        return window

    def drain(self) -> Window | None:
        """Wait until everything is published; the window that ends here, or None if nothing was in flight."""
        window = None if self._last is None else self._window(self._last, None, "drained")
        self._last = None
        return window

    def restructure(self, state: Any) -> None:
        """Go on with other rows after a structural event; nothing may be in flight."""
        self.now = versions.change_structure(self.now, state)
        self._measure()
        self._declared = (None, None)
        if self._recorder:
            self._recorder.structural(self.now.published, self.now.structural, self._rows)

    def _window(self, before: Assigned, following: Assigned | None, blocking: str | None) -> Window:
        """Finish the unit ``before``, validate the window to the following unit and start that one."""
        step = before.unit.step
        if following is not None and not blocking and self.admission.path != "sync":
            self._executor.look_ahead(following.unit)
        state, produced = self._executor.finish()
        self._rest_published(step - 1, state)
        self.now = versions.produce(self.now, step, None)
        word = self._executor.tell(state, produced, step, following.unit if following else None,
                                   self._expected(following), self.stopping)
        counts, numbers, pairs, host = map(np.asarray, here((word.counts, word.numbers, word.pairs, word.host)))
        told = _Told(counts, numbers, pairs, host, self._alive)
        self._learn(before, word)
        decision = self._decide(told, blocking, produced, word)
        self._record(step, produced, word, decision)
        if told.finite:
            self._publish(state, produced, word, told, decision, following, step)
        else:
            self.failed = produced
        return told.window(before, decision, self._executor.times.take())

    def _publish(self, state: Any, produced: Produced, word: Word, told: _Told, decision: Decision,
                 following: Assigned | None, step: int) -> None:
        inputs, fields = self._programs.inputs()(state, scalar(step)), self._programs.fields(step)
        if decision.action is Action.BARRIER or following is None:
            rows, count = (self._every_row, self._rows) if self._dense else (word.active, told.active)
            self._urgent_published(step, None)
            state = self._executor.publish(
                state, Publication(step, produced, rows, word.visible, word.active & 0, 0, count, inputs, fields))
            self._resting = rows
            self._rest_published(step, state)
            if following is not None:
                self._start(following.unit)
            return
        first = told.urgent(decision)
        urgent = word.active & {Action.PROCEED: word.active & 0, Action.PARTIAL: word.read,
                                Action.DELAYED: word.write}[decision.action]
        late = word.delayed if decision.action is Action.DELAYED else None
        pending = Publication(step, produced, word.active, word.visible, urgent, first,
                              told.active - first, inputs, fields)
        self._urgent_published(step, urgent)
        self._resting = word.active & ~urgent
        self._observe(following.unit.step, late)
        self._executor.overlap(state, pending, following.unit)

    def _decide(self, told: _Told, blocking: str | None, produced: Produced, word: Word) -> Decision:
        def gate() -> tuple[int, int]:
            skipped = word.active & 0 if self.now.skipped is None else self.now.skipped
            failing, again = self._executor.gate(
                produced, word.delayed, skipped, told.mean_magnitude, self.admission.tau, told.raw)
            return int(failing), int(again)

        counts = Counts(told.active, told.read, told.waw, told.raw, told.war, told.alive)
        return self.admission.decide(counts, blocking, gate)

    def _expected(self, following: Assigned | None) -> Any:
        """Packed rows that each view of the next unit will update, by evidence; None where nobody asks."""
        if following is None or not self.admission.uses_evidence:
            return None
        unknown = np.full(-(-self._rows // 8), 0xFF, np.uint8)

        def of_view(view: int) -> np.ndarray:
            words = self.admission.expected(view, self.now.structural)
            return unknown if words is None else words

        return self._programs.by_view(following.views, of_view)

    def _learn(self, before: Assigned, word: Word) -> None:
        if word.views is not None:
            words = np.asarray(here(word.views)).reshape(before.views.size, -1)
            late = None if self.now.skipped is None else np.asarray(here(self.now.skipped))
            self.admission.learn([int(view) for view in before.views.ravel()], words, self.now.structural, late)

    def _start(self, unit: Unit) -> None:
        self._observe(unit.step, None)
        self._executor.start(self.now.state, unit)

    def _observe(self, step: int, late: Any) -> None:
        """Unit ``step`` begins to read state, ``late`` rows without the pending update."""
        self.now = versions.observe(self.now, step, self.now.structural, late)
        if self._recorder:
            reads, writes = self._declared
            self._recorder.observed(step, self.now.structural, _host(reads), _host(writes), _host(late))

    def _record(self, step: int, produced: Produced, word: Word, decision: Decision) -> None:
        """Unit ``step`` has produced, and the window after it was validated."""
        self._declared = (word.read, word.write)
        if self._recorder:
            summed = self._programs.magnitude()(produced.activity)
            self._recorder.produced(step, here(word.active), _host(summed), _host(word.carried))
            self._recorder.decided(step, step + 1, decision, self.admission.tau)

    def _urgent_published(self, step: int, rows: Any) -> None:
        """The urgent ``rows`` of unit ``step`` are readable; None: there are none."""
        for part in versions.URGENT:
            self.now = versions.publish(self.now, step, part, None)
            if self._recorder and rows is not None:
                self._recorder.published(step, part, _host(rows))

    def _rest_published(self, step: int, state: Any) -> None:
        """The last part of unit ``step`` is readable, if it was still in flight; then it is committed."""
        if step <= self.now.published:
            self.now = replace(self.now, state=state)
            return
        self.now = versions.publish(self.now, step, versions.REST, state)
        if self._recorder:
            self._recorder.published(step, versions.REST, _host(self._resting))
        self.now = versions.commit(self.now, step)
        if self._on_published:
            self._on_published(step, state)

    def _measure(self) -> None:
        self._rows, self._alive = self._programs.size(self.now.state)
        self._every_row = self._programs.ranks.same(np.packbits(np.ones(self._rows, bool)))


def _host(array: Any) -> np.ndarray | None:
    """An array that is the same on all ranks, on the host."""
    return None if array is None else np.asarray(here(array))


class _Told(NamedTuple):
    """The numbers of a ``Word`` on the host, and the rows alive."""

    counts: np.ndarray
    numbers: np.ndarray
    pairs: np.ndarray
    host: np.ndarray
    alive: int

    active = property(lambda self: int(self.counts[0]))
    read = property(lambda self: int(self.counts[1]))
    waw = property(lambda self: int(self.counts[2]))
    raw = property(lambda self: int(self.counts[3]))
    war = property(lambda self: int(self.counts[4]))

    @property
    def mean_magnitude(self) -> float:
        """Mean of ‖g_A‖ over C_A."""
        return float(self.numbers[:, NUMBERS.index("magnitude")].sum()) / max(self.active, 1)

    def urgent(self, decision: Decision) -> int:
        """Rows of C_A that are published before the next unit observes state."""
        return {Action.PROCEED: 0, Action.PARTIAL: self.waw + self.raw, Action.DELAYED: self.waw,
                Action.BARRIER: self.active}[decision.action]

    @property
    def finite(self) -> bool:
        """Whether all numbers of all ranks are."""
        loss, finite = (self.numbers[:, NUMBERS.index(name)] for name in ("loss", "finite"))
        return bool((finite == 1).all() and np.isfinite(loss).all())

    def window(self, before: Assigned, decision: Decision, times: Times) -> Window:
        """What is kept of the window after the unit ``before``."""
        loss, mse = (float(self.numbers[:, NUMBERS.index(name)].mean()) for name in ("loss", "mse"))
        delayed = self.raw if decision.action is Action.DELAYED else 0
        return Window(before.unit.step, loss, mse, self.finite, self.pairs, before.views, self.host[:, 0], decision,
                      self.alive, self.active, self.read, self.urgent(decision), delayed, before.unit.size,
                      bool(self.host[:, 1].any()), times)
