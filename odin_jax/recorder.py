"""What a run does to which rows and when: the events of a history, and the observer that the runtime tells them to.

``odin_jax.history.check`` replays such a history and proves that the synchronisation held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odin_jax.versions import REST, URGENT
from sched.hazards import Action, Decision
from sched.rowsets import pack

FIELDS = ("geometry", "colour")
PARTS = {URGENT[0]: ("geometry",), URGENT[1]: ("colour",), REST: FIELDS}  # in order, with the fields they may hold


@dataclass(frozen=True, eq=False)
class Decided:
    """Window A→B was validated."""

    unit_a: int
    unit_b: int
    action: Action
    reason: str
    tau: float


@dataclass(frozen=True, eq=False)
class Read:
    """A unit observes state. Sets of rows are bool [N] or packed as by ``sched.rowsets.pack`` or ``numpy.packbits``."""

    unit: int
    structural: int  # version that its scopes were made for
    reads: np.ndarray | None = None  # R⁺; None: no scope, so any row
    writes: np.ndarray | None = None  # W⁺, declared before the read; None: R⁺
    late: np.ndarray | None = None  # rows read without the update of the unit before; None: none
    fields: tuple[str, ...] = FIELDS  # groups of fields read now


@dataclass(frozen=True, eq=False)
class Wrote:
    """A unit has its gradients and reads no more."""

    unit: int
    active: np.ndarray  # rows it updates: C, and those carried
    magnitude: np.ndarray | None = None  # float [N] ‖g(p)‖, the evidence; None: no evidence
    carried: np.ndarray | None = None  # rows outside C, updated by gradients that earlier units left; None: none


@dataclass(frozen=True, eq=False)
class Published:
    """A part of a unit's update became readable."""

    unit: int
    part: str
    rows: np.ndarray  # a set of rows, or a list of signed integers, padded with N or more
    fields: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Structural:
    """A structural event, a barrier: row numbers mean something else from now on."""

    after_unit: int
    version: int
    n_rows: int | None = None  # rows from now on; None: as many as before


Event = Decided | Read | Wrote | Published | Structural


class Recorder:
    """Keeps what the runtime tells it, copied to the host, for ``odin_jax.history.check``.

    Call it beside the transitions of ``odin_jax.versions``, in the same order and under the same lock: an update
    counts as readable from its ``published`` call on, a read sees what was published before its ``observed`` call.
    Sets of rows may be bool [N] or packed, as by ``sched.rowsets.pack`` or ``jnp.packbits``, of numpy or JAX. Evidence
    is that of all ranks.
    """

    def __init__(self, n_rows: int, after_unit: int = 0, structural: int = 0):
        self.n_rows, self.after_unit, self.version = n_rows, after_unit, structural  # as the run starts
        self.events: list[Event] = []

    def decided(self, unit_a: int, unit_b: int, decision: Decision, tau: float) -> None:
        """Window ``unit_a``→``unit_b`` was validated; before ``unit_b`` observes state."""
        self.events.append(Decided(unit_a, unit_b, decision.action, decision.reason, tau))

    def observed(
        self, unit: int, structural: int, reads: Any, writes: Any, late: Any = None, fields: Sequence[str] = FIELDS
    ) -> None:
        """``unit`` takes the state that it computes on; once, or once per field group where colour is taken later."""
        self.events.append(Read(unit, structural, _kept(reads), _kept(writes), _kept(late), tuple(fields)))

    def produced(self, unit: int, active: Any, magnitude: Any = None, carried: Any = None) -> None:
        """``unit`` has its gradients: ``active`` over all ranks, ``magnitude`` float [N] summed over them.

        ``carried``: those of the active rows in which only earlier units left a gradient.
        """
        magnitude = None if magnitude is None else np.array(magnitude)
        self.events.append(Wrote(unit, np.asarray(_kept(active)), magnitude, _kept(carried)))

    def published(self, unit: int, part: str, rows: Any, fields: Sequence[str] | None = None) -> None:
        """A part is readable. Give the row list that was really sent (signed integers, padded with N or more) where
        there is one, so that a row it misses or repeats is found. ``fields`` defaults to all that the part may hold.
        """
        fields = PARTS[part] if fields is None else tuple(fields)
        self.events.append(Published(unit, part, np.asarray(_kept(rows)), fields))

    def structural(self, after_unit: int, version: int, n_rows: int | None = None) -> None:
        """A structural event made ``version``, with ``n_rows`` rows if their number changed."""
        self.events.append(Structural(after_unit, version, n_rows))


def _kept(rows: Any) -> np.ndarray | None:
    """A host copy, small: sets of rows packed, words and row lists as they are."""
    if rows is None:
        return None
    rows = np.array(rows)
    return pack(rows) if rows.dtype == np.bool_ else rows
