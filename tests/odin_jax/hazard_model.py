"""A state model of two slots, three units and four rows, explored exhaustively.

A world is the versioned state of ``odin_jax.versions`` plus what each row is to the units in flight. The compute lane
declares the scope of the next unit, which is when its window is validated with ``sched.hazards``, lets it observe state
and produce gradients; the communication lane publishes parts and commits. Scopes, gradients, evidence and structural
events are chosen in every way, and every event happens wherever the transitions and the lanes' own waiting (``ready``)
let it.

The exploration is complete up to two reductions. Rows are interchangeable, so worlds are kept up to their permutation.
A scope is declared when the unit before last is committed: neither lane can act on it sooner, for the unit cannot
observe state and its predecessor cannot be published before that commit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, combinations_with_replacement, groupby, product
from typing import NamedTuple

import numpy as np

from odin_jax import versions
from odin_jax.versions import OBSERVING, REST, URGENT, IllegalTransition, VersionedState
from sched.hazards import Action, Decision, Hazards, count, decide, high_impact, raw, war, waw

UNITS = 3
TAU = 0.5
NONE, WEAK, STRONG, UNKNOWN = range(4)  # a row's gradient: none, by magnitude, or active without evidence
MAGNITUDE = {NONE: 0, WEAK: 1, STRONG: 9, UNKNOWN: 0}
OUT, READ, WRITE = range(3)  # what a row is in declared scopes


class Row(NamedTuple):
    """A row as the units in flight see it."""

    geometry: int = 0  # updates produced and not readable
    colour: int = 0
    older: int = NONE  # gradient of the oldest pending unit
    newer: int = NONE  # and of the one after it
    role: int = OUT  # in the scopes of the newest declared unit, until it has gradients
    late: bool = False  # to be read late by the declared unit
    urgent: bool = False  # to be published before the declared unit observes state
    skipped: bool = False  # read late by the newest unit


class Plan(NamedTuple):
    """The declared unit, until it observes state."""

    unit: int
    action: Action
    structural: int  # version that its scopes are made for


class World(NamedTuple):
    now: VersionedState
    rows: tuple[Row, ...]
    plan: Plan | None = None


def canonical(world: World) -> World:
    """The same world with its rows numbered in sorted order."""
    rows = tuple(sorted(world.rows))
    if world.now.skipped is None:
        return World(world.now, rows, world.plan)
    return World(replace(world.now, skipped=mask(row.skipped for row in rows)), rows, world.plan)


def mask(rows) -> np.uint8:
    return np.uint8(sum(1 << at for at, row in enumerate(rows) if row))


def each(rows: tuple[Row, ...], options: Callable[[Row], tuple]) -> Iterator[tuple]:
    """Every way to give each of the sorted rows one of its options, once per permutation of equal rows."""
    alike = [combinations_with_replacement(options(row), len(list(group))) for row, group in groupby(rows)]
    return (tuple(chain(*choice)) for choice in product(*alike))


@cache
def lane_steps(now: VersionedState) -> list[tuple[str, int, str, VersionedState]]:
    """All that the transitions, each tried for every unit and part, let the lanes do from here but for observing."""
    allowed = []
    for unit in range(UNITS + 2):
        tries = [("produce", "", versions.produce, (unit, None)), ("commit", "", versions.commit, (unit,))]
        tries += [("publish", part, versions.publish, (unit, part, None)) for part in (*URGENT, REST)]
        for name, part, transition, arguments in tries:
            with suppress(IllegalTransition):
                allowed.append((name, unit, part, transition(now, *arguments)))
    return allowed


@dataclass
class Model:
    """The lanes over ``n_rows`` rows on one path; faults are planted by replacing its rules."""

    path: str
    n_rows: int
    rule: Callable[..., Decision] = decide
    patient: bool = True  # the compute lane waits as decided
    worlds: dict[World, int] = field(default_factory=dict)  # numbered as they are reached
    nexts: list[set[int]] = field(default_factory=list)  # of each world
    broken: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    def explore(self) -> Model:
        """Every reachable world, breadth first."""
        self.admit = cache(self._admit)
        start = World(VersionedState(None), (Row(),) * self.n_rows)
        self.worlds[start] = 0
        waiting = deque([start])
        while waiting:
            nexts = set()
            for name, after in self.steps(waiting.popleft()):
                self.events[name] += 1
                after = canonical(after)
                reached = len(self.worlds)
                number = self.worlds.setdefault(after, reached)
                if number == reached:
                    waiting.append(after)
                nexts.add(number)
            self.nexts.append(nexts)
        return self

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """All events that can happen next."""
        yield from self.declare(world)
        yield from self.change(world)
        yield from self.observe(world)
        for name, unit, part, now in lane_steps(world.now):
            if name == "produce":
                yield from self.produce(world, unit, now)
            elif name == "commit":
                rows = tuple(row._replace(older=row.newer, newer=NONE, urgent=False) for row in world.rows)
                yield name, World(now, rows, world.plan)
            elif world.plan or unit == UNITS or world.now.slots[(unit + 1) % 2]:  # the next scope tells what is urgent
                yield part, World(now, tuple(readable(row, part) for row in world.rows), world.plan)

    def declare(self, world: World) -> Iterator[tuple[str, World]]:
        """The next unit declares its scope, and its window is validated."""
        now, unit = world.now, newest(world.now) + 1
        pending = now.slots[(unit - 1) % 2]
        if world.plan or unit > UNITS or now.published < unit - 2 or (pending and pending.phase == OBSERVING):
            return
        for roles in each(world.rows, lambda _: (OUT, READ, WRITE)):
            kinds = tuple((row.older, role, row.skipped) for row, role in zip(world.rows, roles, strict=True))
            for structural in (False, True) if pending else (False,):
                decision, late = self.admit(kinds, structural, pending is not None)
                self.events[decision.action.value] += pending is not None
                wait = decision.action in (Action.PARTIAL, Action.DELAYED)
                rows = tuple(
                    row._replace(role=role, late=skip, urgent=wait and row.older > NONE and role > OUT and not skip)
                    for row, role, skip in zip(world.rows, roles, late, strict=True)
                )
                yield "declare", World(now, rows, Plan(unit, decision.action, now.structural + structural))

    def _admit(self, kinds, structural: bool, pending: bool) -> tuple[Decision, tuple[bool, ...]]:
        """The decision about one window and the rows it lets the unit read late."""
        if not pending:
            return Decision(Action.PROCEED, "nothing pending"), (False,) * self.n_rows
        levels, roles, skipped = map(np.array, zip(*kinds, strict=True))
        active, reads, writes = levels > NONE, roles > OUT, roles == WRITE
        delayed = raw(active, reads, writes)
        magnitude = np.array([MAGNITUDE[level] for level in levels])
        evidence = UNKNOWN not in levels
        hazards = Hazards(
            waw=int(count(waw(active, writes))),
            raw=int(count(delayed)),
            war=int(count(war(np.ones_like(active), active, writes))),
            read_b=int(count(reads)),
            failing=int(count(high_impact(delayed, active, magnitude, TAU))) if evidence else None,
            skipped=int(count(delayed & skipped)),
        )
        decision = self.rule(hazards, path=self.path, tau=TAU, structural=structural)
        return decision, tuple(delayed.tolist() if decision.action is Action.DELAYED else [False] * self.n_rows)

    def observe(self, world: World) -> Iterator[tuple[str, World]]:
        """The declared unit takes the published state, when it has waited as decided."""
        plan, now = world.plan, world.now
        if plan is None or (self.patient and not ready(plan, now)):
            return
        before = now.slots[(plan.unit - 1) % 2]
        over = before is None or REST in before.parts  # then nothing is late any more
        rows = tuple(row._replace(skipped=row.late and not over, late=False) for row in world.rows)
        late = mask(row.skipped for row in rows)
        try:
            after = versions.observe(now, plan.unit, plan.structural, late if late else None)
        except IllegalTransition as refusal:
            self.events[str(refusal)] += 1
            return
        self.broken.update(violations(world.rows, rows, self.path, plan.structural == now.structural))
        yield "observe", World(after, rows)

    def change(self, world: World) -> Iterator[tuple[str, World]]:
        """The structural event for which the declared unit waits."""
        plan = world.plan
        if plan is None or plan.structural == world.now.structural:
            return
        try:
            now = versions.change_structure(world.now, None)
        except IllegalTransition:
            self.events["change refused"] += 1
            return
        self.broken["structure changes over pending rows"] += any(row.geometry + row.colour for row in world.rows)
        yield "change", World(now, tuple(row._replace(skipped=False) for row in world.rows), plan)

    def produce(self, world: World, unit: int, now: VersionedState) -> Iterator[tuple[str, World]]:
        """``unit`` gets its gradients, whatever they are."""
        slot = "newer" if world.now.pending else "older"
        for levels in each(world.rows, self.gradients(unit)):
            if UNKNOWN in levels and (WEAK in levels or STRONG in levels):
                continue
            rows = tuple(produced(row, level, slot) for row, level in zip(world.rows, levels, strict=True))
            yield "produce", World(now, rows)

    def gradients(self, unit: int) -> Callable[[Row], tuple]:
        """The gradients that a row may get: none outside the read scope; outside the write scope only where scopes are
        evidence and no proof. Magnitudes matter on the throughput-first path alone, and no unit follows the last one.
        """
        if unit == UNITS:
            return lambda row: (WEAK if row.role == WRITE else NONE,)
        some = (NONE, WEAK, STRONG, UNKNOWN) if self.path == "throughput" else (NONE, WEAK)
        least = READ if self.path in ("throughput", "unvalidated") else WRITE
        return lambda row: some if row.role >= least else (NONE,)

    def stuck(self) -> int:
        """Number of worlds from which the end, every unit published, cannot be reached."""
        before: list[list[int]] = [[] for _ in self.worlds]
        for number, nexts in enumerate(self.nexts):
            for after in nexts:
                before[after].append(number)
        waiting = [number for world, number in self.worlds.items() if world.now.published == UNITS]
        reached = set(waiting)
        while waiting:
            fresh = [number for number in before[waiting.pop()] if number not in reached]
            reached.update(fresh)
            waiting += fresh
        return len(self.worlds) - len(reached)


def ready(plan: Plan, now: VersionedState) -> bool:
    """Whether what the decision makes the unit wait for is readable."""
    before = now.slots[(plan.unit - 1) % 2]
    if before is None or plan.action is Action.PROCEED:
        return True
    return plan.action is not Action.BARRIER and set(URGENT) <= set(before.parts)


def newest(now: VersionedState) -> int:
    return max([now.published, *(slot.unit for slot in now.slots if slot)])


@cache
def produced(row: Row, level: int, slot: str) -> Row:
    """The row after a unit gave it a gradient of this level."""
    more = int(level > NONE)
    return row._replace(geometry=row.geometry + more, colour=row.colour + more, role=OUT, **{slot: level})


@cache
def readable(row: Row, part: str) -> Row:
    """The row after a part of the oldest pending unit is published."""
    if row.older == NONE or row.urgent != (part != REST):
        return row
    fields = ("geometry", "colour") if part == REST else part.split()[1:]
    return row._replace(**{name: getattr(row, name) - 1 for name in fields})


def violations(before: tuple[Row, ...], rows: tuple[Row, ...], path: str, same_structure: bool) -> Iterator[str]:
    """The rules of a read, from the rows alone; ``before`` tells what the unit before had skipped."""
    late = [row for row in rows if row.skipped]
    if not same_structure:
        yield "reads another structural version"
    for was, row in zip(before, rows, strict=True):
        skips = {row.geometry, row.colour}
        if row.role == OUT:
            if row.skipped:
                yield "late outside the scope"
        elif row.skipped:
            if skips != {1}:
                yield "late rows do not skip one update"
            if row.role == WRITE:
                yield "late row is written"
            if was.skipped:
                yield "late twice"
            if row.older == UNKNOWN:
                yield "late without evidence"
            active = [MAGNITUDE[other.older] for other in rows if other.older > NONE]
            if MAGNITUDE[row.older] > TAU * sum(active) / max(len(active), 1):
                yield "late against the gate"
        elif skips != {0}:
            yield "stale read of a row it writes" if row.role == WRITE else "stale read of a row it reads"
    if late and path != "throughput":
        yield "late rows on another path"
    if len(late) > TAU * sum(row.role > OUT for row in rows):
        yield "late share above tau"
