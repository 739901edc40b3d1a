"""One program per window: publication of one unit and forward and backward of the next (design §9, "fused").

On GPU and TPU the programs of a device run in order, so overlap has to happen within one. XLA's latency-hiding
scheduler turns collectives into start and done with the computation between them, but finishes each before the next
loop begins unless something keeps it from doing so: here, a barrier that joins what a collective gives with what the
loop gives. Colours and, under ``ordered``, the first half of the rest travel beside the making of tile lists; the rest
travels beside forward and backward. ``odin gpu-check`` compiles this and looks (docs/gpu.md).
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from odin_jax import exchange, publish, stages
from odin_jax.executor import COMM, COMPUTE, Programs, Times, Unit, fitted, scalar
from odin_jax.parallel.mesh import OWN, SAME, here
from odin_jax.publish import Publication, room_for
from odin_jax.rooms import PairRooms
from odin_jax.stages import Produced, Word
from splat.apart import apart

beside = jax.lax.optimization_barrier  # nothing that uses one of the values starts before all of them are there
# Scopes of a window's program, which name its instructions: parts that travel, then what is computed.
GEOMETRY, COLOUR, REST, BINS, UNIT = "urgent_geometry", "urgent_colour", "rest", "tile_lists", "forward_backward"

GRAIN = 2  # lengths of row lists to a doubling
SPARE = 2.0  # a program that is there is used for lists that together are so many times shorter


class _Running(NamedTuple):
    """A program under way that ends with a unit."""

    state: Any  # with the whole update of the unit before
    unit: Unit
    produced: Produced
    late: tuple[Any, Any] | None  # [M] rows and the parameters [M, ...] that the unit read there; None: as in state
    started: float


class Fused:
    """Executor with one program per window."""

    def __init__(self, programs: Programs, rooms: PairRooms):
        self.times = Times()
        self._programs, self._rooms = programs, rooms
        self._pipeline: Any = programs.pipeline
        self._running: _Running | None = None
        self._seconds = 0.0
        self._lengths: dict[Any, list[tuple[int, ...]]] = {}  # of the lists that programs were made for

    def start(self, state: Any, unit: Unit) -> None:
        started = time.perf_counter()
        produced = self._alone(self._room(unit))(state, unit.views, scalar(unit.step))
        self._running = _Running(state, unit, produced, None, started)

    def look_ahead(self, unit: Unit) -> None:
        pass

    def overlap(self, state: Any, pending: Publication, unit: Unit) -> None:
        started = time.perf_counter()
        key = ("window", self._room(unit), pending.fields)
        urgent, rest = self._lists(key, pending, pending.urgent_count, pending.rest_count)
        geometry, colour = self._programs.groups(pending.fields)
        self._count(pending, "urgent geometry", geometry, urgent)
        self._count(pending, "urgent colour", colour, urgent)
        self._count(pending, "rest", pending.fields, rest)
        program = self._window(self._room(unit), urgent, rest, pending.fields)
        state, produced, late = program(state, pending.produced.grads, pending.active, pending.visible, pending.urgent,
                                        pending.inputs, unit.views, scalar(unit.step))
        self._running = _Running(state, unit, produced, late, started)

    def publish(self, state: Any, pending: Publication) -> Any:
        start = time.perf_counter()
        (room,) = self._lists(("whole", pending.fields), pending, pending.rest_count)
        self._count(pending, "whole", pending.fields, room)
        state = jax.block_until_ready(self._whole(room, pending.fields)(
            state, pending.produced.grads, pending.active, pending.visible, pending.inputs))
        self.times.wait("whole", start)
        self.times.span(COMM, pending.unit, "whole", start)
        return state

    def finish(self) -> tuple[Any, Produced]:
        assert self._running is not None
        state, unit, produced, late, started = self._running
        self._running = None
        produced = fitted(produced, self._rooms, unit.size, lambda room: self._again(room, late is not None)(
            state, late, unit.views, scalar(unit.step)))
        self._seconds = time.perf_counter() - started
        self.times.span(COMPUTE, unit.step, "window", started)
        return dataclasses.replace(state, **produced.local), produced

    def tell(self, state: Any, produced: Produced, step: int, unit: Unit | None, expected: Any, stop: bool) -> Word:
        start = time.perf_counter()
        host = self._programs.each(np.array([self._seconds, stop], np.float32))
        words = self._programs.words(state, unit, expected, step)
        word = jax.block_until_ready(self._programs.tell(expected is not None)(produced.activity, *words, host))
        self.times.wait("word", start)
        self.times.span(COMM, step, "word", start)
        return word

    def gate(self, produced: Produced, delayed: Any, skipped: Any, mean: float, tau: float, count: int) -> Any:
        program = self._programs.gate(tau, room_for(count, 8 * delayed.size, 1))
        return np.asarray(here(program(produced.activity, delayed, skipped, np.float32(mean))))

    def close(self) -> None:
        return None

    def _room(self, unit: Unit) -> int:
        return self._rooms.rooms[unit.size]

    def _lists(self, key: Any, pending: Publication, *rows: int) -> tuple[int, ...]:
        """Static lengths for lists of so many rows; 0: nothing to exchange.

        A window's program is long to compile, so one that is there is taken as long as at most ``SPARE`` times as much
        travels as with lengths made to measure, and a new one is made for the longest lists so far. All processes
        count the same rows, so they choose alike.
        """
        if not pending.fields:
            return (0,) * len(rows)
        fitting = tuple(room_for(count, 8 * pending.active.size, GRAIN) for count in rows)
        made = self._lengths.setdefault((key, tuple(room > 0 for room in fitting)), [])
        most = SPARE * sum(fitting)
        enough = [lengths for lengths in made if sum(lengths) <= most and all(
            room >= least for room, least in zip(lengths, fitting, strict=True))]
        if enough:
            return min(enough, key=sum)
        longest = tuple(map(max, zip(fitting, *made, strict=True)))
        made.append(longest if sum(longest) <= most else fitting)
        return made[-1]

    def _count(self, pending: Publication, name: str, fields: tuple[str, ...], room: int) -> None:
        self.times.add_sent(name, self._programs.bytes_of(pending.produced.grads, fields, room))

    def _bins(self, room: int, state: Any, views: Any, step: Any) -> Any:
        """What the views need of geometry alone, compiled alike in every program that holds it."""
        return apart(partial(stages.bins, self._pipeline, room), step >= 0, state, views)

    def _compute(self, room: int, state: Any, views: Any, step: Any, binned: Any) -> Produced:
        """Forward and backward, compiled alike in every program that holds it."""
        run = partial(stages.compute, self._pipeline, self._programs.ranks.count, room)
        return apart(run, step >= 0, state, views, step, binned)

    def _alone(self, room: int) -> Any:
        def run(state: Any, views: Any, step: Any) -> Produced:
            return self._compute(room, state, views, step, self._bins(room, state, views, step))

        return self._programs.program(("alone", room), run, (self._programs.state_kinds, OWN, SAME), OWN)

    def _again(self, room: int, restored: bool) -> Any:
        """A unit once more, on the parameters that it read before."""
        def run(state: Any, late: Any, views: Any, step: Any) -> Produced:
            if restored:
                indices, parameters = late
                state = publish.with_parameters(self._pipeline, state, indices, parameters, step)
            return self._compute(room, state, views, step, self._bins(room, state, views, step))

        kinds = (self._programs.state_kinds, SAME, OWN, SAME)
        return self._programs.program(("again", room, restored), run, kinds, OWN)

    def _whole(self, room: int, fields: tuple[str, ...]) -> Any:
        def run(state: Any, grads: Any, active: Any, visible: Any, inputs: Any) -> Any:
            state = publish.settle(self._pipeline, state, active, visible, inputs, fields)
            return self._part(state, grads, active, fields, room, visible, inputs)

        kinds = self._programs.state_kinds
        return self._programs.program(("whole", room, fields), run, (kinds, OWN, SAME, SAME, SAME), kinds, (0,))

    def _part(self, state: Any, grads: Any, rows: Any, fields: Any, room: int, visible: Any, inputs: Any) -> Any:
        indices, half = self._sent(grads, rows, fields, room)
        return self._applied(state, indices, self._received(half, room), fields, visible, inputs)

    def _sent(self, grads: Any, rows: Any, fields: tuple[str, ...], room: int) -> tuple[Any, Any]:
        """The list of ``rows`` and the first half of the exchange of their gradients; None where nothing travels."""
        if room == 0 or not fields:
            return None, None
        indices = stages.row_list(rows, room)
        return indices, exchange.first_half(publish.stage(grads, indices, fields), self._programs.exchange)

    def _received(self, half: Any, room: int) -> Any:
        """The sum over ranks of what was sent."""
        return None if half is None else exchange.second_half(half, self._programs.exchange, room)

    def _applied(self, state: Any, indices: Any, summed: Any, fields: Any, visible: Any, inputs: Any) -> Any:
        if summed is None:
            return state
        return publish.apply(self._pipeline, state, indices, summed, fields, visible, inputs)

    def _window(self, room: int, urgent_room: int, rest_room: int, fields: tuple[str, ...]) -> Any:
        kinds = self._programs.state_kinds
        geometry, colour = self._programs.groups(fields)

        def run(state, grads, active, visible, urgent, inputs, views, step):
            state = publish.settle(self._pipeline, state, active, visible, inputs, fields)
            with jax.named_scope(GEOMETRY):
                state = self._part(state, grads, urgent, geometry, urgent_room, visible, inputs)
            with jax.named_scope(BINS):
                binned = self._bins(room, state, views, step)
            with jax.named_scope(COLOUR):
                listed, half = self._sent(grads, urgent, colour, urgent_room)
                colours = self._received(half, urgent_room)
            with jax.named_scope(REST):
                indices, half = self._sent(grads, active & ~urgent, fields, rest_room)
            binned, colours, half = beside((binned, colours, half))
            state = self._applied(state, listed, colours, colour, visible, inputs)
            with jax.named_scope(UNIT):
                produced = self._compute(room, state, views, step, binned)
            with jax.named_scope(REST):
                summed = self._received(half, rest_room)
            produced, summed = beside((produced, summed))
            if summed is None:
                return state, produced, None
            late = indices, publish.parameters(self._pipeline, state, indices)
            return self._applied(state, indices, summed, fields, visible, inputs), produced, late

        ins = (kinds, OWN, SAME, SAME, SAME, SAME, OWN, SAME)
        key = ("window", room, urgent_room, rest_room, fields)
        return self._programs.program(key, run, ins, (kinds, OWN, SAME), (0, 1))
