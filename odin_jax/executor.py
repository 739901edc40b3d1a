"""How a window runs on a machine: the interface of executors, and what they share.

An executor knows how, not what: it is told which rows are published when, and gives the same numbers as any other. It
works on immutable arrays; ``finish`` gives the state in which all of the pending publication is readable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from odin_jax import exchange, publish, stages
from odin_jax.parallel.mesh import OWN, SAME, Ranks, here, mine
from odin_jax.publish import Publication, width
from odin_jax.rooms import PairRooms
from odin_jax.stages import Produced, Word
from splat.backend import backend

COMPUTE, COMM = "compute", "communication"  # lanes
# A GPU adds up the gradients of a row in the order in which they come, unless it is told not to.
REPRODUCIBLE = {"xla_gpu_deterministic_ops": True}


class Unit(NamedTuple):
    """A task unit on the devices."""

    step: int  # 1-based
    views: tuple[Any, ...]  # the rank's views; arrays have a part per rank
    size: tuple[int, int]  # width and height of the largest view, pixels


@dataclass(frozen=True)
class Span:
    """One bar of the timeline."""

    lane: str
    unit: int
    name: str
    start: float  # seconds on the clock of ``time.perf_counter``
    end: float


@dataclass
class Times:
    """Where the time of a window went; ``take`` starts the next one."""

    spans: list[Span] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)  # seconds the compute lane stood still, by what it waited for
    sent: dict[str, int] = field(default_factory=dict)  # bytes each rank sent, by part

    def span(self, lane: str, unit: int, name: str, start: float) -> None:
        """A bar that ends now."""
        self.spans.append(Span(lane, unit, name, start, time.perf_counter()))

    def wait(self, name: str, start: float) -> None:
        """The compute lane stood still from ``start`` until now."""
        self.waits[name] = self.waits.get(name, 0.0) + time.perf_counter() - start

    def add_sent(self, name: str, count: int) -> None:
        """Each rank sent so many bytes more of a part."""
        self.sent[name] = self.sent.get(name, 0) + count

    def take(self) -> Times:
        """What has been noted so far, which is then forgotten here."""
        taken = Times(self.spans, self.waits, self.sent)
        self.spans, self.waits, self.sent = [], {}, {}
        return taken


class Executor(Protocol):
    """Runs units and publications on all ranks."""

    times: Times

    def start(self, state: Any, unit: Unit) -> None:
        """Start forward and backward of ``unit``, which reads ``state``."""
        ...

    def look_ahead(self, unit: Unit) -> None:
        """``unit`` comes next: what can be done for it while the running unit computes may be done."""
        ...

    def overlap(self, state: Any, pending: Publication, unit: Unit) -> None:
        """Publish the urgent rows, then start ``unit`` while the rest is published. Uses up the state."""
        ...

    def publish(self, state: Any, pending: Publication) -> Any:
        """Publish everything and wait for it; the state with the whole update. Uses up the state."""
        ...

    def finish(self) -> tuple[Any, Produced]:
        """Wait for the running unit and the publication beside it.

        (state with the whole update of the unit before and the statistics of this one, what the unit produced). A unit
        that did not fit its room is run again with a larger one, on the rows that it read before.
        """
        ...

    def tell(self, state: Any, produced: Produced, step: int, unit: Unit | None, expected: Any, stop: bool) -> Word:
        """What the ranks learn of each other: what unit ``step`` did, and the scope of ``unit`` if one follows.

        ``expected``: rows that each view of ``unit`` will update (see ``stages.scope``); None: all that it reads.
        ``stop``: this process was told to stop.
        """
        ...

    def gate(self, produced: Produced, delayed: Any, skipped: Any, mean: float, tau: float, count: int) -> Any:
        """[2] int32: delayed rows (``count`` of them) that fail the gate with ``mean``, and that skipped before."""
        ...

    def close(self) -> None:
        """Let go of threads."""
        ...


class Programs:
    """The compiled functions of a pipeline on its ranks; one per static argument, compiled when first called."""

    def __init__(self, ranks: Ranks, pipeline: Any, kind: str, state_kinds: Any):
        """``kind``: the exchange, psum or ordered; ``state_kinds``: see ``placement.kinds``."""
        self.ranks, self.pipeline, self.exchange, self.state_kinds = ranks, pipeline, kind, state_kinds
        self._made: dict[Any, Callable[..., Any]] = {}
        self._options = REPRODUCIBLE if kind == "ordered" and backend() == "gpu" else None

    def program(self, key: Any, function: Callable[..., Any], ins: Any, outs: Any,
                donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """``function`` on every rank (see ``Ranks.program``), made once for each ``key``."""
        if key not in self._made:
            self._made[key] = self.ranks.program(function, ins, outs, donate, self._options)
        return self._made[key]

    def size(self, state: Any) -> tuple[int, int]:
        """(room for rows, rows alive) of a state."""
        alive = np.asarray(here(state.alive))
        return len(alive), int(alive.sum())

    def by_view(self, views: np.ndarray, of_view: Callable[[int], np.ndarray]) -> Any:
        """Packed sets ``of_view`` of a unit's views [R, S], as the ranks of this process need them."""
        ranks = self.ranks
        return ranks.own([np.stack([of_view(int(view)) for view in views[rank]]) for rank in ranks.local])

    def words(self, state: Any, unit: Unit | None, expected: Any, step: int) -> tuple[Any, Any]:
        """R⁺ and W⁺ of the next unit's views by rank while ``step`` is pending; empty where no unit follows."""
        if unit is not None:
            return self.scope()(state, tuple(view.camera for view in unit.views), expected, scalar(step))
        nothing = self.each(np.zeros(-(-len(state.alive) // 8), np.uint8))
        return nothing, nothing

    def each(self, value: np.ndarray) -> Any:
        """The same value as the part of every rank of this process."""
        return self.ranks.own([value] * len(self.ranks.local))

    def bytes_of(self, grads: Any, fields: tuple[str, ...], rows: int) -> int:
        """Bytes that each rank sends for ``rows`` rows of ``fields``."""
        wide = sum(width(getattr(grads, field), 2) for field in fields)
        return exchange.bytes_of_total(rows, wide, self.ranks.count)

    def fields(self, step: int) -> tuple[str, ...]:
        """Fields that the optimizer step ``step`` changes, geometry first; all but for a pipeline that says so."""
        every = self.pipeline.geometry_fields + self.pipeline.colour_fields
        changed = getattr(self.pipeline, "exchanged_fields", None)
        return every if changed is None else tuple(name for name in every if name in changed(step))

    def groups(self, fields: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those of geometry and those of colour."""
        geometry = tuple(name for name in fields if name in self.pipeline.geometry_fields)
        return geometry, tuple(name for name in fields if name not in geometry)

    def compute(self, room: int):
        """(state, views, step, bins) → ``Produced``."""
        def run(state, views, step, binned):
            return stages.compute(self.pipeline, self.ranks.count, room, state, views, step, binned)

        return self.program(("compute", room), run, (self.state_kinds, OWN, SAME, OWN), OWN)

    def bins(self, room: int):
        """(state, views) → what ``compute`` needs of geometry alone, or None."""
        return self.program(("bins", room), partial(stages.bins, self.pipeline, room), (self.state_kinds, OWN), OWN)

    def scope(self):
        """(state, cameras, expected, step) → R⁺, W⁺ of each rank's views."""
        def run(state, cameras, expected, step):
            return stages.scope(self.pipeline, state, cameras, expected, step)

        return self.program("scope", run, (self.state_kinds, OWN, OWN, SAME), OWN)

    def tell(self, views: bool):
        """(activity, R⁺, W⁺, host) → ``Word``."""
        return self.program(("tell", views), partial(stages.tell, views), (OWN, OWN, OWN, OWN), SAME)

    def magnitude(self):
        """activity → [N] g_U(p), summed over ranks."""
        def run(activity):
            return exchange.total(activity.magnitude[:, None], "ordered")[:, 0]

        return self.program("magnitude", run, (OWN,), SAME)

    def gate(self, tau: float, room: int):
        """(activity, delayed, skipped, mean) → [2] counts."""
        def run(activity, delayed, skipped, mean):
            return stages.gate(activity, delayed, skipped, mean, tau, room, self.exchange)

        return self.program(("gate", tau, room), run, (OWN, SAME, SAME, SAME), SAME)

    def inputs(self) -> Callable[..., Any]:
        """(state, step) → ``StepInputs``; a program of its own, so that every part gets the same scalars."""
        return self.program("inputs", self.pipeline.step_inputs, (self.state_kinds, SAME), SAME)

    def settle(self, fields: tuple[str, ...]):
        """(state, C_A, visible, inputs) → state; uses the state up."""
        def run(state, active, visible, inputs):
            return publish.settle(self.pipeline, state, active, visible, inputs, fields)

        return self.program(("settle", fields), run, (self.state_kinds, SAME, SAME, SAME), self.state_kinds, (0,))

    def lists(self):
        """(active, urgent) → indices [N] of the urgent rows and of the others, padded."""
        def run(active, urgent):
            return tuple(stages.row_list(rows, 8 * rows.size) for rows in (urgent, active & ~urgent))

        return self.program("lists", run, (SAME, SAME), SAME)

    def stage(self, fields: tuple[str, ...], length: int):
        """(grads, list, first row) → each rank's gradients of a piece of the list."""
        def run(grads, rows, first):
            return publish.stage(grads, _piece(rows, first, length), fields)

        return self.program(("stage", fields, length), run, (OWN, SAME, SAME), OWN)

    def total(self):
        """A staged piece → its sum over ranks."""
        def run(staged):
            return exchange.total(staged, self.exchange)

        return self.program("total", run, (OWN,), SAME)

    def apply(self, fields: tuple[str, ...], length: int):
        """(state, list, first row, sums, visible, inputs) → state; uses the state up."""
        def run(state, rows, first, summed, visible, inputs):
            return publish.apply(self.pipeline, state, _piece(rows, first, length), summed, fields, visible, inputs)

        kinds = self.state_kinds
        return self.program(("apply", fields, length), run, (kinds, SAME, SAME, SAME, SAME, SAME), kinds, (0,))


def _piece(rows: jax.Array, first: jax.Array, length: int) -> jax.Array:
    """[length] entries of a list [N] from ``first`` on; beyond its end there is padding."""
    padded = jnp.pad(rows, (0, length), constant_values=len(rows))
    return jax.lax.dynamic_slice_in_dim(padded, first, length)


def fitted(produced: Produced, rooms: PairRooms, size: tuple[int, int], again: Callable[[int], Produced]) -> Produced:
    """What a finished unit produced, by running it ``again(room)`` in larger rooms until it fits."""
    while any(map(bool, mine(jax.block_until_ready(produced).activity.overflow))):
        rooms.widen(size, max(int(pairs.max()) for pairs in mine(produced.activity.pairs)))
        produced = again(rooms.rooms[size])
    return produced


def scalar(step: int) -> Any:
    """A step number as every program takes it: traced, int32."""
    return np.int32(step)
