"""Two lanes of threads: publications run beside the next unit (design §9, "lanes").

XLA:CPU runs the collectives of a program synchronously and the programs of one thread in order. So a second thread, the
communication lane, launches every program with a collective, while the main thread computes. Only that lane launches
collectives, one after the other, so all processes launch them in the same order.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from odin_jax import exchange
from odin_jax.executor import COMM, COMPUTE, Programs, Times, Unit, scalar
from odin_jax.parallel.mesh import here, mine
from odin_jax.publish import Publication, pieces, room_for, width
from odin_jax.rooms import PairRooms
from odin_jax.stages import Produced, Word


class _Running(NamedTuple):
    """The unit that computes, and the publication beside it."""

    state: Any
    unit: Unit
    produced: Produced
    started: float
    rest: _Part | None


class _Part(NamedTuple):
    """A list of rows on its way, in pieces."""

    name: str
    pending: Publication
    fields: tuple[str, ...]
    rows: Any  # [N] int32 list
    pieces: list[tuple[int, int, Future[Any]]]  # first row, length, sums


class Lanes:
    """Executor with a compute lane, the calling thread, and a communication lane."""

    def __init__(self, programs: Programs, rooms: PairRooms):
        self.times = Times()
        self._programs, self._rooms = programs, rooms
        self._geometry, self._colour = programs.pipeline.geometry_fields, programs.pipeline.colour_fields
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="communication")
        self._running: _Running | None = None
        self._ranks, self._seconds = programs.ranks, 0.0
        self._staged: list[Any] = []  # pieces that are being copied out of the gradients

    def start(self, state: Any, unit: Unit) -> None:
        self._compute(state, unit, None)

    def overlap(self, state: Any, pending: Publication, unit: Unit) -> None:
        first, others = self._programs.lists()(pending.active, pending.urgent)
        urgent = [self._send(pending, name, first, fields, pending.urgent_count)
                  for name, fields in (("urgent geometry", self._geometry), ("urgent colour", self._colour))]
        rest = self._send(pending, "rest", others, self._geometry + self._colour, pending.rest_count)
        state = self._settle(state, pending)
        self._let_go(pending.produced.grads)
        for part in urgent:
            state = self._receive(state, part)
        self._compute(state, unit, rest)

    def publish(self, state: Any, pending: Publication) -> Any:
        _, rows = self._programs.lists()(pending.active, pending.urgent)
        part = self._send(pending, "whole", rows, self._geometry + self._colour, pending.rest_count)
        state = self._settle(state, pending)
        self._let_go(pending.produced.grads)
        state = self._receive(state, part)
        start = time.perf_counter()
        jax.block_until_ready(state)
        self.times.span(COMPUTE, pending.unit, "update", start)
        return state

    def finish(self) -> tuple[Any, Produced]:
        assert self._running is not None
        state, unit, produced, started, rest = self._running
        self._running = None
        jax.block_until_ready(produced)
        while any(map(bool, mine(produced.activity.overflow))):
            self._rooms.widen(unit.size, max(int(pairs.max()) for pairs in mine(produced.activity.pairs)))
            produced = jax.block_until_ready(self._run(state, unit))
        self.times.span(COMPUTE, unit.step, "forward and backward", started)
        self._seconds = time.perf_counter() - started
        if rest is not None:
            state = self._receive(state, rest)
        return dataclasses.replace(state, **produced.local), produced

    def tell(self, state: Any, produced: Produced, step: int, unit: Unit | None, expected: Any, stop: bool) -> Word:
        activity, start = produced.activity, time.perf_counter()
        read = write = self._ranks.own([np.zeros(activity.visible.shape[1], np.uint8)] * len(self._ranks.local))
        if unit is not None:
            cameras = tuple(view.camera for view in unit.views)
            read, write = jax.block_until_ready(self._programs.scope()(state, cameras, expected, scalar(step)))
            self.times.span(COMPUTE, unit.step, "scope", start)
        host = self._ranks.own([np.array([self._seconds, stop], np.float32)] * len(self._ranks.local))
        program = self._programs.tell(expected is not None)
        return self._await("word", self._lane.submit(
            self._timed, step, "word", lambda: program(activity, read, write, host)))

    def gate(self, produced: Produced, delayed: Any, skipped: Any, mean: float, tau: float, count: int) -> Any:
        room = room_for(count, 8 * delayed.size, 1)
        program, args = self._programs.gate(tau, room), (produced.activity, delayed, skipped, np.float32(mean))
        return np.asarray(here(self._await("gate", self._lane.submit(self._timed, 0, "gate", lambda: program(*args)))))

    def close(self) -> None:
        self._lane.shutdown(wait=False, cancel_futures=True)

    def _compute(self, state: Any, unit: Unit, rest: _Part | None) -> None:
        started = time.perf_counter()
        self._running = _Running(state, unit, self._run(state, unit), started, rest)

    def _run(self, state: Any, unit: Unit) -> Produced:
        return self._programs.compute(self._rooms.rooms[unit.size])(state, unit.views, scalar(unit.step))

    def _settle(self, state: Any, pending: Publication) -> Any:
        return self._programs.settle()(state, pending.active, pending.visible, pending.inputs)

    def _send(self, pending: Publication, name: str, rows: Any, fields: tuple[str, ...], count: int) -> _Part:
        """Start the exchange of the first ``count`` rows of a list."""
        grads = pending.produced.grads
        wide = sum(width(getattr(grads, field), 2) for field in fields)
        sent = []
        for first, length in pieces(count):
            staged = self._programs.stage(fields, length)(grads, rows, scalar(first))
            run = partial(self._programs.total(), staged)
            sent.append((first, length, self._lane.submit(self._timed, pending.unit, name, run)))
            self._staged.append(staged)
            self.times.sent[name] = self.times.sent.get(name, 0) + exchange.bytes_of_total(
                length, wide, self._ranks.count)
        return _Part(name, pending, fields, rows, sent)

    def _let_go(self, grads: Any) -> None:
        """Free a unit's gradients: what travels of them is staged, so that two units never hold all their rows."""
        jax.block_until_ready(self._staged)
        self._staged.clear()
        for leaf in jax.tree.leaves(grads):
            leaf.delete()

    def _receive(self, state: Any, part: _Part) -> Any:
        """The state with the update of a part, waiting for its pieces as they come."""
        for first, length, future in part.pieces:
            summed, program = self._await(part.name, future), self._programs.apply(part.fields, length)
            state = program(state, part.rows, scalar(first), summed, part.pending.visible, part.pending.inputs)
        return state

    def _await(self, name: str, part: Future[Any]) -> Any:
        start = time.perf_counter()
        result = part.result()
        self.times.wait(name, start)
        return result

    def _timed(self, unit: int, name: str, run: Callable[[], Any]) -> Any:
        """On the communication lane: run to the end and note the bar."""
        start = time.perf_counter()
        result = jax.block_until_ready(run())
        self.times.span(COMM, unit, name, start)
        return result
