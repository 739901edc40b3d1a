"""Pixels by rank: a unit's images as one list of tile rows, cut into pieces of equal cost (spec §6.1, §6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from flax import struct

from splat.errors import UserError

SIDE = 16  # pixel rows of a tile row
SNAP = 1.0  # tile rows from the border of an image within which a cut moves there
SNAP_SHARE = 0.1  # and the share of an image


class Piece(NamedTuple):
    """Consecutive pixel rows of one view that one rank renders."""

    view: int  # place in the unit
    first: int  # pixel row
    count: int  # pixel rows; 0: nothing


@struct.dataclass
class Table:
    """All strips of a unit, by rank and slot [R, P] int32; the same on all ranks."""

    view: Any
    first: Any
    count: Any
    place: Any  # [R] int32, where a rank's pieces come in the list of images: sums follow that order


@dataclass(frozen=True)
class Cut:
    """Who renders what of a unit."""

    pieces: tuple[tuple[Piece, ...], ...]  # by rank and slot, P of each rank
    rows: int  # most pixel rows of a piece
    place: tuple[int, ...]  # of each rank in the list of images

    def table(self) -> Table:
        """As arrays."""
        view, first, count = np.moveaxis(np.asarray(self.pieces, np.int32), -1, 0)
        return Table(view, first, count, np.asarray(self.place, np.int32))


def tile_rows(height: int) -> int:
    """Tile rows of an image of ``height`` pixels."""
    return -(-height // SIDE)


def cut_points(costs: np.ndarray, portions: np.ndarray) -> np.ndarray:
    """[R + 1] where the list of tile rows is cut into pieces for R ranks, each at least one row long.

    ``costs`` [V, T] of every tile row of V images. A rank gets its portion [R] of their sum, but that a cut close to
    the border of an image moves there. Raises UserError when there are fewer tile rows than ranks.
    """
    (views, each), ranks = costs.shape, len(portions)
    total = views * each
    if total < ranks:
        raise UserError(f"{views} images of {each} tile rows of {SIDE} pixels cannot be shared by {ranks} ranks: give "
                        "a larger --batch, larger photos or fewer ranks")
    ends = np.concatenate([[0], np.cumsum(np.maximum(costs.ravel(), 1e-9), dtype=np.float64)])
    wanted = np.interp(np.concatenate([[0], np.cumsum(portions)]) * ends[-1], ends, np.arange(total + 1))
    border = np.round(wanted / each) * each
    cuts = np.where(np.abs(wanted - border) <= max(SNAP, SNAP_SHARE * each), border, np.round(wanted)).astype(int)
    for at in range(1, ranks):
        cuts[at] = max(cuts[at], cuts[at - 1] + 1)
    for at in range(ranks - 1, 0, -1):
        cuts[at] = min(cuts[at], cuts[at + 1] - 1)
    cuts[0], cuts[-1] = 0, total
    return cuts


def cut(costs: np.ndarray, height: int, portions: np.ndarray, whole: bool = False) -> Cut:
    """The strips of V images of ``height`` pixels, piece i for rank i; see ``given_to`` for another order.

    ``costs`` [V, T] and ``portions`` [R] as in ``cut_points``; ``whole``: every image goes to one rank. Raises
    UserError as ``cut_points``, and when whole images are fewer than ranks.
    """
    (views, each), ranks = costs.shape, len(portions)
    if whole and views < ranks:
        raise UserError(f"--pixels images: {views} images cannot be shared by {ranks} ranks; give a larger --batch or "
                        "--pixels strips")
    cuts = cut_points(costs.sum(1, keepdims=True), portions) * each if whole else cut_points(costs, portions)
    spans = [_spans(int(start), int(end), each) for start, end in pairwise(cuts)]
    rows = _rows(spans, each)
    slots = max(sum(-(-(end - start) // rows) for _, start, end in of_rank) for of_rank in spans)
    pieces = tuple(_pieces(of_rank, rows, height, slots) for of_rank in spans)
    return Cut(pieces, min(rows * SIDE, height), tuple(range(ranks)))


def given_to(found: Cut, rank_of: np.ndarray) -> Cut:
    """The same pieces, piece i for rank ``rank_of[i]``."""
    piece_of = np.argsort(rank_of)
    return Cut(tuple(found.pieces[piece] for piece in piece_of), found.rows, tuple(int(piece) for piece in piece_of))


def _spans(start: int, end: int, each: int) -> list[tuple[int, int, int]]:
    """(view, first tile row, end) of a piece of the list."""
    return [(view, max(start - view * each, 0), min(end - view * each, each))
            for view in range(start // each, -(-end // each))]


def _rows(spans: list[list[tuple[int, int, int]]], each: int) -> int:
    """Most tile rows of a strip, of two sizes: those of an image, or half of them where that wastes less.

    Every strip of a program has this size, so a program is compiled for each.
    """
    def cost(rows: int) -> int:
        return max(sum(-(-(end - start) // rows) for _, start, end in of_rank) for of_rank in spans) * (rows + 1)

    return min((each, -(-each // 2)), key=cost)


def _pieces(spans: list[tuple[int, int, int]], rows: int, height: int, slots: int) -> tuple[Piece, ...]:
    found = [Piece(view, first * SIDE, min(min(first + rows, end) * SIDE, height) - first * SIDE)
             for view, start, end in spans for first in range(start, end, rows)]
    return tuple(found + [Piece(0, 0, 0)] * (slots - len(found)))
