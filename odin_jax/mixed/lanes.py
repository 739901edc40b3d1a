"""Executor of mixed parallelism: a compute lane and a communication lane (design §9, "lanes").

A unit's rows travel to the strips before it renders, and its gradients travel back after. Of a unit B, rows that the
running unit A was sent nothing of cannot be pending: they take A's step without gradient, are projected and sent while
A renders (``look_ahead``). After A, the urgent gradients return and are applied, the rest of B's rows is sent, and the
rest of A's gradients returns while B renders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from odin_jax.executor import COMPUTE, scalar
from odin_jax.lanes import Lanes
from odin_jax.mixed.owners import Screening
from odin_jax.mixed.programs import MixedPrograms, MixedUnit
from odin_jax.mixed.renderers import Entries
from odin_jax.parallel.mesh import here, mine
from odin_jax.publish import PIECES, Publication, pieces, room_for
from odin_jax.rooms import PairRooms
from odin_jax.stages import Produced

HEADROOM = 1.25  # room for rows over the most there have been

Screened = Callable[[int, np.ndarray, np.ndarray], None]


class _Rooms:
    """Room for the rows of lists by what they are: of few sizes, as they are compiled in, and never less than before.
    """

    def __init__(self) -> None:
        self._rooms: dict[Any, int] = {}

    def fit(self, kind: Any, most: int) -> int:
        """Room of a ``kind`` for ``most`` rows."""
        if most > self._rooms.get(kind, 0):
            self._rooms[kind] = room_for(max(int(most * HEADROOM), PIECES[-1]), 1 << 30, 1)
        return self._rooms.get(kind, PIECES[-1])


class _Pieces(NamedTuple):
    """Lists of rows between the ranks on their way, in pieces."""

    name: str
    pieces: list[tuple[int, int, Future[Any]]]  # first row, length, what came

    @property
    def length(self) -> int:
        """Rows of all pieces."""
        return sum(length for _, length, _ in self.pieces)


class _Sent(NamedTuple):
    """Attributes on their way."""

    far: _Pieces
    counts: np.ndarray  # [R, Q] rows of each rank for each strip
    costs: np.ndarray  # [V, T] of the tile rows


class _Early(NamedTuple):
    """What was sent of the next unit while the running one renders."""

    step: int
    sent: _Sent
    late: Any  # [L] rows of which nothing was sent


class _Flight(NamedTuple):
    """A unit from its rows to its gradients."""

    unit: MixedUnit
    observed: Any  # the parameters that it reads
    screening: Screening
    entries: Entries
    rooms: tuple[int, int]  # for rows between two ranks, and for a rank's own
    strips: tuple[Any, ...]  # ``renderers.Rendered`` of each slot
    started: float


class _Part(NamedTuple):
    """Rows whose gradients go back to their owners."""

    name: str
    pending: Publication
    words: Any  # [N/8] packed
    route: Any  # [Q, L]
    most: int  # rows between two ranks


class _Returning(NamedTuple):
    """Gradients on their way back."""

    part: _Part
    flight: _Flight
    far: _Pieces
    near: Any  # this rank's own


class MixedLanes(Lanes):
    """Executor for rows and pixels that are divided over the ranks."""

    _programs: MixedPrograms

    def __init__(self, programs: MixedPrograms, rooms: PairRooms, on_screened: Screened | None = None):
        """``on_screened(step, costs [V, T], counts [R, Q])`` is told what every tile row of a unit holds, and how many
        rows of each rank each strip was sent.
        """
        super().__init__(programs, rooms)
        self._on_screened = on_screened
        self._lists = _Rooms()
        self._flight: _Flight | None = None  # the unit that renders, or has ended and is not published yet
        self._state: Any = None
        self._rest: _Returning | None = None
        self._early: _Early | None = None
        self._settled: Any = None  # [L] rows that took the step of the unit in flight already

    def start(self, state: Any, unit: Any) -> None:
        self._render(state, unit, self._screened(state, unit))

    def look_ahead(self, unit: Any) -> None:
        flight, programs = self._flight, self._programs
        assert flight is not None
        state, step, fields = self._caught_up(), scalar(flight.unit.step), programs.fields(flight.unit.step)
        late = programs.kept_back()(state, flight.screening.route, step)
        self._settled = programs.inverse()(late)
        settle = programs.settle_rows(fields, flight.unit.views, last=False)
        self._state = settle(state, self._settled, flight.screening.seen, step, programs.inputs()(state, step))
        screening = self._screened(self._state, unit)
        sent = self._send(unit, "early attributes", screening, programs.narrowed()(screening.route, self._settled))
        self._early = _Early(unit.step, sent, late)

    def overlap(self, state: Any, pending: Publication, unit: Any) -> None:
        urgent, rest = self._parts(pending, {"urgent": pending.urgent, "rest": pending.active & ~pending.urgent})
        returning = self._give_back(urgent)
        state = self._receive_part(self._settle_others(state, pending), returning)
        self._render(state, unit, self._screened(state, unit), rest)

    def publish(self, state: Any, pending: Publication) -> Any:
        (whole,) = self._parts(pending, {"whole": pending.active})
        returning = self._give_back(whole)
        state = self._receive_part(self._settle_others(state, pending), returning)
        start = time.perf_counter()
        jax.block_until_ready(state)
        self.times.span(COMPUTE, pending.unit, "update", start)
        return state

    def finish(self) -> tuple[Any, Produced]:
        flight = self._fitted()
        self.times.span(COMPUTE, flight.unit.step, "forward and backward", flight.started)
        self._seconds = time.perf_counter() - flight.started
        state, unit, programs = self._caught_up(), flight.unit, self._programs
        activity = programs.activity()(state, flight.strips, flight.screening, unit.table, programs.ids,
                                       scalar(unit.step))
        return state, Produced({"attributes": flight.strips[0].d_attributes}, {}, activity)

    def _screened(self, state: Any, unit: MixedUnit) -> Screening:
        return self._programs.screen()(state, unit.cameras, unit.table, scalar(unit.step))

    def _send(self, unit: MixedUnit, name: str, screening: Screening, route: Any) -> _Sent:
        """Start to send the rows of a route; how many there are is known on return."""
        programs = self._programs
        told = self._lane.wait("counts", self._lane.send(
            unit.step, "counts", partial(programs.counts(), route, screening.costs)))
        counts, costs = (np.asarray(here(part)) for part in told)
        most = _by_rank(counts)[0]
        far = programs.pack(self._lists.fit("far", most))(screening, unit.table, programs.ids, route)
        return _Sent(self._swap(unit.step, name, far, most), counts, costs)

    def _swap(self, unit: int, name: str, far: Any, most: int) -> _Pieces:
        """Start to exchange the first ``most`` rows [R, R, C, …] that every two ranks have for each other."""
        ranks, sent = self._programs.ranks.count, []
        for first, length in pieces(most):
            run = partial(self._programs.swap(length), far, scalar(first))
            sent.append((first, length, self._lane.send(unit, name, run)))
            self.times.add_sent(name, (ranks - 1) * length * far.shape[-1] * far.dtype.itemsize)
        return _Pieces(name, sent)

    def _received(self, parts: Sequence[_Pieces], room: int, width: int, keyed: bool) -> Any:
        """[R, room, width] what came from every rank, waiting for it; the parts one after the other."""
        whole, at = self._programs.empty(room, width, keyed)(), 0
        for part in parts:
            for first, _, future in part.pieces:
                piece = self._lane.wait(part.name, future)
                whole = self._programs.put()(whole, piece, scalar(at + first))
            at += part.length
        return whole

    def _render(self, state: Any, unit: MixedUnit, screening: Screening, rest: _Part | None = None) -> None:
        """Send what was not yet sent of the rows, then start to render, with the ``rest`` of the unit before."""
        early, self._early, programs = self._early, None, self._programs
        if early is not None and early.step == unit.step:
            route = programs.narrowed()(screening.route, early.late)
            sent = [early.sent, self._send(unit, "late attributes", screening, route)]
        else:
            sent = [self._send(unit, "attributes", screening, screening.route)]
        returning = None if rest is None else self._give_back(rest)
        counts = np.sum([one.counts for one in sent], 0)
        parts = [one.far for one in sent]
        rooms = (self._lists.fit("far", sum(part.length for part in parts)),
                 self._lists.fit("near", _by_rank(counts)[1]))
        far = self._received(parts, rooms[0], screening.attributes.shape[-1] + 1, keyed=True)
        started = time.perf_counter()
        near = programs.keep(rooms[1])(screening, unit.table, programs.ids, screening.route)
        places = self._lists.fit((unit.size, programs.layout.rows), int(counts.sum(0).max()))
        entries = programs.ordered(unit.slots, places)(far, near)
        strips = self._strips(unit, entries)
        self._state, self._rest = state, returning
        self._flight = _Flight(unit, state.gaussians, screening, entries, rooms, strips, started)
        if self._on_screened:
            self._on_screened(unit.step, sent[0].costs, counts)

    def _strips(self, unit: MixedUnit, entries: Entries) -> tuple[Any, ...]:
        render = self._programs.render(self._rooms.rooms[unit.size])
        return tuple(render(entries, scalar(slot), strip, scalar(unit.step)) for slot, strip in enumerate(unit.strips))

    def _fitted(self) -> _Flight:
        """The unit in flight once it has ended, run in larger rooms until it fits."""
        flight = self._flight
        assert flight is not None
        while any(bool(over) for strip in jax.block_until_ready(flight.strips) for over in mine(strip.overflow)):
            pairs = max(int(part) for strip in flight.strips for part in mine(strip.pairs))
            self._rooms.widen(flight.unit.size, pairs)
            flight = flight._replace(strips=self._strips(flight.unit, flight.entries))
        self._flight = flight
        return flight

    def _caught_up(self) -> Any:
        """The state with all of the publication that was still under way."""
        if self._rest is not None:
            self._state, self._rest = self._receive_part(self._state, self._rest), None
        return self._state

    def _settle_others(self, state: Any, pending: Publication) -> Any:
        """The state after the step of the rows without gradient that have not taken it yet."""
        programs, flight, settled = self._programs, self._flight, self._settled
        assert flight is not None and flight.unit.step == pending.unit
        others = programs.inverse()(programs.members()(pending.active, programs.ids))
        if settled is not None:
            others = programs.narrowed()(others, programs.inverse()(settled))
        self._settled = None
        settle = programs.settle_rows(pending.fields, flight.unit.views, last=True)
        return settle(state, others, flight.screening.seen, scalar(pending.unit), pending.inputs)

    def _parts(self, pending: Publication, sets: dict[str, Any]) -> Sequence[_Part]:
        """The packed ``sets`` of rows as what goes back in one piece each."""
        flight, programs = self._flight, self._programs
        assert flight is not None
        run = partial(programs.returns(), flight.screening.route, programs.ids, tuple(sets.values()))
        counts, routes = self._lane.wait("counts", self._lane.send(pending.unit, "counts", run))
        each = np.asarray(here(counts))
        return [_Part(name, pending, words, route, _by_rank(of_set)[0])
                for (name, words), of_set, route in zip(sets.items(), each, routes, strict=True)]

    def _give_back(self, part: _Part) -> _Returning:
        """Start to send the gradients of a part to their owners."""
        flight = self._flight
        assert flight is not None
        grads = tuple(strip.d_attributes for strip in flight.strips)
        far, near = self._programs.give_back(flight.rooms)(grads, flight.entries, part.words)
        return _Returning(part, flight, self._swap(part.pending.unit, part.name, far, part.most), near)

    def _receive_part(self, state: Any, returning: _Returning) -> Any:
        """The state with the update of a part, waiting for its gradients."""
        (_, pending, words, route, _), flight, far, near = returning
        programs, unit = self._programs, flight.unit
        received = self._received([far], flight.rooms[0], near.shape[-1], keyed=False)
        d_attributes = programs.collect(unit.views)(received, near, unit.table, route)
        chosen = programs.members()(words, programs.ids)
        return programs.advance(pending.fields, unit.views)(
            state, flight.observed, d_attributes, chosen, flight.screening.seen, unit.cameras, scalar(pending.unit),
            pending.inputs)


def _by_rank(counts: np.ndarray) -> tuple[int, int]:
    """(most rows that one rank has for another, most that one has for itself) of the rows [R, R·P] of strips."""
    ranks = len(counts)
    by_rank = counts.reshape(ranks, ranks, -1).sum(2)
    own = np.eye(ranks, dtype=bool)
    return int(np.where(own, 0, by_rank).max()), int(by_rank[own].max())
