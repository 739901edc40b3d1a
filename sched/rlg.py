"""The relative locality graph (paper §4.1.1): views as nodes, Jaccard similarity of what they see as
edges.

All four variants of the paper's Fig. 5 are Jaccard graphs over a view → item incidence and differ in the
items: SfM tracks (what Odin plans with), owner-region cells in the frustum (geometry), realized active rows
(computation), rows with a large gradient (importance). Nothing here ever has V × V entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from sched.capture import Capture
from sched.errors import PlanError

Csr = Any  # scipy.sparse.csr_array, whose inferred types make indptr optional

BLOCK_ENTRIES = 1 << 24  # products of this many multiply-adds at a time bound the memory of the counts


@dataclass(frozen=True)
class Rlg:
    """Symmetric weights in [0, 1] with an empty diagonal."""

    weights: Csr  # [V, V] float32, ascending columns
    source: str  # "tracks", "geometry", "computation", "importance" or "none"
    unseen: (
        np.ndarray
    )  # [V] bool, nothing known of the view: its weights are 0 and say nothing, validate at run time
    top_k: int  # neighbours that each view retained before symmetrization

    @property
    def n_views(self) -> int:
        """Number of views V."""
        return self.weights.shape[0]


def empty_rlg(n_views: int) -> Rlg:
    """The graph that knows nothing ("none" in Fig. 5): no edges, every view to be validated at run time."""
    return Rlg(sparse.csr_array((n_views, n_views), dtype=np.float32), "none", np.ones(n_views, bool), 0)


def track_rlg(capture: Capture, *, top_k: int = 16, cap_percentile: float = 99.9) -> Rlg:
    """The graph over SfM tracks, Eq. 1, with tracks above the ``cap_percentile`` of track length capped."""
    items = np.empty(0, np.int32) if not len(capture.point_ids) else _in_order_of_sight(capture)
    n_items = int(items.max()) + 1 if len(items) else 1
    return incidence_rlg(
        _incidence(capture.view_ptr, items, n_items), "tracks", top_k=top_k, cap_percentile=cap_percentile
    )


def incidence_rlg(incidence: Csr, source: str, *, top_k: int = 16, cap_percentile: float = 100.0) -> Rlg:
    """Jaccard graph of a view → item incidence [V, T] with ones: ``w_ij = |P_i ∩ P_j| / |P_i ∪ P_j|`` (Eq.
    1).

    Items seen by more views than the ``cap_percentile`` of the views-per-item distribution keep that many,
    evenly spaced, views. Each view retains its ``top_k`` heaviest neighbours (ties: the lower view index); an
    edge stays if either end retains it, so the graph is symmetric. Raises ``PlanError`` for parameters out of
    range.
    """
    if top_k < 1:
        raise PlanError(f"--top-k must be at least 1, not {top_k}")
    if not 0 < cap_percentile <= 100:
        raise PlanError(f"track cap: a percentile in (0, 100], not {cap_percentile}")
    incidence = _capped(incidence, cap_percentile)
    inverse = incidence.T.tocsr()
    sizes = np.diff(incidence.indptr)
    kept = [
        _heaviest(_jaccard(incidence[low:high] @ inverse, sizes, low), top_k, low)
        for low, high in _blocks(incidence, inverse)
    ]
    row, col, weight = (np.concatenate(part) for part in zip(*kept, strict=True))
    return Rlg(_symmetric(row, col, weight, len(sizes)), source, sizes == 0, top_k)


def refresh(rlg: Rlg, activity: Csr, *, source: str = "computation") -> Rlg:
    """Replace weights by what really happened: ``activity`` [V, N] has an entry for each row a view
    activated.

    Only pairs of which both views have evidence (a non-empty row of ``activity``) are replaced; other weights
    stay. ``source`` names the evidence: "computation" for realized rows, "importance" for rows filtered by
    ``important_rows``. Raises ``PlanError`` if the number of views differs.
    """
    if activity.shape[0] != rlg.n_views:
        raise PlanError(f"refresh: activity of {activity.shape[0]} views for a graph of {rlg.n_views}")
    ones = _incidence(activity.indptr, activity.indices, activity.shape[1])
    fresh = incidence_rlg(ones, source, top_k=max(rlg.top_k, 1))
    known = ~fresh.unseen
    old = rlg.weights.tocoo()
    stays = ~(known[old.row] & known[old.col])
    new = fresh.weights.tocoo()
    merged = _symmetric(
        np.concatenate([old.row[stays], new.row]),
        np.concatenate([old.col[stays], new.col]),
        np.concatenate([old.data[stays], new.data]),
        rlg.n_views,
    )
    row, col, weight = _heaviest(merged, fresh.top_k, 0)
    return replace(fresh, weights=_symmetric(row, col, weight, rlg.n_views), unseen=rlg.unseen & ~known)


def important_rows(magnitude: Csr, tau: float = 0.2) -> Csr:
    """Rows of each view whose gradient magnitude exceeds ``tau`` times the view's mean (importance
    locality, §2.1).

    ``magnitude`` [V, N] holds ``‖g_i(p)‖`` at the active rows of each view; what is dropped is what the
    gradient gate of throughput-first would let be read late.
    """
    view = np.repeat(np.arange(magnitude.shape[0]), np.diff(magnitude.indptr))
    total = np.bincount(view, magnitude.data, magnitude.shape[0])
    mean = total / np.maximum(np.diff(magnitude.indptr), 1)
    keep = magnitude.data > tau * mean[view]
    return sparse.csr_array(
        (magnitude.data[keep], (view[keep], magnitude.indices[keep])), shape=magnitude.shape
    )


def _incidence(ptr: np.ndarray, items: np.ndarray, n_items: int) -> Csr:
    ones = np.ones(len(items), np.int32)
    return sparse.csr_array((ones, items, np.asarray(ptr, np.int32)), shape=(len(ptr) - 1, n_items))


def _in_order_of_sight(capture: Capture) -> np.ndarray:
    """Track ids renumbered by where they are last seen, so that the product walks memory in one direction."""
    ids = capture.point_ids
    last = np.full(capture.n_points, -1, np.int32)
    last[ids] = np.arange(len(ids), dtype=np.int32)
    ends = np.zeros(len(ids), bool)
    ends[last[last >= 0]] = True
    return (np.cumsum(ends, dtype=np.int32) - 1)[last][ids]


def _capped(incidence: Csr, percentile: float) -> Csr:
    """The incidence with at most as many views per item as the percentile says; evenly spaced ones stay."""
    lengths = np.bincount(incidence.indices, minlength=incidence.shape[1])
    if percentile >= 100 or not lengths.any():
        return incidence
    upto = np.cumsum(np.bincount(lengths)[1:])  # items of 1.. views
    cap = 1 + int(np.searchsorted(upto, percentile / 100 * upto[-1]))
    entries = np.flatnonzero((lengths > cap)[incidence.indices])
    if not len(entries):
        return incidence
    entries = entries[np.argsort(incidence.indices[entries], kind="stable")]  # by item, then by view
    length = lengths[incidence.indices[entries]]
    start = np.repeat(np.flatnonzero(np.diff(incidence.indices[entries], prepend=-1)), lengths[lengths > cap])
    place = np.arange(len(entries)) - start
    gone = np.sort(entries[place * cap // length == (place - 1) * cap // length])  # all but cap of each item
    ptr = incidence.indptr - np.searchsorted(gone, incidence.indptr)
    return _incidence(ptr, np.delete(incidence.indices, gone), incidence.shape[1])


def _blocks(incidence: Csr, inverse: Csr) -> list[tuple[int, int]]:
    """Row ranges of the product with about ``BLOCK_ENTRIES`` multiply-adds each."""
    work = np.cumsum(incidence @ np.diff(inverse.indptr), dtype=np.int64)
    cuts = np.searchsorted(work, np.arange(BLOCK_ENTRIES, work[-1], BLOCK_ENTRIES))
    edges = np.unique(np.concatenate([[0], cuts, [incidence.shape[0]]]))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _jaccard(common: Csr, sizes: np.ndarray, low: int) -> Csr:
    """Counts of shared items [rows, V] → Eq. 1 in float32, the diagonal set to 0; views ``low``… are the
    rows.
    """
    row = np.repeat(np.arange(low, low + common.shape[0], dtype=np.int32), np.diff(common.indptr))
    either = sizes[row] + sizes[common.indices] - common.data
    weight = common.data.astype(np.float32) / either
    weight[row == common.indices] = 0
    return sparse.csr_array((weight, common.indices, common.indptr), shape=common.shape)


def _heaviest(weights: Csr, top_k: int, low: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, col, weight) of the ``top_k`` positive entries of each row; rows are numbered from ``low``.

    Entries become integers that order by weight, then by the lower column, and rows of similar length are
    partitioned together as one padded matrix.
    """
    lengths = np.diff(weights.indptr)
    bits = np.ascontiguousarray(weights.data, np.float32).view(np.uint32).astype(np.uint64)
    keys = (bits << np.uint64(32)) | (np.uint64(0xFFFFFFFF) - weights.indices.astype(np.uint64))
    rows, kept = [], []
    below, above = 0, 2 * top_k
    while below < max(lengths.max(initial=0), 1):
        mine = np.flatnonzero((lengths > below) & (lengths <= above))
        if len(mine):
            at = weights.indptr[mine][:, None] + np.arange(above)
            padded = np.where(
                np.arange(above) < lengths[mine][:, None], keys[np.minimum(at, len(keys) - 1)], np.uint64(0)
            )
            kept.append(np.partition(padded, above - top_k, axis=1)[:, above - top_k :].ravel())
            rows.append(np.repeat(mine, top_k))
        below, above = above, 2 * above
    if not rows:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    key, row = np.concatenate(kept), np.concatenate(rows)
    weight = (key >> np.uint64(32)).astype(np.uint32).view(np.float32)
    col = (np.uint64(0xFFFFFFFF) - (key & np.uint64(0xFFFFFFFF))).astype(np.int64)
    real = weight > 0
    return row[real] + low, col[real], weight[real]


def _symmetric(row: np.ndarray, col: np.ndarray, weight: np.ndarray, n_views: int) -> Csr:
    """The smallest symmetric matrix that holds the given entries."""
    half = sparse.csr_array((weight, (row.astype(np.int32), col.astype(np.int32))), shape=(n_views, n_views))
    full = half.maximum(half.T.tocsr()).tocsr()
    full.sort_indices()
    return full.astype(np.float32)
