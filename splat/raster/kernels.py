"""What the GPU kernels that blend tile lists have in common: one program per tile walks its list from the front.

A program keeps its pixels in registers and reads what a row needs once. The walk ends where no pixel lets light through
any more, and nothing asks the host. A backward kernel leaves the gradient of every list slot in the slot, so that it
needs no atomics; XLA adds the slots of a row together. Kernels are written in Pallas and lowered by Triton. On a CPU
they are interpreted, which is for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from splat.backend import backend
from splat.errors import UserError
from splat.raster.settings import KernelShape
from splat.raster.walk import MIN_TRANSMITTANCE
from splat.tiles import Grid, TileLists

CLEARED = 64  # slots that are set to zero together
MOST_NUMBERS = 2**31 - 1  # of an array that a kernel indexes: Triton's offsets have 32 bits

Row = Callable[[jax.Array, Any], Any]  # (slot, carry) → carry


def most_pairs(columns: int) -> int:
    """Tile-row pairs of a view up to which a kernel can index gradients of ``columns`` numbers in their slots."""
    return MOST_NUMBERS // columns


def launch(body: Callable[..., None], grid: Grid, shape: KernelShape, out: Any) -> Callable[..., Any]:
    """``body`` as a kernel with one program per tile, which gives arrays like ``out``."""
    return pl.pallas_call(body, out_shape=out, grid=(grid.count,), interpret=backend() == "cpu",
                          compiler_params=triton.CompilerParams(num_warps=shape.warps, num_stages=1))


def arguments(geometry: jax.Array, features: jax.Array, lists: TileLists) -> tuple[jax.Array, ...]:
    """What every kernel begins with: tiles with the longest list first, as they decide when the last program ends,
    starts and rows of the lists, and the table [N, columns] of the rows.

    Raises UserError for more rows or pairs than can be indexed.
    """
    most = most_pairs(geometry.shape[1] + features.shape[1])
    if max(len(features), len(lists.rows)) > most:
        raise UserError(f"{len(features):,} rows with room for {len(lists.rows):,} tile-row pairs in a view: the "
                        f"kernels index {most:,}; train fewer rows or smaller photos")
    order = jnp.argsort(lists.starts[:-1] - lists.starts[1:]).astype(jnp.int32)
    return order, lists.starts, lists.rows, jnp.concatenate([geometry, features], -1)


def of_rows(slots: jax.Array, lists: TileLists, n: int) -> jax.Array:
    """[n, columns]: the gradients in the slots [capacity, columns] of each row, added up."""
    used = jnp.where((lists.rows < n)[:, None], slots, 0)
    return jnp.zeros((n, slots.shape[1]), slots.dtype).at[lists.rows].add(used, mode="drop")


def tile_of(grid: Grid, order: Any, starts: Any) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
    """The program's tile, the slots of its list from first to one past the last, and its centre in pixels."""
    tile = order[pl.program_id(0)]
    at = (tile % grid.columns, tile // grid.columns)
    x, y = ((place * grid.side).astype(jnp.float32) + grid.side / 2 for place in at)
    return tile, starts[tile], starts[tile + 1], (x, y)


def offsets(side: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """x and y [P] of pixel centres relative to the centre of a tile; made in the kernel, which takes no constants."""
    at, shift = jnp.arange(side * side, dtype=jnp.int32), np.asarray(0.5 - side / 2, dtype)
    return (at % side).astype(dtype) + shift, (at // side).astype(dtype) + shift


def numbers(table: Any, index: jax.Array, columns: int) -> list[jax.Array]:
    """The numbers of one row of the table."""
    return [table[index, column] for column in range(columns)]


def walk(begin: jax.Array, end: jax.Array, chunk: int, row: Row, start: Any) -> tuple[jax.Array, Any]:
    """(first slot that was not reached, what is carried): ``row(slot, carry)`` over the list, transmittance first.

    Whether a pixel still lets light through is asked after every ``chunk`` rows only, as all threads have to agree.
    """
    def more(state: Any) -> jax.Array:
        slot, carry = state
        return (slot < end) & (jnp.max(carry[0]) >= MIN_TRANSMITTANCE)

    def step(state: Any) -> Any:
        slot, carry = state
        following = jnp.minimum(slot + chunk, end)
        return following, jax.lax.fori_loop(slot, following, row, carry)

    return jax.lax.while_loop(more, step, (begin, start))


def put(out: Any, slot: jax.Array, values: Sequence[jax.Array]) -> None:
    """Write the gradient of a slot."""
    for column, value in enumerate(values):
        out[slot, column] = value


def clear(out: Any, begin: jax.Array, end: jax.Array) -> None:
    """Set the gradients of the slots from ``begin`` to before ``end`` to zero."""
    lane, columns = jnp.arange(CLEARED, dtype=jnp.int32), out.shape[1]

    def part(index: jax.Array, carry: jax.Array) -> jax.Array:
        slots = begin + index * CLEARED + lane
        for column in range(columns):
            triton.store(out.at[slots, column], jnp.zeros(CLEARED, out.dtype), mask=slots < end)
        return carry

    jax.lax.fori_loop(0, (end - begin + CLEARED - 1) // CLEARED, part, jnp.int32(0))
