"""What the owner of rows does for a unit, as pure functions that see one rank's arrays.

Rows are projected for all views of the unit (``screen``). Which of them a strip needs follows from the pixel rows that
they reach, and the owner sends each strip a list of them in the order of their ids (``listed``, ``pack``). Gradients of
the attributes come back as such lists (``collect``), and go through the projection to the optimizer step
(``advance``). Every step of this is made of all rows of the rank, and those that are not meant stay as they were, so
that parts in any order give the bits of the whole.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from odin_jax.mixed.cut import SIDE, Table
from odin_jax.parallel.mesh import RANKS
from sched.hazards import Rows
from splat.apart import apart
from splat.cameras import Camera
from splat.columns import per_row
from splat.pipelines.rows import merged, only
from splat.pipelines.unit import nothing
from splat.strips import HALO

NO_KEY = 2**31 - 1  # of a slot of a list that holds no row


@struct.dataclass
class Screening:
    """A rank's rows [L] as the V views of a unit show them."""

    attributes: jax.Array  # [V, L, F]
    route: jax.Array  # [Q, L] bool, Q = R·P: rows that the strip of each rank and slot needs
    seen: jax.Array  # [L] int32, in how many views each row is visible
    costs: jax.Array  # [V, T] int32, tiles that the rows reach in each tile row


class Lists(NamedTuple):
    """Which rows travel: index slot·L + row within what a rank needs; P·L in unused places."""

    far: jax.Array  # [R, C] for each other rank
    near: jax.Array  # [D] for this rank itself


def screen(pipeline: Any, state: Any, cameras: Camera, table: Table, step: jax.Array) -> Screening:
    """Project all rows for all views; ``cameras`` have a leading axis [V]."""
    probe = jnp.zeros((len(state.alive), 2), jnp.float32)
    shown = lax.map(lambda camera: pipeline.screen(state, state.gaussians, camera, step, probe), cameras)
    view, first, count = (part.reshape(-1) for part in (table.view, table.first, table.count))

    def needs(view: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
        reached = (shown.last[view] >= first - HALO) & (shown.first[view] < first + count + HALO)
        return reached & shown.visible[view] & (count > 0)

    route = lax.map(lambda strip: needs(*strip), (view, first, count))
    rows = -(-cameras.height // SIDE)
    costs = jax.vmap(lambda *of_view: _costs(rows, *of_view))(shown.visible, shown.first, shown.last, shown.breadth)
    return Screening(shown.attributes, route, jnp.sum(shown.visible, 0, dtype=jnp.int32), costs)


def _costs(rows: int, visible: jax.Array, first: jax.Array, last: jax.Array, breadth: jax.Array) -> jax.Array:
    """[rows] int32 tiles that footprints reach in each tile row; int32, as its sum does not depend on the order."""
    tiles = jnp.where(visible, jnp.minimum(breadth, 4096).astype(jnp.int32) // SIDE + 1, 0)
    change = jnp.zeros(rows + 1, jnp.int32).at[jnp.minimum(first // SIDE, rows)].add(tiles)
    return jnp.cumsum(change.at[jnp.minimum(last // SIDE + 1, rows)].add(-tiles))[:rows]


def own_part(words: Rows, ids: jax.Array) -> jax.Array:
    """[L] bool: which of a rank's rows, of the given ids, are in a packed set of all rows."""
    flags = jnp.unpackbits(words).astype(bool)
    return flags.at[ids].get(mode="fill", fill_value=False)


def of_all(flags: jax.Array, ids: jax.Array, rows: int) -> Rows:
    """Packed set of all ``rows`` from the flags [L] of a rank's rows."""
    return jnp.packbits(jnp.zeros(rows, bool).at[ids].set(flags, mode="drop"))


def counts(route: jax.Array) -> jax.Array:
    """[Q] int32 rows that each strip needs of this rank."""
    return jnp.sum(route, 1, dtype=jnp.int32)


def listed(route: jax.Array, far: int, near: int) -> Lists:
    """The rows of a route [Q, L], slot by slot and in the order of their ids; static lengths per other rank and own."""
    ranks, me = lax.axis_size(RANKS), lax.axis_index(RANKS)
    flat = route.reshape(ranks, -1)
    none = flat.shape[1]

    def places(flags: jax.Array, size: int) -> jax.Array:
        return jnp.nonzero(flags, size=size, fill_value=none)[0].astype(jnp.int32)

    away = flat & (jnp.arange(ranks) != me)[:, None]
    return Lists(lax.map(lambda flags: places(flags, far), away), places(flat[me], near))


def pack(screening: Screening, table: Table, ids: jax.Array, route: jax.Array, room: int, rows: int) -> jax.Array:
    """[R, C, F + 1] attributes for each other rank, C = ``room``; the last column is the key of the entry.

    Keys, slot·(rows + 1) + id as bits, say where an entry goes, so that what is received in parts can be put in order.
    """
    lists = listed(route, room, 0)
    ranks = jnp.arange(lists.far.shape[0])
    return jax.vmap(lambda places, rank: _entries(screening, table, ids, places, rank, rows))(lists.far, ranks)


def keep(screening: Screening, table: Table, ids: jax.Array, route: jax.Array, room: int, rows: int) -> jax.Array:
    """[D, F + 1] attributes that this rank has for itself, D = ``room``; as ``pack``."""
    return _entries(screening, table, ids, listed(route, 0, room).near, lax.axis_index(RANKS), rows)


def _entries(screening: Screening, table: Table, ids: jax.Array, places: jax.Array, rank: jax.Array,
             rows: int) -> jax.Array:
    length = len(ids)
    slot, row = places // length, places % length
    used = slot < table.view.shape[1]
    values = screening.attributes[table.view[rank, jnp.where(used, slot, 0)], row]
    keys = jnp.where(used, slot * (rows + 1) + ids[row], NO_KEY).astype(jnp.int32)
    return jnp.concatenate([jnp.where(used[:, None], values, 0), as_column(keys)], -1)


def as_column(keys: jax.Array) -> jax.Array:
    """[..., 1] float32 with the bits of int32 keys [...]."""
    return lax.bitcast_convert_type(keys, jnp.float32)[..., None]


def collect(far: jax.Array, near: jax.Array, table: Table, route: jax.Array, views: int) -> jax.Array:
    """[V, L, G] gradients of the attributes from what came back: [R, C, G] and [D, G], in the order of ``listed``.

    Where several strips of a view needed a row, their parts are added up in the order of the strips in the images.
    """
    length, me = route.shape[1], lax.axis_index(RANKS)
    lists = listed(route, far.shape[1], len(near))
    ranks = lists.far.shape[0]
    rank = jnp.concatenate([jnp.repeat(jnp.arange(ranks), far.shape[1]), jnp.full(len(near), me)])
    places = jnp.concatenate([lists.far.reshape(-1), lists.near])
    values = jnp.concatenate([far.reshape(-1, far.shape[2]), near])
    slot, used = places // length, places < table.view.shape[1] * length
    view = table.view[rank, jnp.where(used, slot, 0)]
    target = jnp.where(used, view * length + places % length, views * length)
    order = jnp.argsort(table.place[rank], stable=True)
    total = jnp.zeros((views * length, far.shape[2]), far.dtype)
    return total.at[target[order]].add(values[order], mode="drop").reshape(views, length, -1)


def gradient(pipeline: Any, state: Any, observed: Any, cameras: Camera, step: jax.Array,
             d_attributes: jax.Array) -> tuple[Any, jax.Array]:
    """(gradient of the sum over views, [L] sum over views of the norms of the probe's gradient).

    ``observed``: the parameters that the unit read; ``d_attributes`` [V, L, G].
    """
    probe = jnp.zeros((d_attributes.shape[1], 2), jnp.float32)

    def add(total: tuple[Any, jax.Array], view: tuple[Camera, jax.Array]) -> tuple[tuple[Any, jax.Array], None]:
        camera, d_view = view

        def attributes(gaussians: Any, probe: jax.Array) -> jax.Array:
            return pipeline.screen(state, gaussians, camera, step, probe).attributes[:, : d_view.shape[1]]

        _, back = jax.vjp(attributes, observed, probe)
        grads, d_probe = back(d_view)
        return (jax.tree.map(jnp.add, total[0], grads), total[1] + jnp.linalg.norm(d_probe, axis=-1)), None

    zero = jax.tree.map(jnp.zeros_like, observed), jnp.zeros(len(probe), jnp.float32)
    return lax.scan(add, zero, (cameras, d_attributes))[0]


def advance(pipeline: Any, state: Any, grads: Any, magnitude: jax.Array, chosen: jax.Array, seen: jax.Array,
            views: int, step: jax.Array, inputs: Any, fields: tuple[str, ...]) -> Any:
    """The state after statistics and optimizer step of the ``chosen`` rows [L] in ``fields``.

    ``grads``: sum over the ``views`` of the unit, ``magnitude`` [L] g_U(p); ``seen`` [L] int32 views that show a row.
    """
    grads = jax.tree.map(lambda field: field * (1 / views), grads)
    evidence = dataclasses.replace(nothing(state.gaussians)[1], magnitude=jnp.where(chosen, magnitude, 0),
                                   visible_count=jnp.where(chosen, seen, 0))
    if hasattr(pipeline, "with_carried"):
        grads, evidence = pipeline.with_carried(state, grads, evidence, step, views)
    after = pipeline.observe(state, evidence, step)
    local = {name: _where(chosen, getattr(after, name), getattr(state, name)) for name in pipeline.local_fields}
    state, whole = dataclasses.replace(state, **local), pipeline.rows(state)
    if not fields:
        return pipeline.with_rows(state, whole, inputs)
    rows = only(whole, fields)
    new = apart(pipeline.step_rows, inputs.count >= 0, rows, only(grads, fields), seen > 0, inputs)
    return pipeline.with_rows(state, merged(whole, _where(chosen, new, rows)), inputs)


def _where(chosen: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda after, before: jnp.where(per_row(chosen, before), after, before), new, old)
