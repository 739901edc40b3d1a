"""What a rank does for its strips, as pure functions that see one rank's arrays: order, render, give back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from odin_jax.parallel.mesh import RANKS
from odin_jax.stages import Activity
from sched.hazards import Rows
from splat.strips import Strip
from splat.tiles import stable_order

KEY_BITS = 31


@struct.dataclass
class Entries:
    """Rows that each of a rank's P strips needs, in the order of their ids; E places a strip."""

    attributes: jax.Array  # [P, E, F]; zero in unused places
    ids: jax.Array  # [P, E] int32; the number of rows in unused places
    source: jax.Array  # [P, E] int32 rank that owns the row


class Rendered(NamedTuple):
    """A strip after backward."""

    d_attributes: jax.Array  # [E, G]
    active: Rows  # [N/8] packed rows with a gradient
    magnitude: jax.Array  # [N] float32 the strip's part of g_U(p)
    numbers: jax.Array  # [3] loss and mean squared error of the strip, 1 if its gradient is finite
    pairs: jax.Array  # [] int32
    overflow: jax.Array  # [] bool


def ordered(far: jax.Array, near: jax.Array, slots: int, rows: int, room: int) -> Entries:
    """The entries of what other ranks sent, [R, C, F + 1] in any order, and of this rank's own, [D, F + 1].

    ``room``: E, which every strip's rows must fit. The order is that of the keys.
    """
    me = lax.axis_index(RANKS)
    values = jnp.concatenate([far.reshape(-1, far.shape[-1]), near])
    source = jnp.concatenate([jnp.repeat(jnp.arange(len(far)), far.shape[1]), jnp.full(len(near), me)])
    keys = lax.bitcast_convert_type(values[:, -1], jnp.int32)
    order = stable_order(keys.astype(jnp.uint32), KEY_BITS)
    keys = keys[order]
    starts = jnp.searchsorted(keys, jnp.arange(slots + 1, dtype=jnp.int32) * (rows + 1))

    def of_slot(slot: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        place = starts[slot] + jnp.arange(room)
        used, at = place < starts[slot + 1], jnp.minimum(place, len(keys) - 1)
        ids = jnp.where(used, keys[at] - slot * (rows + 1), rows)
        return jnp.where(used[:, None], values[order[at], :-1], 0), ids, jnp.where(used, source[order[at]], -1)

    return Entries(*lax.map(of_slot, jnp.arange(slots, dtype=jnp.int32)))


def render(pipeline: Any, entries: Entries, slot: int, strip: Strip, step: jax.Array, room: int,
           rows: int) -> Rendered:
    """Forward and backward of one strip; ``room`` is the static capacity for tile-row pairs."""
    attributes, ids = entries.attributes[slot], entries.ids[slot]
    width = pipeline.returned_width
    half = jnp.asarray([strip.camera.width, strip.height], jnp.float32) / 2

    def work() -> Rendered:
        def loss(leading: jax.Array) -> tuple[jax.Array, Any]:
            return pipeline.strip_loss(jnp.concatenate([leading, attributes[:, width:]], 1), strip, step, room)

        (value, evidence), grads = jax.value_and_grad(loss, has_aux=True)(attributes[:, :width])
        active = jnp.zeros(rows, bool).at[ids].set(jnp.any(grads != 0, 1), mode="drop")
        moved = jnp.linalg.norm(grads[:, :2] * half, axis=-1)
        magnitude = jnp.zeros(rows, jnp.float32).at[ids].set(moved, mode="drop")
        numbers = jnp.stack([value, evidence.mse, jnp.all(jnp.isfinite(grads)).astype(jnp.float32)])
        return Rendered(grads, jnp.packbits(active), magnitude, numbers, evidence.pairs, evidence.overflow)

    def nothing() -> Rendered:
        return Rendered(jnp.zeros((len(ids), width), jnp.float32), jnp.zeros(-(-rows // 8), jnp.uint8),
                        jnp.zeros(rows, jnp.float32), jnp.asarray([0, 0, 1], jnp.float32), jnp.int32(0),
                        jnp.zeros((), bool))

    return lax.cond(strip.count > 0, work, nothing)


def activity(strips: Sequence[Rendered], view: jax.Array, views: int, visible: Rows, carried: Rows | None) -> Activity:
    """What a rank knows of a unit: of its strips, of views ``view`` [P], and of its rows.

    ``visible`` and ``carried`` [N/8]: sets of all rows, of which this rank knows its own.
    """
    def of_view(place: int) -> Rows:
        words = [jnp.where(view[slot] == place, strip.active, 0) for slot, strip in enumerate(strips)]
        return reduce(or_, words)

    numbers = jnp.stack([strip.numbers for strip in strips])
    magnitude = jnp.sum(jnp.stack([strip.magnitude for strip in strips]), 0)
    share = lax.axis_size(RANKS) / views
    told = jnp.stack([jnp.sum(numbers[:, 0]) * share, jnp.sum(numbers[:, 1]) * share, jnp.sum(magnitude),
                      jnp.min(numbers[:, 2])])
    return Activity(jnp.stack([of_view(place) for place in range(views)]), visible, magnitude, told,
                    jnp.stack([strip.pairs for strip in strips]),
                    jnp.any(jnp.stack([strip.overflow for strip in strips])), carried)


def give_back(strips: Sequence[jax.Array], entries: Entries, words: Rows,
              lengths: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """([R, C, G], [D, G]) gradients of the rows of a packed set for their owners, slot by slot in the order of ids.

    ``strips``: gradients [E, G] of each; ``lengths``: C and D.
    """
    ranks, me = lax.axis_size(RANKS), lax.axis_index(RANKS)
    ids, source = entries.ids.reshape(-1), entries.source.reshape(-1)
    grads = jnp.concatenate(strips)
    flags = jnp.unpackbits(words).astype(bool)
    chosen = flags.at[ids].get(mode="fill", fill_value=False)
    far, near = lengths

    def of_rank(rank: jax.Array, size: int) -> jax.Array:
        places = jnp.nonzero(chosen & (source == rank), size=size, fill_value=len(ids))[0]
        return grads.at[places].get(mode="fill", fill_value=0)

    others = jnp.where(jnp.arange(ranks) == me, -2, jnp.arange(ranks))
    return lax.map(lambda rank: of_rank(rank, far), others), of_rank(me, near)

