"""Two lanes of threads: publications run beside the next unit (design §9, "lanes").

XLA:CPU runs the collectives of a program synchronously and the programs of one thread in order. So a second thread, the
communication lane, launches every program with a collective, while the main thread computes. Only that lane launches
collectives, one after the other, so all processes launch them in the same order.
"""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from odin_jax.executor import COMPUTE, Programs, Times, Unit, fitted, scalar
from odin_jax.lane import Lane
from odin_jax.parallel.mesh import here
from odin_jax.publish import Publication, pieces, room_for
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
        self._lane = Lane(self.times)
        self._running: _Running | None = None
        self._seconds = 0.0
        self._staged: list[Any] = []  # pieces that are being copied out of the gradients

    def start(self, state: Any, unit: Unit) -> None:
        self._compute(state, unit, None, self._bins(self._rooms.rooms[unit.size], state, unit))

    def look_ahead(self, unit: Unit) -> None:
        pass

    def overlap(self, state: Any, pending: Publication, unit: Unit) -> None:
        first, others = self._programs.lists()(pending.active, pending.urgent)
        geometry, colour = self._programs.groups(pending.fields)
        urgent = [self._send(pending, name, first, fields, pending.urgent_count)
                  for name, fields in (("urgent geometry", geometry), ("urgent colour", colour))]
        rest = self._send(pending, "rest", others, pending.fields, pending.rest_count)
        state = self._settle(state, pending)
        self._let_go(pending.produced.grads)
        state = self._receive(state, urgent[0])
        binned = self._bins(self._rooms.rooms[unit.size], state, unit)  # runs while colour travels
        self._compute(self._receive(state, urgent[1]), unit, rest, binned)

    def publish(self, state: Any, pending: Publication) -> Any:
        _, rows = self._programs.lists()(pending.active, pending.urgent)
        part = self._send(pending, "whole", rows, pending.fields, pending.rest_count)
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
        produced = fitted(produced, self._rooms, unit.size, lambda room: self._run(
            room, state, unit, self._bins(room, state, unit)))
        self.times.span(COMPUTE, unit.step, "forward and backward", started)
        self._seconds = time.perf_counter() - started
        if rest is not None:
            state = self._receive(state, rest)
        return dataclasses.replace(state, **produced.local), produced

    def tell(self, state: Any, produced: Produced, step: int, unit: Unit | None, expected: Any, stop: bool) -> Word:
        start = time.perf_counter()
        words = jax.block_until_ready(self._programs.words(state, unit, expected, step))
        if unit is not None:
            self.times.span(COMPUTE, unit.step, "scope", start)
        host = self._programs.each(np.array([self._seconds, stop], np.float32))
        run = partial(self._programs.tell(expected is not None), produced.activity, *words, host)
        return self._lane.wait("word", self._lane.send(step, "word", run))

    def gate(self, produced: Produced, delayed: Any, skipped: Any, mean: float, tau: float, count: int) -> Any:
        room = room_for(count, 8 * delayed.size, 1)
        run = partial(self._programs.gate(tau, room), produced.activity, delayed, skipped, np.float32(mean))
        return np.asarray(here(self._lane.wait("gate", self._lane.send(0, "gate", run))))

    def close(self) -> None:
        self._lane.close()

    def _compute(self, state: Any, unit: Unit, rest: _Part | None, binned: Any) -> None:
        started = time.perf_counter()
        produced = self._run(self._rooms.rooms[unit.size], state, unit, binned)
        self._running = _Running(state, unit, produced, started, rest)

    def _bins(self, room: int, state: Any, unit: Unit) -> Any:
        return self._programs.bins(room)(state, unit.views)

    def _run(self, room: int, state: Any, unit: Unit, binned: Any) -> Produced:
        return self._programs.compute(room)(state, unit.views, scalar(unit.step), binned)

    def _settle(self, state: Any, pending: Publication) -> Any:
        return self._programs.settle(pending.fields)(state, pending.active, pending.visible, pending.inputs)

    def _send(self, pending: Publication, name: str, rows: Any, fields: tuple[str, ...], count: int) -> _Part:
        """Start the exchange of the first ``count`` rows of a list; of no fields there is nothing to exchange."""
        grads = pending.produced.grads
        sent = []
        for first, length in pieces(count) if fields else ():
            staged = self._programs.stage(fields, length)(grads, rows, scalar(first))
            run = partial(self._programs.total(), staged)
            sent.append((first, length, self._lane.send(pending.unit, name, run)))
            self._staged.append(staged)
            self.times.add_sent(name, self._programs.bytes_of(grads, fields, length))
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
            summed, program = self._lane.wait(part.name, future), self._programs.apply(part.fields, length)
            state = program(state, part.rows, scalar(first), summed, part.pending.visible, part.pending.inputs)
        return state
