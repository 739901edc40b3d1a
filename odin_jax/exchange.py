"""Sums and unions over ranks, to be called inside a program that runs on every rank (design §8).

``psum`` is the backend's all-reduce: fast, but in which order it adds up the ranks may depend on where a row lies in
the buffer. ``ordered`` moves the same bytes (blocks of rows to their rank, added up there in the order of the ranks,
and back to all), and the sum of a row depends on nothing but the row. Where bit equality is promised it is under
``ordered``. With two ranks both give the same bits, as addition of two numbers commutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add, or_

import jax
import jax.numpy as jnp
from jax import lax

from odin_jax.parallel.mesh import RANKS


def total(rows: jax.Array, exchange: str) -> jax.Array:
    """Sum over ranks of ``rows`` [M, F], on every rank."""
    if exchange == "psum":
        return lax.psum(rows, RANKS)
    return _in_order(rows, add)


def union(words: jax.Array) -> jax.Array:
    """Bitwise or over ranks of packed row sets [W] (or [K, W], K sets), on every rank."""
    flat = words.reshape(-1)
    return _in_order(flat, or_).reshape(words.shape)


def every(values: jax.Array) -> jax.Array:
    """[R, ...]: the ``values`` of every rank, on every rank."""
    return lax.all_gather(values, RANKS)


def bytes_of_total(rows: int, width: int, ranks: int) -> int:
    """Bytes that each rank sends for the sum of ``rows`` rows of ``width`` float32, by either exchange."""
    return int(2 * (ranks - 1) / ranks * rows * width * 4)


def _in_order(array: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """All ranks' arrays [M, ...] combined in the order of the ranks: each rank does a block, then all get all."""
    ranks = lax.axis_size(RANKS)
    if ranks == 1:
        return array
    block = -(-len(array) // ranks)
    padded = jnp.pad(array, [(0, block * ranks - len(array))] + [(0, 0)] * (array.ndim - 1))
    blocks = lax.all_to_all(padded.reshape(ranks, block, *array.shape[1:]), RANKS, 0, 0)
    mine = reduce(combine, [blocks[rank] for rank in range(ranks)])
    return lax.all_gather(mine, RANKS, tiled=True)[: len(array)]
