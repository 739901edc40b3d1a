"""Dynamic asynchronous scheduling (DAS, paper §4.3): what each window A→B waits for, and what evidence says.

Plain Python on numbers that every rank has, so all hosts decide alike without talking. A wrong prediction costs a wait
for rows, never a rollback: rows that B may read are published before it reads, or admitted late by the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from odin_jax.scope import mispredicted, usable
from sched.hazards import Decision, Hazards, count, decide

BROAD = 0.97  # share of the living rows from which on a scope saves nothing over waiting for all of them
MISPREDICTED = 0.01  # share of a view's rows beyond which its evidence is not used again


@dataclass(frozen=True)
class Counts:
    """Sizes of the sets of one window."""

    active: int  # |C_A|
    read: int  # |R⁺(B)|
    waw: int  # |W⁺(B) ∩ C_A|
    raw: int  # |(R⁺(B) \\ W⁺(B)) ∩ C_A|
    war: int  # |W⁺(B) ∩ (visible in A \\ C_A)|
    alive: int  # rows that exist


@dataclass
class Admission:
    """The decisions of a run, and the evidence behind the write scopes of throughput-first."""

    path: str  # sync, quality, throughput or unvalidated (see ``sched.hazards.decide``)
    tau: float  # share of delayed rows, and of the mean gradient, up to which rows are read late
    evidence: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)  # view → (structural version, packed C)
    distrusted: set[int] = field(default_factory=set)  # views whose activity their evidence did not predict
    late_writes: int = 0  # rows that were updated although they had been read late

    @property
    def uses_evidence(self) -> bool:
        """Whether realized activity of single views is wanted."""
        return self.path == "throughput"

    def expected(self, view: int, structural: int) -> np.ndarray | None:
        """Packed rows [N/8] that ``view`` updated when it last ran; None: no evidence under this version."""
        if view in self.distrusted or view not in self.evidence:
            return None
        version, words = self.evidence[view]
        return words if version == structural else None

    def decide(self, counts: Counts, blocking: str | None, gate: Callable[[], tuple[int, int]]) -> Decision:
        """What the window does. ``blocking`` is the plan's reason or None.

        ``gate`` gives (failing, skipped) of the delayed rows; it costs an exchange and is asked only when everything
        else admits them.
        """
        too_broad = usable(counts.read, counts.alive, BROAD)
        if self.path == "quality" and too_broad and not blocking:
            blocking = too_broad
        failing, skipped = None, 0
        if self._could_delay(counts, blocking):
            failing, skipped = gate()
        hazards = Hazards(counts.waw, counts.raw, counts.war, counts.read, failing, skipped)
        return decide(hazards, path=self.path, tau=self.tau, blocking=blocking)

    def learn(self, views: Sequence[int], words: np.ndarray, structural: int, late: np.ndarray | None) -> None:
        """Note what each view [S] of a finished unit really updated, ``words`` [S, N/8], and what it had read late."""
        for view, active in zip(views, words, strict=True):
            expected = self.expected(view, structural)
            if expected is not None:
                missed = int(mispredicted(active, expected))
                if missed > MISPREDICTED * max(int(count(active)), 1):
                    self.distrusted.add(view)
            self.evidence[view] = (structural, active)
        if late is not None:
            unit = np.bitwise_or.reduce(words, axis=0)
            self.late_writes += int(count(unit & late))

    def forget(self) -> None:
        """Drop all evidence: a structural event gave the rows another meaning, or the run may be continued here."""
        self.evidence.clear()
        self.distrusted.clear()

    def _could_delay(self, counts: Counts, blocking: str | None) -> bool:
        return (self.path == "throughput" and not blocking and 0 < counts.raw <= self.tau * counts.read)

