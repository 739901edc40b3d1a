"""Sets of rows as packed words: what one view may touch, what a unit reads, how many rows two units share.

A row is one primitive, or one SfM point where it stands for the primitives grown from it. A packed set is
``uint64[..., W]`` with ``W = ceil(N / 64)``; padding bits are zero, so counts need no mask.
"""

from __future__ import annotations

import numpy as np

WORD = 64


def pack(rows: np.ndarray) -> np.ndarray:
    """Pack ``rows`` bool [..., N] into uint64 [..., ceil(N/64)]; bit order is private to this module."""
    rows = np.asarray(rows, bool)
    spare = -rows.shape[-1] % WORD
    if spare:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:-1], spare), bool)], axis=-1)
    return np.ascontiguousarray(np.packbits(rows, axis=-1)).view(np.uint64)


def unpack(words: np.ndarray, n_rows: int) -> np.ndarray:
    """The bool [..., n_rows] set that ``pack`` made ``words`` [..., W] from."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, count=n_rows).astype(bool)


def union(words: np.ndarray) -> np.ndarray:
    """Union over the first axis: uint64 [B, W] → [W], a unit's scope ``R⁺(U) = ∪ R⁺_i`` (paper §2.1)."""
    return np.bitwise_or.reduce(words, axis=0)


def count(words: np.ndarray) -> np.ndarray:
    """Number of rows in each packed set: uint64 [..., W] → int64 [...]."""
    return np.bitwise_count(words).sum(axis=-1, dtype=np.int64)


def shared(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Share of ``first``'s rows that ``second`` reads, 0..1; 0 for an empty ``first``. Both uint64 [...,
    W].
    """
    return count(first & second) / np.maximum(count(first), 1)
