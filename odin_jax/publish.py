"""Publication by rows and fields (paper §4.3; design §7): which rows travel when, and the optimizer step they bring.

A unit A has a gradient in the rows C_A. All others take the same step with a zero gradient, which every rank can make
alone (``settle``). Of C_A the *urgent* rows, those that the next unit reads, travel first, geometry before colour; the
*rest* travels while the next unit computes. A part is the sum over ranks of a list of rows (``stage``) and the
optimizer step of these rows (``apply``). As the step is element-wise and compiled apart from what stands around it, the
parts in any order give the bits of the whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from odin_jax.stages import Produced
from sched.hazards import Rows
from splat.apart import apart
from splat.columns import per_row
from splat.pipelines.rows import Rows as RowArrays
from splat.pipelines.rows import StepInputs, merged, only, present

SMALLEST = 256  # rows in the smallest list
PIECES = (32768, 8192, 2048, 512)  # rows of the pieces that a list of any length is sent in


class Publication(NamedTuple):
    """A finished unit and which of its rows are published when; packed sets, with static sizes for their lists."""

    unit: int  # 1-based step
    produced: Produced
    active: Rows  # [N/8] rows to update: C_A and those carried from earlier units
    visible: Rows  # [N/8] rows visible in some view of A
    urgent: Rows  # [N/8] rows of C_A that are published before the next unit observes state
    urgent_count: int  # urgent rows
    rest_count: int  # other rows of C_A
    inputs: StepInputs  # of the optimizer step
    fields: tuple[str, ...]  # that the step changes; no other is exchanged or touched


def pieces(rows: int) -> list[tuple[int, int]]:
    """(first row, length) of the pieces for a list of ``rows`` rows, of few lengths, so that few programs are compiled.

    Only the last piece is longer than what is left, by less than the smallest length.
    """
    at, found = 0, []
    for length in PIECES:
        while rows - at >= length or (length == PIECES[-1] and rows > at):
            found.append((at, length))
            at += length
    return found


def room_for(rows: int, most: int, grain: int) -> int:
    """Static length of a list of ``rows`` rows: one of few sizes, ``grain`` (a power of two) to a doubling.

    At most ``most``; 0 for an empty list, which is not sent at all.
    """
    if rows == 0:
        return 0
    size = max(rows, SMALLEST)
    step = max((1 << (size - 1).bit_length() - 1) // grain, 1)
    return min(-(-size // step) * step, most)


def width(field: Any, leading: int = 1) -> int:
    """Numbers per row of a field with ``leading`` axes before them."""
    return int(np.prod(field.shape[leading:]))


def settle(pipeline: Any, state: Any, active: Rows, visible: Rows, inputs: StepInputs,
           fields: tuple[str, ...]) -> Any:
    """The state after the optimizer step in ``fields`` of all rows outside ``active``: their gradient is zero on every
    rank.
    """
    whole = pipeline.rows(state)
    rows = only(whole, fields)
    if not fields:
        return pipeline.with_rows(state, whole, inputs)
    count = jax.tree.leaves(rows)[0].shape[0]
    waits, seen = (jnp.unpackbits(words, count=count).astype(bool) for words in (active, visible))

    def step(rows: RowArrays, waits: jax.Array, seen: jax.Array, inputs: StepInputs) -> RowArrays:
        zero = jax.tree.map(jnp.zeros_like, rows.params)
        after = pipeline.step_rows(rows, zero, seen, inputs)
        return jax.tree.map(lambda old, new: jnp.where(per_row(waits, old), old, new), rows, after)

    settled = apart(step, inputs.count >= 0, rows, waits, seen, inputs)
    return pipeline.with_rows(state, merged(whole, settled), inputs)


def stage(grads: Any, indices: jax.Array, fields: tuple[str, ...]) -> jax.Array:
    """[M, F] this rank's gradients of the listed rows [M] in ``fields``, side by side; padding gives zero."""
    parts = [getattr(grads, name).at[indices].get(mode="fill", fill_value=0).reshape(len(indices), -1)
             for name in fields]
    return jnp.concatenate(parts, axis=1)


def apply(pipeline: Any, state: Any, indices: jax.Array, summed: jax.Array, fields: tuple[str, ...], visible: Rows,
          inputs: StepInputs) -> Any:
    """The state after the optimizer step of the listed rows in ``fields``; indices beyond the rows are padding."""
    whole = pipeline.rows(state)
    rows = only(whole, fields)
    old = _taken(rows, indices)
    grads = _split(summed, old.params)
    seen = _taken(jnp.unpackbits(visible).astype(bool), indices)
    new = apart(pipeline.step_rows, inputs.count >= 0, old, grads, seen, inputs)
    return pipeline.with_rows(state, merged(whole, _put(rows, indices, new)), inputs)


def parameters(pipeline: Any, state: Any, indices: jax.Array) -> Any:
    """Parameters of the listed rows [M, ...]; padding gives those of the last row."""
    return _taken(pipeline.rows(state).params, indices)


def with_parameters(pipeline: Any, state: Any, indices: jax.Array, parameters: Any, step: jax.Array) -> Any:
    """The state with other parameters in the listed rows; padding is left out. For unit ``step`` to read, no more."""
    rows = pipeline.rows(state)
    params = _put(rows.params, indices, parameters)
    return pipeline.with_rows(state, dataclasses.replace(rows, params=params), pipeline.step_inputs(state, step))


def _taken(tree: Any, indices: jax.Array) -> Any:
    """The listed rows [M, ...] of a pytree of row arrays; padding gives the last row."""
    return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="clip"), tree)


def _put(tree: Any, indices: jax.Array, rows: Any) -> Any:
    """A pytree of row arrays with the listed rows replaced; padding is left out."""
    return jax.tree.map(lambda leaf, part: leaf.at[indices].set(part, mode="drop", unique_indices=True), tree, rows)


def _split(summed: jax.Array, like: Any) -> Any:
    """Columns of [room, F] as the fields of a dataclass of row arrays [room, ...], in the order of ``present``."""
    at, fields = 0, {}
    for name in present(like):
        shape = getattr(like, name).shape
        wide = width(getattr(like, name))
        fields[name] = summed[:, at : at + wide].reshape(shape)
        at += wide
    return dataclasses.replace(like, **fields)
