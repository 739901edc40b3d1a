"""Dynamic data scheduling (DDS, paper §4.3): which rank runs which view of a ready unit.

Pure functions of numbers that every rank has, so all hosts take the same assignment without talking. A unit's
views and the order of units never change.
"""

from __future__ import annotations

import numpy as np

TICK = 1e-6  # seconds; loads are compared as whole microseconds, so that rounding cannot differ between hosts


def assign(
    costs: np.ndarray,
    ranks: int,
    *,
    queued: np.ndarray | None = None,
    slowness: np.ndarray | None = None,
    per_rank: int | None = None,
) -> np.ndarray:
    """Rank of each view [B]: the longest view first, each to the rank that would finish it earliest.

    ``costs`` [B] expected seconds per view; ``queued`` [R] seconds of work a rank still has before it
    (default 0); ``slowness`` [R] measured over expected duration of a rank's recent views (default 1); a rank
    takes at most ``per_rank`` views (default ``ceil(B / R)``). Raises ``ValueError`` if the views do not fit
    or the lengths differ.
    """
    batch = len(costs)
    limit = -(-batch // ranks) if per_rank is None else per_rank
    if ranks * limit < batch:
        raise ValueError(f"{batch} views do not fit on {ranks} ranks of {limit} views each")
    finish = _ticks(np.zeros(ranks) if queued is None else queued)
    slow = np.ones(ranks) if slowness is None else np.asarray(slowness, float)
    if len(finish) != ranks or len(slow) != ranks:
        raise ValueError(f"queued and slowness need one entry for each of the {ranks} ranks")
    taken = np.zeros(ranks, np.int64)
    result = np.full(batch, -1, np.int32)
    for view in np.lexsort((np.arange(batch), -_ticks(costs))):
        after = finish + _ticks(costs[view] * slow)
        rank = int(np.where(taken < limit, after, np.iinfo(np.int64).max).argmin())
        result[view], finish[rank], taken[rank] = rank, after[rank], taken[rank] + 1
    return result


def assign_static(batch: int, ranks: int) -> np.ndarray:
    """Rank of each view [B] without DDS: equal consecutive blocks, whatever the load."""
    return (np.arange(batch) // -(-batch // ranks)).astype(np.int32)


def update_slowness(
    slowness: np.ndarray, expected: np.ndarray, measured: np.ndarray, *, keep: float = 0.8
) -> np.ndarray:
    """[R] slowness after a unit: an exponential mean of measured over expected seconds; ranks without work
    keep theirs.
    """
    worked = np.asarray(expected) > 0
    ratio = np.divide(measured, expected, out=np.ones(len(slowness)), where=worked)
    return np.where(worked, keep * np.asarray(slowness) + (1 - keep) * ratio, slowness)


def _ticks(seconds: np.ndarray | float) -> np.ndarray:
    return np.rint(np.asarray(seconds, float) / TICK).astype(np.int64)
