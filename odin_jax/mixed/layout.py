"""Which rank owns which row, and the state divided accordingly.

A row keeps the number, its *id*, that it has in the state of one device. A rank has its rows in the order of their ids
and exchanges ids with the attributes, so that nothing that is computed depends on who owns what: a run may be divided
anew, or go on with other ranks, and ends with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from odin_jax.parallel.mesh import OWN, SAME, Ranks, here
from odin_jax.placement import gatherer
from splat.density import ROW_MULTIPLE
from splat.errors import UserError

SPARE = 1.1  # room of a rank over its even share of the rows, so that shares may drift apart by so much
CHUNK = 1 << 16  # rows of a rank that are gathered at a time


@dataclass(frozen=True)
class Layout:
    """Rows by rank."""

    ids: np.ndarray  # [R, L] int32 ascending; those of room that no row has are the number of rows
    rows: int  # in all, those that are only capacity included

    @property
    def length(self) -> int:
        """Room for rows on each rank."""
        return self.ids.shape[1]


def room_of(rows: int, ranks: int) -> int:
    """Room for rows on each of the ranks; a multiple of ``ROW_MULTIPLE``."""
    share = rows if ranks == 1 else rows / ranks * SPARE
    return -(-int(np.ceil(share)) // ROW_MULTIPLE) * ROW_MULTIPLE


def layout_of(homes: np.ndarray, alive: np.ndarray, ranks: int) -> Layout:
    """The layout in which every living row is at its home; the others fill the room that is left.

    ``homes`` [N] rank of each row, ``alive`` [N] bool. Raises UserError when a rank has no row, or more than its room.
    """
    rows, room = len(homes), room_of(len(homes), ranks)
    counts = np.bincount(homes[alive], minlength=ranks)
    if counts.min() == 0:
        raise UserError(f"rank {int(counts.argmin())} of {ranks} has no Gaussian of {int(alive.sum()):,}: train with "
                        "fewer ranks, or from more points")
    if counts.max() > room:
        raise ValueError(f"rank {int(counts.argmax())} owns {int(counts.max())} rows, more than its room of {room}")
    spare = np.split(np.flatnonzero(~alive), np.clip(np.cumsum(room - counts)[:-1], 0, int((~alive).sum())))
    ids = np.full((ranks, room), rows, np.int32)
    for rank, more in enumerate(spare):
        mine = np.sort(np.concatenate([np.flatnonzero(alive & (homes == rank)), more]))
        ids[rank, : len(mine)] = mine
    return Layout(ids, rows)


def row_fields(state: Any) -> Any:
    """OWN for the arrays of a state of one device that have a part per row, SAME for the others, as the state's class.
    """
    rows = len(state.alive)
    return jax.tree.map(lambda leaf: OWN if np.ndim(leaf) and np.shape(leaf)[0] == rows else SAME, state)


def place(ranks: Ranks, state: Any, layout: Layout) -> Any:
    """A state of one device divided over the ranks; arrays of rows become OWN [R, L, ...]."""
    def placed(leaf: Any, kind: Any) -> Any:
        if kind == SAME:
            return ranks.same(leaf)
        host = np.asarray(leaf)
        return ranks.own([host[np.minimum(layout.ids[rank], layout.rows - 1)] for rank in ranks.local])

    parts = jax.tree.map(placed, state, row_fields(state))
    lives = np.asarray(state.alive)
    alive = [(layout.ids[rank] < layout.rows) & lives[np.minimum(layout.ids[rank], layout.rows - 1)]
             for rank in ranks.local]
    return parts.replace(alive=ranks.own(alive))


def gather(ranks: Ranks, state: Any, layout: Layout) -> Any:
    """The divided state as one device has it, as NumPy arrays on every host. Every process has to call it.

    No device ever holds more of an array than ``CHUNK`` rows of each rank.
    """
    program, known = gatherer(ranks), layout.ids < layout.rows

    def whole(leaf: Any) -> np.ndarray:
        if leaf.ndim < 2:  # one number, the same on all ranks
            return np.asarray(here(leaf))
        result = np.zeros((layout.rows, *leaf.shape[2:]), leaf.dtype)
        for first in range(0, layout.length, CHUNK):
            part = np.asarray(here(program(leaf[:, first : first + CHUNK])))
            at = (slice(None), slice(first, first + CHUNK))
            result[layout.ids[at][known[at]]] = part[known[at]]
        return result

    return jax.tree.map(whole, state)
