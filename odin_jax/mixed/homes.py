"""Which rank each row is at home at: at random, along a curve through space, or by which views touch it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import KDTree

Placement = Literal["random", "spatial", "access"]

HOMES = 4  # the purpose that sets these random numbers apart from others of the same seed
UNEVEN = 1.1  # times more rows on a rank than on another from which on all are placed anew (spec §6.4)
BITS = 10  # of each coordinate on the curve
ROUNDS = 4  # of choosing ranks for the views, then for the rows


def at_random(alive: np.ndarray, ranks: int, seed: int, version: int) -> np.ndarray:
    """[N] a rank for every row, the living [N] bool in equal parts, by (seed, purpose, structural version) alone."""
    order = np.random.default_rng(np.random.SeedSequence([seed, HOMES, version])).permutation(len(alive))
    return _in_parts(order, alive, ranks)


def along_curve(means: np.ndarray, alive: np.ndarray, ranks: int) -> np.ndarray:
    """[N] ranks in equal parts of the Morton curve through the means [N, 3] of the living rows."""
    low, high = np.percentile(means[alive], (1, 99), axis=0)
    cells = np.clip((means - low) / np.maximum(high - low, 1e-9), 0, 1) * (2**BITS - 1)
    cells = np.nan_to_num(cells).astype(np.int64)
    code = np.zeros(len(means), np.int64)
    for bit in range(BITS):
        for axis in range(3):
            code |= (cells[:, axis] >> bit & 1) << (3 * bit + axis)
    return _in_parts(np.argsort(code, kind="stable"), alive, ranks)


def by_access(touched: np.ndarray, units: Sequence[Sequence[int]], start: np.ndarray, alive: np.ndarray,
              ranks: int) -> np.ndarray:
    """[N] ranks, chosen together with those of the views (Gaian): each rank gets the rows that its views touch.

    ``touched`` [V, N] bool rows of each view; ``units``: views that are trained together; ``start`` [N] ranks to begin
    with. In turn the views of a unit go to the ranks that have most of their rows, and rows to the rank whose views
    touch them most, no rank with more than its share.
    """
    homes = start
    for _ in range(ROUNDS):
        share = np.stack([touched[:, alive & (homes == rank)].sum(1) for rank in range(ranks)], 1)
        wanted = np.zeros((len(alive), ranks), np.float32)
        for unit in units:
            for view, rank in zip(unit, views_to_ranks(share[list(unit)]), strict=True):
                wanted[touched[view], rank] += 1
        homes = _most_wanted(wanted, homes, alive, ranks)
    return homes


def views_to_ranks(share: np.ndarray) -> np.ndarray:
    """[V] a rank for each view, all ranks with as many views as evenly as can be; ``share`` [V, R] rows they have."""
    views, ranks = share.shape
    places = -(-views // ranks)
    chosen, columns = linear_sum_assignment(-np.repeat(share, places, axis=1))
    return (columns[np.argsort(chosen)] // places).astype(int)


def newborn(homes: np.ndarray, before: np.ndarray, alive: np.ndarray, means: np.ndarray) -> np.ndarray:
    """[N] the ranks after an event: new rows are at home where the nearest row that was there before is.

    ``homes`` [M] and ``before`` [M] bool are those of before the event; rows keep their places.
    """
    old = np.zeros(len(alive), bool)
    old[: len(before)] = before[: len(alive)]
    kept, new = old & alive, alive & ~old
    result = np.zeros(len(alive), homes.dtype)
    result[: len(homes)] = homes[: len(alive)]
    if new.any() and kept.any():
        nearest = KDTree(means[kept]).query(means[new])[1]
        result[new] = result[kept][nearest]
    return result


def uneven(homes: np.ndarray, alive: np.ndarray, ranks: int) -> bool:
    """Whether the ranks' numbers of rows differ by more than is left alone."""
    counts = np.bincount(homes[alive], minlength=ranks)
    return bool(counts.max() > UNEVEN * counts.min())


def to_text(homes: np.ndarray) -> str:
    """Ranks of rows as a checkpoint keeps them."""
    return base64.b64encode(zlib.compress(homes.astype("<u2").tobytes(), 1)).decode()


def from_text(text: str) -> np.ndarray:
    """The inverse of ``to_text``."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2").astype(int)


def _in_parts(order: np.ndarray, alive: np.ndarray, ranks: int) -> np.ndarray:
    """[N] ranks: the living rows, in ``order``, in equal parts; the others at rank 0."""
    living = order[alive[order]]
    homes = np.zeros(len(alive), int)
    homes[living] = np.arange(len(living)) * ranks // max(len(living), 1)
    return homes


def _most_wanted(wanted: np.ndarray, before: np.ndarray, alive: np.ndarray, ranks: int) -> np.ndarray:
    """[N] the rank that wants each row most; where a rank has its share, those that mind least go elsewhere."""
    wanted = wanted + 0.5 * (np.arange(ranks) == before[:, None])
    homes, room = before.copy(), np.full(ranks, -(-int(alive.sum()) // ranks))
    left = np.flatnonzero(alive)
    while len(left):
        open_ = np.where(room > 0, wanted[left], -1)
        best = np.argsort(-open_, axis=1, kind="stable")[:, :2]
        choice = best[:, 0]
        minds = open_[np.arange(len(left)), choice] - (open_[np.arange(len(left)), best[:, 1]] if ranks > 1 else 0)
        taken = np.zeros(len(left), bool)
        for rank in range(ranks):
            mine = np.flatnonzero(choice == rank)
            mine = mine[np.argsort(-minds[mine], kind="stable")][: max(room[rank], 0)]
            homes[left[mine]], taken[mine] = rank, True
            room[rank] -= len(mine)
        left = left[~taken]
    return homes
