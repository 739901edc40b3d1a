"""Static data scheduling (SDS, paper §4.2): the order of task units.

The schedule rotates over the logical groups, weakly coupled groups in a row, and fills each unit from its
group view by view by lowest ``s(v | U_prev) = Σ_{u ∈ U_prev} w_uv`` (Eq. 2), less ``cohesion`` times the
coupling to the views already in the unit: of views that conflict equally little, one that sees what the unit
sees anyway keeps the unit's scope small. ``cohesion = 0`` is the paper's rule alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sched.partition import Partition
from sched.rlg import Rlg

SEED_SCAN = 48  # views of a group looked at for the first of a unit; the scan stops at one that scores 0


@dataclass(frozen=True)
class Order:
    """Units of whole epochs. Every unit has ``batch`` distinct views and every epoch has each view once.

    If V is no multiple of ``batch``, one unit per epoch ends in ``n_repeats`` views that the epoch has
    elsewhere too (``repeat_unit`` says which), chosen like any other view of the unit; so units have one size
    and no view is left out.
    """

    units: np.ndarray  # [E · n, batch] int32 view indices
    groups: np.ndarray  # [E · n] int32 group of each unit, −1 where there are none (random order)
    units_per_epoch: int  # n
    n_repeats: int  # views of the short unit that are repeats, 0..batch − 1
    repeat_unit: np.ndarray  # [E] int32, index within the epoch of the unit that has them; −1 if none


def random_order(n_views: int, batch: int, epochs: int, seed: int) -> Order:
    """A random permutation per epoch, cut into units: the control without SDS. The last unit has the
    repeats.
    """
    units, spare = -(-n_views // batch), -n_views % batch
    rows = []
    for epoch in range(epochs):
        views = np.random.default_rng((seed, 2, epoch)).permutation(n_views)
        fill = views[: (units - 1) * batch][:spare]
        rows.append(np.concatenate([views, fill]).reshape(units, batch))
    last = np.full(epochs, units - 1 if spare else -1, np.int32)
    return Order(
        np.concatenate(rows).astype(np.int32), np.full(units * epochs, -1, np.int32), units, spare, last
    )


def scheduled_order(
    rlg: Rlg,
    groups: Partition,
    batch: int,
    epochs: int,
    seed: int,
    *,
    place: np.ndarray,
    cohesion: float = 0.5,
) -> Order:
    """The SDS order of ``epochs`` epochs; each differs and all follow from ``seed``.

    ``place`` [V, d] is the embedding of ``sched.partition.embed``: an epoch takes the views of a group in a
    sweep over it in a random direction, which leaves no scattered rest for the last units.
    """
    filler = _Filler(rlg, groups.labels, batch, cohesion)
    units, owners, repeats = [], [], []
    previous: list[int] = []
    last_group = -1
    for epoch in range(epochs):
        rng = np.random.default_rng((seed, 3, epoch))
        turns = traverse(groups, last_group, rng)
        filler.start(_sweep(place, groups.labels, groups.n_groups, rng))
        short = -1
        for turn, group in enumerate(turns):
            unit, fresh = filler.fill(group, previous)
            if fresh < batch:
                short = turn
            units.append(unit)
            previous = unit
        owners += turns
        last_group = turns[-1]
        repeats.append(short)
    spare = -rlg.n_views % batch
    return Order(
        np.asarray(units, np.int32),
        np.asarray(owners, np.int32),
        len(units) // epochs,
        spare,
        np.asarray(repeats, np.int32),
    )


def traverse(groups: Partition, last: int, rng: np.random.Generator) -> list[int]:
    """The groups in the order their units run in one epoch: ``unit_counts[g]`` turns of each group g.

    In rounds in which each group has one turn; within a round the next group is the one most weakly coupled
    to the group before it (ties at random), and never that group itself while another is left.
    """
    rounds = int(groups.unit_counts.max())
    dice = rng.random((rounds, groups.n_groups)).tolist()
    coupling, counts = groups.coupling.tolist(), groups.unit_counts.tolist()
    turns: list[int] = []
    for i in range(rounds):
        due = [g for g, turns_left in enumerate(counts) if turns_left >= rounds - i]
        while due:
            before = coupling[last] if last >= 0 else [0.0] * len(counts)
            last = min(due, key=lambda g: (g == last, before[g], dice[i][g]))
            due.remove(last)
            turns.append(last)
    return turns


def _sweep(place: np.ndarray, labels: np.ndarray, n_groups: int, rng: np.random.Generator) -> list[list[int]]:
    """Views of each group in the order of a projection onto a random direction of the embedding."""
    height = (place - place.mean(axis=0)) @ rng.standard_normal(place.shape[1])
    order = np.lexsort((height, labels))
    ends = np.cumsum(np.bincount(labels, minlength=n_groups))
    return [order[low:high].tolist() for low, high in zip(np.append(0, ends[:-1]), ends, strict=True)]


class _Filler:
    """Fills units from what is left of each group; plain lists and dicts, linear in the edges of the graph.

    Edges of a view within its group heavier than its mean edge pull views into its unit; edges to the
    unit before push views away.
    """

    def __init__(self, rlg: Rlg, labels: np.ndarray, batch: int, cohesion: float):
        weights = rlg.weights
        degree = np.diff(weights.indptr)
        inside = labels[weights.indices] == np.repeat(labels, degree)
        mean = np.asarray(weights.sum(axis=1)).ravel() / np.maximum(degree, 1)
        self.weights = weights
        self.bonds = _edges(rlg, inside & (weights.data >= np.repeat(mean, degree)))
        self.across = _edges(rlg, ~inside)
        self.labels = labels.tolist()
        self.batch, self.cohesion = batch, cohesion

    def start(self, sweeps: list[list[int]]) -> None:
        """Begin an epoch: ``sweeps`` has the views of each group in the order they are tried in."""
        self.free = bytearray(b"\1" * len(self.labels))
        self.sweeps, self.cursor = sweeps, [0] * len(sweeps)

    def fill(self, group: int, previous: list[int]) -> tuple[list[int], int]:
        """(the next unit of ``group``, how many of its views are new in this epoch)."""
        conflict = self._conflict(previous, group)
        unit: list[int] = []
        self._grow(unit, conflict, group)
        fresh = len(unit)
        if fresh < self.batch:
            self._repeat(unit, conflict, group)
        return unit, fresh

    def _repeat(self, unit: list[int], conflict: dict[int, float], group: int) -> None:
        """Fill a short unit with views that the epoch has elsewhere, of its group as far as that has any
        left.
        """
        free, cursor = self.free, self.cursor[group]
        self.free, self.cursor[group] = bytearray(b"\1" * len(free)), 0
        for view in unit:
            self.free[view] = 0
        self._grow(unit, conflict, group)
        if len(unit) < self.batch:
            rest = (view for view in range(len(free)) if self.free[view])
            unit += sorted(rest, key=lambda view: conflict.get(view, 0.0))[: self.batch - len(unit)]
        self.free, self.cursor[group] = free, cursor

    def _conflict(self, previous: list[int], group: int) -> dict[int, float]:
        """s(v | previous) of Eq. 2 for every v of ``group`` that has an edge to ``previous``."""
        score: dict[int, float] = {}
        ptr, cols, weights = self.across
        for view in previous:
            low, high = ptr[view], ptr[view + 1]
            col, weight = cols[low:high], weights[low:high]
            if self.labels[view] == group:
                low, high = self.weights.indptr[view], self.weights.indptr[view + 1]
                col, weight = self.weights.indices[low:high].tolist(), self.weights.data[low:high].tolist()
            for other, w in zip(col, weight, strict=True):
                score[other] = score.get(other, 0.0) + w
        return score

    def _grow(self, unit: list[int], conflict: dict[int, float], group: int) -> None:
        """Add the cheapest free views of ``group`` to ``unit`` until it is full or the group has none
        left.
        """
        free, cohesion = self.free, self.cohesion
        bond: dict[int, float] = {}  # coupling of free views of the group to the unit
        for view in unit:
            self._pull(view, bond)
        while len(unit) < self.batch:
            if bond and cohesion and not conflict:
                best = max(bond, key=bond.__getitem__)
            else:
                best, cost = self._first(group, conflict)
                if best < 0:
                    return
                for view, held in bond.items():
                    other = conflict.get(view, 0.0) - cohesion * held
                    if other < cost:
                        best, cost = view, other
            unit.append(best)
            free[best] = 0
            bond.pop(best, None)
            if len(unit) < self.batch:
                self._pull(best, bond)

    def _pull(self, view: int, bond: dict[int, float]) -> None:
        ptr, col, weight = self.bonds
        free, held, low, high = self.free, bond.get, ptr[view], ptr[view + 1]
        for other, w in zip(col[low:high], weight[low:high], strict=True):
            if free[other]:
                bond[other] = held(other, 0.0) + w

    def _first(self, group: int, conflict: dict[int, float]) -> tuple[int, float]:
        """The free view of the group with the least conflict among the next of its sweep, and that
        conflict.
        """
        sweep, free, at = self.sweeps[group], self.free, self.cursor[group]
        while at < len(sweep) and not free[sweep[at]]:
            at += 1
        self.cursor[group] = at
        best, cost, seen = -1, np.inf, 0
        while at < len(sweep) and seen < SEED_SCAN:
            view = sweep[at]
            if free[view]:
                score = conflict.get(view, 0.0)
                if score < cost:
                    best, cost = view, score
                    if not score:
                        break
                seen += 1
            at += 1
        return best, cost


def _edges(rlg: Rlg, keep: np.ndarray) -> tuple[list[int], list[int], list[float]]:
    """(offsets, columns, weights) of the kept entries of the graph as plain lists."""
    ptr = np.concatenate([[0], np.cumsum(keep)])[rlg.weights.indptr]
    return ptr.tolist(), rlg.weights.indices[keep].tolist(), rlg.weights.data[keep].tolist()
