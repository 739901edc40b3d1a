"""Which rank runs which view (DDS, paper §4.3): predicted pairs, and how fast each rank has been lately."""

from __future__ import annotations

import numpy as np

from odin_jax.window import Window
from sched.dispatch import assign, assign_static, update_slowness

SECONDS_PER_PAIR = 1e-6  # scale of the predictions; only their ratios matter


class Balance:
    """Assigns a unit's views to ranks; every rank holds the same numbers and so decides alike.

    ``measured`` False leaves times out, so that the assignment, and with it the order of every sum, is the same in
    every run.
    """

    def __init__(self, ranks: int, dynamic: bool, measured: bool, pairs: dict[int, int] | None = None):
        self._ranks, self._dynamic, self._measured = ranks, dynamic, measured
        self.pairs = dict(pairs or {})  # tile-row pairs of each view when it last ran
        self.slowness = np.ones(ranks)

    def assign(self, views: np.ndarray) -> np.ndarray:
        """[R, S] the views [R·S] of a unit, by rank."""
        where = assign_static(len(views), self._ranks)
        if self._dynamic:
            usual = float(np.mean(list(self.pairs.values()))) if self.pairs else 1.0
            costs = np.array([self.pairs.get(int(view), usual) for view in views]) * SECONDS_PER_PAIR
            where = assign(costs, self._ranks, slowness=self.slowness)
        return np.stack([views[where == rank] for rank in range(self._ranks)])

    def observe(self, window: Window) -> None:
        """Learn the pairs of a finished unit's views, and how long its ranks took for them."""
        if self._measured and self.pairs:
            expected = np.array([[self.pairs.get(int(view), 0) for view in views] for views in window.views])
            if expected.all():
                seconds, work = window.seconds, expected.sum(axis=1) * SECONDS_PER_PAIR
                scale = seconds.sum() / work.sum()
                self.slowness = update_slowness(self.slowness, work * scale, seconds)
        self.pairs.update(zip(map(int, window.views.ravel()), map(int, window.pairs.ravel()), strict=True))
