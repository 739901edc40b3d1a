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
    return second_half(first_half(rows, exchange), exchange, len(rows))


def first_half(rows: jax.Array, exchange: str) -> jax.Array:
    """What ``ordered`` has of a sum before its second collective, so that each can run beside other work.

    ``psum`` is one collective: it is all in the second half.
    """
    return rows if exchange == "psum" else _to_blocks(rows)


def second_half(half: jax.Array, exchange: str, count: int) -> jax.Array:
    """Sum over ranks of ``count`` rows from their ``first_half``, on every rank."""
    return lax.psum(half, RANKS) if exchange == "psum" else _from_blocks(half, add, count)


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
    return _from_blocks(_to_blocks(array), combine, len(array))


def _to_blocks(array: jax.Array) -> jax.Array:
    """[R, M/R, ...]: this rank's block of the arrays [M, ...] of all ranks."""
    ranks = lax.axis_size(RANKS)
    if ranks == 1:
        return array[None]
    block = -(-len(array) // ranks)
    padded = jnp.pad(array, [(0, block * ranks - len(array))] + [(0, 0)] * (array.ndim - 1))
    return lax.all_to_all(padded.reshape(ranks, block, *array.shape[1:]), RANKS, 0, 0)


def _from_blocks(blocks: jax.Array, combine: Callable[[jax.Array, jax.Array], jax.Array], count: int) -> jax.Array:
    """[count, ...]: blocks of all ranks, each combined in the order of the ranks on the rank that has it."""
    ranks = lax.axis_size(RANKS)
    mine = reduce(combine, [blocks[rank] for rank in range(ranks)])
    return mine if ranks == 1 else lax.all_gather(mine, RANKS, tiled=True)[:count]
