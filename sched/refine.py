"""Local search over a scheduled order with the views' geometric scopes (R⁺ before training) as the
measure.

Eq. 2 sums pair weights; what a window waits for is the union of rows of one unit that the next unit reads.
Where SfM points and cameras are known that share can be counted, so the order is polished with two moves that
keep the groups, the number of their turns and the epoch's views: two units of one group exchange a view, or
any two units their places. Only improvements are taken.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sched.order import Order
from sched.rowsets import count, shared, union

SAMPLE = 2048  # SfM points that stand for all; a share is then known to about 0.01
CANDIDATES = (
    256  # view slots tried against a unit's views per sweep: all of them in captures of up to ~1000 views
)
MOST_UNITS = 512  # epochs with more units only swap views: the unit-by-unit table grows with the square


def sample_rows(n_points: int, seed: int) -> np.ndarray:
    """Ascending indices of at most ``SAMPLE`` points, the same for the same seed."""
    if n_points <= SAMPLE:
        return np.arange(n_points)
    return np.sort(np.random.default_rng((seed, 4)).choice(n_points, SAMPLE, replace=False))


def refine(order: Order, scopes: np.ndarray, sweeps: int, seed: int) -> Order:
    """The order after at most ``sweeps`` rounds of both moves per epoch; ``scopes`` are packed rows [V,
    W].
    """
    n = order.units_per_epoch
    units, groups, repeat_unit = order.units.copy(), order.groups.copy(), order.repeat_unit.copy()
    for epoch, start in enumerate(range(0, len(units), n)):
        before = units[start - 1]  # the plan is cyclic: the last unit precedes the first
        after = units[(start + n) % len(units)]
        search = _Search(units[start : start + n], groups[start : start + n], scopes, before, after)
        rng = np.random.default_rng((seed, 5, start))
        cost = search.cost()
        for _ in range(sweeps if n > 3 else 0):
            search.swap_views(rng)
            if n <= MOST_UNITS:
                search.swap_units()
            previous, cost = cost, search.cost()
            if cost > previous * (1 - 1e-3):
                break
        units[start : start + n], groups[start : start + n] = search.units, search.groups
        if repeat_unit[epoch] >= 0:
            repeat_unit[epoch] = np.flatnonzero(search.place == repeat_unit[epoch])[0]
    return replace(order, units=units, groups=groups, repeat_unit=repeat_unit)


class _Search:
    """One epoch between the unit before it and the unit after it; rows 0 and n + 1 of the tables are those
    two.
    """

    def __init__(
        self, units: np.ndarray, groups: np.ndarray, scopes: np.ndarray, before: np.ndarray, after: np.ndarray
    ):
        self.units, self.groups, self.scopes = units.copy(), groups.copy(), scopes
        n, batch = units.shape
        self.place = np.arange(n)  # where in the given order the unit now at each place was
        self.table = np.stack([union(scopes[u]) for u in (before, *units, after)])
        self.counts = count(self.table)
        self.rest = np.stack([self._without_each(u) for u in units])
        times = np.bincount(units.ravel(), minlength=len(scopes))
        self.owner = np.repeat(np.arange(n), batch)
        self.fixed = times[units] > 1  # a view that the epoch has twice stays where it is

    def cost(self) -> float:
        """Sum over the windows of the share of the earlier unit's rows that the later unit reads."""
        return float(shared(self.table[:-1], self.table[1:]).sum())

    def swap_views(self, rng: np.random.Generator) -> None:
        """For each unit in turn: the best exchange of one of its views for one of another unit of its
        group.
        """
        for t in rng.permutation(len(self.units)):
            slots = np.flatnonzero(
                (self.groups[self.owner] == self.groups[t])
                & (np.abs(self.owner - t) > 1)
                & ~self.fixed.ravel()
            )
            if len(slots) > CANDIDATES:
                slots = rng.choice(slots, CANDIDATES, replace=False)
            if len(slots) and not self.fixed[t].all():
                self._best_exchange(int(t), slots)

    def _best_exchange(self, t: int, slots: np.ndarray) -> None:
        batch = self.units.shape[1]
        s, at = slots // batch, slots % batch
        mine, theirs = self.units[t], self.units[s, at]
        now = self._around(self.table[t + 1], t) + self._around(self.table[s + 1], s)
        then = self._around(self.rest[t][:, None] | self.scopes[theirs], t) + self._around(
            self.rest[s, at] | self.scopes[mine][:, None], s
        )
        gain = np.where(self.fixed[t][:, None], -np.inf, now - then)
        i, j = np.unravel_index(gain.argmax(), gain.shape)
        if gain[i, j] > 1e-9:
            self.units[t, i], self.units[s[j], at[j]] = theirs[j], mine[i]
            for u in (t, int(s[j])):
                self._recount(u)

    def _around(self, rows: np.ndarray, t: np.ndarray | int) -> np.ndarray:
        """Cost of both windows of unit ``t`` if its scope were ``rows`` [..., W]."""
        before, after = self.table[t], self.table[np.asarray(t) + 2]
        return count(before & rows) / np.maximum(self.counts[t], 1) + count(rows & after) / np.maximum(
            count(rows), 1
        )

    def swap_units(self) -> None:
        """For each unit in turn: the best exchange of its place with another unit."""
        n = len(self.units)
        order = np.arange(n + 2)
        both = np.stack([count(self.table & row) for row in self.table])
        share = both / np.maximum(self.counts, 1)[:, None]
        for t in range(1, n + 1):
            s = 1 + np.flatnonzero(np.abs(np.arange(1, n + 1) - t) > 1)
            a, b = order[t], order[s]
            pt, nt, ps, ns = order[t - 1], order[t + 1], order[s - 1], order[s + 1]
            gain = (
                share[pt, a]
                + share[a, nt]
                + share[ps, b]
                + share[b, ns]
                - share[pt, b]
                - share[b, nt]
                - share[ps, a]
                - share[a, ns]
            )
            best = int(gain.argmax())
            if gain[best] > 1e-9:
                order[t], order[s[best]] = order[s[best]], order[t]
        moved = order[1:-1] - 1
        self.units, self.groups, self.place = self.units[moved], self.groups[moved], self.place[moved]
        self.rest, self.fixed = self.rest[moved], self.fixed[moved]
        self.table, self.counts = self.table[order], self.counts[order]

    def _recount(self, t: int) -> None:
        self.table[t + 1] = union(self.scopes[self.units[t]])
        self.counts[t + 1] = count(self.table[t + 1])
        self.rest[t] = self._without_each(self.units[t])

    def _without_each(self, unit: np.ndarray) -> np.ndarray:
        """[batch, W] union of the unit's scopes but for one view at a time."""
        rows = self.scopes[unit]
        none = np.zeros_like(rows[:1])
        ahead = np.bitwise_or.accumulate(np.concatenate([none, rows[:-1]]), axis=0)
        behind = np.bitwise_or.accumulate(np.concatenate([none, rows[:0:-1]]), axis=0)[::-1]
        return ahead | behind
