"""Logical partitioning (LP, paper §4.2): K balanced groups of strongly coupled views.

Groups are scheduling bins, not owners of state. The start is a recursive bisection of a hop-distance
embedding of the graph; balanced Lloyd steps then swap views between groups where that keeps more coupling
inside, with the mean coupling to a group in the role of the distance to its centre (Lloyd's k-means with the
graph as kernel).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csgraph

from sched.errors import PlanError
from sched.rlg import Csr, Rlg

PIVOTS = 6  # hop-distance coordinates; more did not change the coupling kept inside on the captures tried
LLOYD_STEPS = 8


@dataclass(frozen=True)
class Partition:
    """K groups of views; sizes are whole task units, but for one group that has the epoch's short unit."""

    labels: np.ndarray  # [V] int32, group of each view
    unit_counts: np.ndarray  # [K] int64, task units per epoch of each group; differ by at most one
    coupling: (
        np.ndarray
    )  # [K, K] float64, mean RLG weight between the views of two groups (region-level summary)

    @property
    def n_groups(self) -> int:
        """Number of groups K."""
        return len(self.unit_counts)


def partition(rlg: Rlg, regions: int, batch: int, place: np.ndarray) -> Partition:
    """Split the V views into ``min(regions, units per epoch)`` groups whose sizes differ by at most one
    unit.

    ``batch`` views make a unit; ``place`` [V, d] is ``embed(rlg, seed)``. Raises ``PlanError`` for
    ``regions`` or ``batch`` below 1 or a batch above V.
    """
    if regions < 1:
        raise PlanError(f"--regions must be at least 1, not {regions}")
    counts, sizes = group_sizes(rlg.n_views, batch, regions)
    labels = np.zeros(rlg.n_views, np.int32)
    if len(sizes) > 1:
        _bisect(place, np.arange(rlg.n_views), sizes, 0, labels)
        labels = _lloyd(rlg.weights, labels, sizes)
    return Partition(labels, counts, region_coupling(rlg, labels, len(sizes)))


def group_sizes(n_views: int, batch: int, regions: int) -> tuple[np.ndarray, np.ndarray]:
    """(units per group [K], views per group [K]) for ``ceil(V / batch)`` units dealt evenly to K groups.

    Group 0 has the short unit if V is no multiple of ``batch``. K is at most the number of units.
    """
    if batch < 1:
        raise PlanError(f"--batch must be at least 1, not {batch}")
    if n_views < 1:
        raise PlanError("there are no training views to plan for")
    if batch > n_views:
        raise PlanError(
            f"--batch {batch} is larger than the {n_views} training views; lower it to {n_views} or less"
        )
    units = -(-n_views // batch)
    groups = min(regions, units)
    counts = np.full(groups, units // groups, np.int64)
    counts[: units % groups] += 1
    sizes = counts * batch
    sizes[0] -= units * batch - n_views
    return counts, sizes


def region_coupling(rlg: Rlg, labels: np.ndarray, n_groups: int) -> np.ndarray:
    """[K, K] mean weight over all view pairs of two groups (missing edges count as 0)."""
    row = np.repeat(labels, np.diff(rlg.weights.indptr))
    pair = row.astype(np.int64) * n_groups + labels[rlg.weights.indices]
    total = np.bincount(pair, rlg.weights.data, n_groups * n_groups).reshape(n_groups, n_groups)
    sizes = np.bincount(labels, minlength=n_groups).astype(float)
    return total / np.maximum(np.outer(sizes, sizes), 1)


def embed(rlg: Rlg, seed: int) -> np.ndarray:
    """[V, ≤ 6] coordinates: hop distances to far-apart pivots, smoothed over neighbours.

    Components that a pivot does not reach lie beyond its farthest view, so they are cut off first.
    """
    rng = np.random.default_rng((seed, 1))
    weights = rlg.weights
    degree = np.maximum(np.asarray(weights.sum(axis=1)).ravel(), 1e-12)
    columns = []
    nearest = np.full(rlg.n_views, np.inf)
    pivot = int(rng.integers(rlg.n_views))
    for _ in range(min(PIVOTS, rlg.n_views)):
        hops = _hops(weights, pivot)
        unreached = hops < 0
        hops[unreached] = 2 * hops.max() + 2
        nearest = np.minimum(nearest, hops)
        pivot = int(nearest.argmax())
        columns.append(hops)
    place = np.stack(columns, axis=1)
    for _ in range(2):
        place = 0.5 * (place + (weights @ place) / degree[:, None])
    return place + 1e-6 * rng.random(place.shape)


def _hops(weights: Csr, start: int) -> np.ndarray:
    """[V] float breadth-first depth from ``start``; −1 where not reached."""
    order, parent = csgraph.breadth_first_order(weights, start)
    position = np.zeros(weights.shape[0], np.int64)
    position[order] = np.arange(len(order))
    parent_at = position[parent[order[1:]]]
    bounds = [0, 1]
    while bounds[-1] < len(order):
        bounds.append(1 + int(np.searchsorted(parent_at, bounds[-1])))
    hops = np.full(weights.shape[0], -1.0)
    hops[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return hops


def _bisect(place: np.ndarray, views: np.ndarray, sizes: np.ndarray, first: int, labels: np.ndarray) -> None:
    """Cut ``views`` along their principal axis into the groups ``first``… of the given sizes, recursively."""
    if len(sizes) == 1:
        labels[views] = first
        return
    centred = place[views] - place[views].mean(axis=0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    half = len(sizes) // 2
    ordered = views[np.argsort(centred @ axis, kind="stable")]
    cut = int(sizes[:half].sum())
    _bisect(place, ordered[:cut], sizes[:half], first, labels)
    _bisect(place, ordered[cut:], sizes[half:], first + half, labels)


def _lloyd(weights: Csr, labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Swap equally many views between pairs of groups while the coupling kept inside the groups grows."""
    row = np.repeat(np.arange(len(labels)), np.diff(weights.indptr))
    best, kept = labels, float(weights.data[labels[row] == labels[weights.indices]].sum())
    for _ in range(LLOYD_STEPS):
        trial = _swap_pairs(weights, best, len(sizes))
        inside = float(weights.data[trial[row] == trial[weights.indices]].sum())
        if inside <= kept * (1 + 1e-3):
            break
        best, kept = trial, inside
    return best


def _swap_pairs(weights: Csr, labels: np.ndarray, n_groups: int) -> np.ndarray:
    labels = labels.copy()
    affinity = weights @ np.eye(n_groups, dtype=np.float32)[labels]
    gains = affinity - affinity[np.arange(len(labels)), labels][:, None]
    moved = np.zeros(len(labels), bool)
    for a in range(n_groups):
        for b in range(a + 1, n_groups):
            ours, theirs = (np.flatnonzero((labels == g) & ~moved) for g in (a, b))
            ours, theirs = ours[np.argsort(-gains[ours, b])], theirs[np.argsort(-gains[theirs, a])]
            pairs = min(len(ours), len(theirs))
            gain = gains[ours[:pairs], b] + gains[theirs[:pairs], a]
            swaps = (int((gain > 0).sum()) + 1) // 2  # if neighbours all swap at once nothing is gained: half
            labels[ours[:swaps]], labels[theirs[:swaps]] = b, a
            moved[ours[:swaps]] = moved[theirs[:swaps]] = True
    return labels
