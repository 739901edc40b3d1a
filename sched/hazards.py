"""The rules that decide which primitives a later unit B must wait for while unit A's update is pending
(paper §4.3).

Functional unit tests of the synchronisation can be written against this file alone. A set of rows is a bool
array ``[N]`` or packed words (uint8, uint32 or uint64, any shape, padding bits zero) of numpy or of JAX; the
set functions use array operators only, so either kind goes in and comes out, also under ``jax.jit``.
``decide`` is plain Python on counts and flags, so every host that has the same counts takes the same
decision. The simulator and the runtime share this code.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

PATHS = ("sync", "quality", "throughput", "unvalidated")

Rows = Any  # bool [N], or packed unsigned words


def waw(write_a: Rows, write_b: Rows) -> Rows:
    """``W⁺(B) ∩ W⁺(A)``: rows both units write."""
    return write_b & write_a


def raw(write_a: Rows, read_b: Rows, write_b: Rows) -> Rows:
    """``(R⁺(B) \\ W⁺(B)) ∩ W⁺(A)``: rows A writes that B only reads."""
    return read_b & ~write_b & write_a


def war(read_a: Rows, write_a: Rows, write_b: Rows) -> Rows:
    """``W⁺(B) ∩ (R⁺(A) \\ W⁺(A))``: rows B writes that A only reads; B waits until A no longer observes
    state.
    """
    return write_b & read_a & ~write_a


def count(rows: Rows) -> Any:
    """Number of rows in a set, as a scalar of the array's kind (int32 or wider)."""
    xp = rows.__array_namespace__()
    bits = rows if rows.dtype == xp.bool_ else xp.bitwise_count(rows)
    return bits.sum(dtype=xp.int32 if rows.size < 1 << 24 else None)


def ratio(delayed: Rows, read_b: Rows) -> Any:
    """``ρ = |D| / |R⁺(B)|``, 0 where B reads nothing."""
    xp = read_b.__array_namespace__()
    return count(delayed) / xp.maximum(count(read_b), 1)


def low_impact(magnitude_a: Any, mean: Any, tau: float) -> Any:
    """Rows whose ``‖g_A(p)‖`` [N] is at most τ times its ``mean`` over ``C_A``; none where the mean is not finite."""
    xp = magnitude_a.__array_namespace__()
    return (magnitude_a <= tau * mean) & xp.isfinite(mean)


def high_impact(delayed: Rows, active_a: Rows, magnitude_a: Any, tau: float) -> Rows:
    """Rows of D that fail the gradient gate: bool [N], all arguments bool or float [N].

    A delayed row passes if it has producer evidence (it lies in ``C_A``) and ``‖g_A(p)‖ ≤ τ · mean_{q ∈ C_A}
    ‖g_A(q)‖``. With an empty ``C_A`` there is no evidence and every delayed row fails, as does a row whose
    magnitude, or whose mean, is no finite number.
    """
    xp = magnitude_a.__array_namespace__()
    mean = xp.where(active_a, magnitude_a, 0).sum() / xp.maximum(active_a.sum(), 1)
    return delayed & ~(active_a & low_impact(magnitude_a, mean, tau))


class Action(enum.Enum):
    """What happens to B at the validation point."""

    PROCEED = "proceed"  # B observes state at once; nothing it reads is pending
    PARTIAL = "partial"  # the rows B reads are published first; the rest travels while B runs
    DELAYED = "delayed"  # as before, but for admitted RAW rows, whose last published version B reads
    BARRIER = "barrier"  # all of A's publication first


@dataclass(frozen=True)
class Hazards:
    """Counts of one window at its validation point; ``None`` where the scopes are missing."""

    waw: int  # pending rows that both write
    raw: int  # pending rows that A writes and B only reads
    war: int  # rows A only reads and B writes
    read_b: int  # |R⁺(B)|
    failing: int | None = None  # delayed rows that fail the gradient gate; None: no evidence
    skipped: int = 0  # delayed rows that already skipped one update


@dataclass(frozen=True)
class Decision:
    """An action, why, and whether B also waits until A has observed its state."""

    action: Action
    reason: str
    wait_observed: bool = False  # a WAR hazard while A still observes state


def decide(
    hazards: Hazards | None,
    *,
    path: str,
    tau: float = 0.2,
    blocking: str | None = None,
    structural: bool = False,
    observing: bool = False,
) -> Decision:
    """The admission rule of one window A→B (paper §4.3; DAS).

    ``path`` is "sync" (every window a barrier), "quality", "throughput" or "unvalidated" (the control without
    DAS: candidate windows go ahead whatever the hazards); ``blocking`` is the plan's reason if the window was
    planned as blocking; ``structural``: the structural version advances between them; ``observing``: A's
    state-observing phase is not over. Throughput-first reads RAW rows late iff ``ρ ≤ τ``, all pass the
    gradient gate and none has skipped an update before; all other hazards wait. Raises ``ValueError`` for an
    unknown path or a τ outside [0, 1].
    """
    if path not in PATHS:
        raise ValueError(f"path must be one of {', '.join(PATHS)}, not {path!r}")
    if not 0 <= tau <= 1:
        raise ValueError(f"tau must lie in [0, 1], not {tau}")
    if structural:
        return Decision(Action.BARRIER, "structural")
    if path == "sync":
        return Decision(Action.BARRIER, "synchronised path")
    if blocking:
        return Decision(Action.BARRIER, blocking)
    if path == "unvalidated":
        return Decision(Action.PROCEED, "not validated")
    if hazards is None:
        return Decision(Action.BARRIER, "missing scope")
    wait = observing and hazards.war > 0
    if not hazards.waw and not hazards.raw:
        return Decision(Action.PROCEED, "war" if wait else "disjoint", wait)
    refusal = _refusal(hazards, path, tau)
    if refusal is None:
        return Decision(Action.DELAYED, "waw rows first" if hazards.waw else "low impact", wait)
    return Decision(Action.PARTIAL, refusal, wait)


def _refusal(hazards: Hazards, path: str, tau: float) -> str | None:
    """Why the RAW rows are not read late; None: they are."""
    if path == "quality":
        return "quality-first"
    if not hazards.raw:
        return "waw only"
    if hazards.raw > tau * hazards.read_b:
        return "delayed share above tau"
    if hazards.failing is None:
        return "no evidence"
    if hazards.skipped:
        return "skipped once"
    if hazards.failing:
        return "high impact"
    return None
