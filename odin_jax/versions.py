"""Published state, its metadata and the two units in flight, as one immutable value (paper §4.3, "Shadow Graph").

A unit's private view of the model is the published arrays with those rows replaced whose update it waited for: never a
copy of the model per unit. What a unit in flight adds is a slot of the ring with its staged gradients: one slot is
being produced while the other is being published. Every transition is a pure function from a value to a value; one that
the rules forbid raises ``IllegalTransition`` and changes nothing. Arrays pass through untouched, of any kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sched.hazards import Rows, count

URGENT = ("urgent geometry", "urgent colour")  # rows the next unit reads, by fields; before it observes state
REST = "rest"  # all other rows; may be published while the next unit computes
OBSERVING, PENDING = "observing", "pending"


class IllegalTransition(RuntimeError):
    """A step that the synchronisation rules forbid; always a fault of the program, never of a user."""


@dataclass(frozen=True)
class Slot:
    """A unit in flight."""

    unit: int  # 1-based step
    phase: str  # OBSERVING: it may read state; PENDING: it has its gradients and reads no more
    staged: Any = None  # its gradients and evidence, once it is pending
    parts: tuple[str, ...] = ()  # parts of its publication that are readable


@dataclass(frozen=True)
class VersionedState:
    """The model that units read, and what is known of its version."""

    state: Any  # published arrays; rows of a pending unit's published parts are already replaced in it
    published: int = 0  # newest unit whose whole update is readable
    structural: int = 0  # structural version
    skipped: Rows | None = None  # rows that the newest unit read without its predecessor's update; None: none
    slots: tuple[Slot | None, Slot | None] = (None, None)

    @property
    def pending(self) -> Slot | None:
        """The unit whose publication is under way: the oldest one that no longer reads."""
        waiting = [slot for slot in self.slots if slot is not None and slot.phase == PENDING]
        return min(waiting, key=lambda slot: slot.unit, default=None)

    def slot(self, unit: int) -> Slot:
        """The slot of a unit in flight. Raises ``IllegalTransition`` when it has none."""
        found = self.slots[unit % 2]
        if found is None or found.unit != unit:
            raise IllegalTransition(f"unit {unit} is not in flight")
        return found


def observe(now: VersionedState, unit: int, structural: int, late: Rows | None = None) -> VersionedState:
    """``unit`` begins to read state; ``late`` are the rows whose pending update it does without.

    Its predecessor must have finished reading, its own slot must be free, the structural version must be the one its
    scope was made for, and no row may be late twice in a row (at most one skipped update).
    """
    if unit != _newest(now) + 1:
        raise IllegalTransition(f"unit {unit} cannot observe state after unit {_newest(now)}")
    if now.slots[unit % 2] is not None:
        raise IllegalTransition(f"unit {unit} has no free slot: unit {unit - 2} is not published")
    before = now.slots[(unit - 1) % 2]
    if before is not None and before.phase == OBSERVING:
        raise IllegalTransition(f"unit {unit} cannot observe state while unit {unit - 1} still does")
    if structural != now.structural:
        raise IllegalTransition(f"unit {unit} was validated for structural version {structural}, not {now.structural}")
    if late is not None:
        if before is None or REST in before.parts:
            raise IllegalTransition(f"unit {unit} has no pending predecessor to read late")
        if now.skipped is not None and int(count(late & now.skipped)):
            raise IllegalTransition(f"unit {unit} would skip a second update of a row")
    return _with(replace(now, skipped=late), unit, Slot(unit, OBSERVING))


def produce(now: VersionedState, unit: int, staged: Any) -> VersionedState:
    """``unit`` has its gradients and reads no more: it is pending."""
    slot = now.slot(unit)
    if slot.phase != OBSERVING:
        raise IllegalTransition(f"unit {unit} has produced its gradients already")
    return _with(now, unit, replace(slot, phase=PENDING, staged=staged))


def publish(now: VersionedState, unit: int, part: str, state: Any) -> VersionedState:
    """A part of the update of ``unit`` is readable in ``state``: urgent geometry, then urgent colour, then the rest."""
    slot = now.slot(unit)
    if slot.phase != PENDING:
        raise IllegalTransition(f"unit {unit} is not pending: it has nothing to publish")
    if unit != now.published + 1:
        raise IllegalTransition(f"unit {unit} cannot be published before unit {now.published + 1}")
    order = (*URGENT, REST)
    if part not in order or order.index(part) != len(slot.parts):
        raise IllegalTransition(f"unit {unit}: {part!r} cannot follow {slot.parts or 'nothing'}")
    return _with(replace(now, state=state), unit, replace(slot, parts=(*slot.parts, part)))


def commit(now: VersionedState, unit: int) -> VersionedState:
    """The whole update of ``unit`` is readable: its slot is free again."""
    slot = now.slot(unit)
    if slot.parts != (*URGENT, REST):
        raise IllegalTransition(f"unit {unit} has published {slot.parts or 'nothing'} only")
    return _with(replace(now, published=unit), unit, None)


def change_structure(now: VersionedState, state: Any) -> VersionedState:
    """A structural event replaced the rows: a barrier, so nothing may be in flight."""
    if any(now.slots):
        raise IllegalTransition("a structural event needs every unit published")
    return replace(now, state=state, structural=now.structural + 1, skipped=None)


def _newest(now: VersionedState) -> int:
    return max([now.published, *(slot.unit for slot in now.slots if slot is not None)])


def _with(now: VersionedState, unit: int, slot: Slot | None) -> VersionedState:
    slots = list(now.slots)
    slots[unit % 2] = slot
    return replace(now, slots=(slots[0], slots[1]))
