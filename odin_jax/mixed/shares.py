"""What is known of tile rows and ranks, to divide the next units by: costs, owners, speeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from odin_jax.mixed.cut import SIDE, Cut, Piece, tile_rows
from odin_jax.mixed.homes import views_to_ranks
from odin_jax.parallel.alike import Shape
from sched.dispatch import update_slowness

EMPTY = 4.0  # what a tile without rows costs, in tiles of rows: loss and background


class Shares:
    """Learns from every unit; every process holds the same numbers and so divides alike.

    ``measured`` False leaves times out, so that the division, and with it the order of every sum, is the same in every
    run.
    """

    def __init__(self, ranks: int, measured: bool, known: dict[str, Any] | None = None):
        """``known``: what ``to_json`` gave before; of another number of ranks only the costs are taken over."""
        self._ranks, self._measured, known = ranks, measured, known or {}
        self._tiles = {int(view): np.array(costs, float) for view, costs in known.get("tiles", [])}
        same = known.get("ranks") == ranks
        self._owned = {int(view): np.array(rows, float) for view, rows in known.get("owned", [])} if same else {}
        self.slowness = np.ones(ranks)
        self._portions: list[np.ndarray] = []  # of the units under way

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"ranks": self._ranks, "tiles": [[view, costs.tolist()] for view, costs in sorted(self._tiles.items())],
                "owned": [[view, rows.tolist()] for view, rows in sorted(self._owned.items())]}

    def costs(self, views: Sequence[int], shape: Shape) -> np.ndarray:
        """[V, T] cost of every tile row of the views, by what it held last time; unseen views are like the mean."""
        rows = tile_rows(shape.height)
        seen = [costs for costs in self._tiles.values() if len(costs) == rows]
        usual = np.mean(seen, axis=0) if seen else np.zeros(rows)
        known = [self._tiles.get(view, usual) for view in views]
        fitting = np.stack([costs if len(costs) == rows else usual for costs in known])
        return fitting + EMPTY * -(-shape.width // SIDE)

    def order(self, views: Sequence[int]) -> list[int]:
        """Places in the unit, those of views that one rank has most rows of together."""
        return np.argsort(views_to_ranks(self._owned_by(views)), kind="stable").tolist()

    def ranks_of(self, pieces: Sequence[Sequence[Piece]], views: Sequence[int]) -> np.ndarray:
        """[R] a rank for each of R lists of pieces, so that as many rows as can be need not travel."""
        owned = self._owned_by(views)
        share = np.zeros((self._ranks, self._ranks))
        for place, of_rank in enumerate(pieces):
            for piece in of_rank:
                share[place] += owned[piece.view] * piece.count
        return linear_sum_assignment(-share)[1]

    def learn(self, views: Sequence[int], found: Cut, costs: np.ndarray, counts: np.ndarray) -> None:
        """Note the tiles [V, T] of a unit's views, and how many rows of each rank its strips needed [R, R·P]."""
        for view, of_view in zip(views, costs, strict=True):
            self._tiles[int(view)] = of_view.astype(float)
        owned = np.zeros((len(views), self._ranks))
        strips = [piece for of_rank in found.pieces for piece in of_rank]
        for piece, of_strip in zip(strips, counts.T, strict=True):
            owned[piece.view] += of_strip
        self._owned.update(zip(map(int, views), owned, strict=True))

    def forget_homes(self) -> None:
        """Rows have moved."""
        self._owned.clear()

    def portions(self) -> np.ndarray:
        """[R] of all cost for each rank in the unit that is cut next, which slow ranks get less of."""
        speed = 1 / self.slowness
        self._portions.append(speed / speed.sum())
        return self._portions[-1]

    def observe(self, seconds: np.ndarray) -> None:
        """Learn how long each rank [R] took for a unit; to be called in the order of the units."""
        portions = self._portions.pop(0)
        if self._measured:
            self.slowness = update_slowness(self.slowness, portions * seconds.sum(), seconds)

    def _owned_by(self, views: Sequence[int]) -> np.ndarray:
        return np.stack([self._owned.get(view, np.zeros(self._ranks)) for view in views])
