"""The compiled functions of mixed parallelism; one per static argument, compiled when first called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from odin_jax import exchange, stages
from odin_jax.executor import Programs, scalar
from odin_jax.mixed import owners, renderers
from odin_jax.mixed.cut import Table
from odin_jax.mixed.layout import Layout, row_fields
from odin_jax.parallel.mesh import OWN, RANKS, SAME, Ranks, here
from odin_jax.scope import write_scope
from splat.cameras import Camera
from splat.pipelines.unit import nothing
from splat.strips import Strip


class MixedUnit(NamedTuple):
    """A task unit whose pixels are divided over the ranks."""

    step: int  # 1-based
    cameras: Camera  # of its V views, stacked [V]; the same on all ranks
    table: Table  # who renders what; the same on all ranks
    strips: tuple[Strip, ...]  # the rank's P strips; arrays have a part per rank
    size: tuple[int, int]  # width and height of a strip with its halo, pixels

    @property
    def views(self) -> int:
        """How many views the unit has."""
        return self.cameras.view.shape[0]

    @property
    def slots(self) -> int:
        """How many strips each rank has, some of them empty."""
        return len(self.strips)


class MixedPrograms(Programs):
    """Functions of a pipeline whose rows are divided over the ranks."""

    def __init__(self, ranks: Ranks, pipeline: Any, kind: str, state: Any):
        """``state``: of one device, or any other whose arrays have the same axes."""
        super().__init__(ranks, pipeline, kind, row_fields(state))
        self.divide(Layout(np.zeros((ranks.count, 0), np.int32), 0))

    def divide(self, layout: Layout) -> None:
        """Have the rows laid out so from now on."""
        self.layout = layout
        self.ids = self.ranks.own([layout.ids[rank] for rank in self.ranks.local])

    def size(self, state: Any) -> tuple[int, int]:
        return self.layout.rows, int(here(self.program("alive", _living, (OWN,), SAME)(state.alive)))

    def by_view(self, views: np.ndarray, of_view: Callable[[int], np.ndarray]) -> Any:
        return self.ranks.same(np.stack([of_view(int(view)) for view in views.ravel()]))

    def words(self, state: Any, unit: Any, expected: Any, step: int) -> tuple[Any, Any]:
        if unit is None:
            nothing = self.each(np.zeros(-(-self.layout.rows // 8), np.uint8))
            return nothing, nothing
        rows = self.layout.rows

        def run(state, ids, cameras, expected, step):
            drift = self.pipeline.drift(state, step)
            read = lax.map(lambda camera: self.pipeline.reach(state, camera, drift), cameras)
            known = None if expected is None else jax.vmap(lambda words: owners.own_part(words, ids))(expected)
            return tuple(owners.of_all(jnp.any(flags, 0), ids, rows) for flags in (read, write_scope(read, known)))

        ins = (self.state_kinds, OWN, SAME, SAME, SAME)
        return self.program(("scope", rows), run, ins, OWN)(state, self.ids, unit.cameras, expected, scalar(step))

    def tell(self, views: bool):
        def run(activity, read, write, host):
            word = stages.tell(views, activity, read, write, host)
            return word if word.views is None else word._replace(views=reduce(or_, word.views))

        return self.program(("tell", views), run, (OWN, OWN, OWN, OWN), SAME)

    def screen(self):
        """(state, cameras, table, step) → ``owners.Screening``."""
        run = partial(owners.screen, self.pipeline)
        return self.program("screen", run, (self.state_kinds, SAME, SAME, SAME), OWN)

    def kept_back(self):
        """(state, route, step) → [L] rows that a unit may update, by what was sent of them and what is carried."""
        def run(state, route, step):
            return jnp.any(route, 0) | self._carried(state, step)

        return self.program("kept_back", run, (self.state_kinds, OWN, SAME), OWN)

    def narrowed(self):
        """(route, rows [L]) → the route of these rows alone."""
        return self.program("narrowed", lambda route, rows: route & rows, (OWN, OWN), OWN)

    def inverse(self):
        """rows [L] → the others."""
        return self.program("inverse", jnp.logical_not, (OWN,), OWN)

    def members(self):
        """(words, ids) → [L] the rank's rows in a packed set."""
        return self.program("members", owners.own_part, (SAME, OWN), OWN)

    def counts(self):
        """(route, costs) → [R, Q] rows of each rank for each strip, [V, T] costs of all rows."""
        def run(route, costs):
            return exchange.every(owners.counts(route)), lax.psum(costs, RANKS)

        return self.program("counts", run, (OWN, OWN), SAME)

    def returns(self):
        """(route, ids, sets) → ([K, R, Q] rows of each rank in each of K packed sets, by strip; K routes)."""
        def run(route, ids, sets):
            routes = tuple(route & owners.own_part(words, ids) for words in sets)
            return exchange.every(jnp.stack([owners.counts(part) for part in routes])).swapaxes(0, 1), routes

        return self.program("returns", run, (OWN, OWN, SAME), (SAME, OWN))

    def pack(self, room: int):
        """(screening, table, ids, route) → attributes for other ranks."""
        rows = self.layout.rows

        def run(screening, table, ids, route):
            return owners.pack(screening, table, ids, route, room, rows)

        return self.program(("pack", room, rows), run, (OWN, SAME, OWN, OWN), OWN)

    def keep(self, room: int):
        """(screening, table, ids, route) → attributes for this rank itself."""
        rows = self.layout.rows

        def run(screening, table, ids, route):
            return owners.keep(screening, table, ids, route, room, rows)

        return self.program(("keep", room, rows), run, (OWN, SAME, OWN, OWN), OWN)

    def swap(self, length: int):
        """([R, C, …] for every rank, first row) → a piece of what every rank has for this one, [R, length, …]."""
        def run(far, first):
            return lax.all_to_all(lax.dynamic_slice_in_dim(far, first, length, 1), RANKS, 0, 0)

        return self.program(("swap", length), run, (OWN, SAME), OWN)

    def empty(self, room: int, width: int, keyed: bool):
        """() → [R, room, width] in which no row came yet; ``keyed``: the last column holds keys."""
        ranks = self.ranks.count

        def run():
            if not keyed:
                return jnp.zeros((ranks, room, width), jnp.float32)
            column = owners.as_column(jnp.full((ranks, room), owners.NO_KEY, jnp.int32))
            return jnp.concatenate([jnp.zeros((ranks, room, width - 1), jnp.float32), column], -1)

        return self.program(("empty", room, width, keyed), run, (), OWN)

    def put(self):
        """(received, piece, first row) → received with the piece; uses up the first."""
        def run(received, piece, first):
            return lax.dynamic_update_slice_in_dim(received, piece, first, 1)

        return self.program("put", run, (OWN, OWN, SAME), OWN, (0,))

    def ordered(self, slots: int, room: int):
        """(attributes from other ranks, own) → ``renderers.Entries``."""
        rows = self.layout.rows

        def run(far, near):
            return renderers.ordered(far, near, slots, rows, room)

        return self.program(("ordered", slots, room, rows), run, (OWN, OWN), OWN)

    def render(self, room: int):
        """(entries, slot, strip, step) → ``renderers.Rendered``."""
        rows = self.layout.rows

        def run(entries, slot, strip, step):
            return renderers.render(self.pipeline, entries, slot, strip, step, room, rows)

        return self.program(("render", room, rows), run, (OWN, SAME, OWN, SAME), OWN)

    def activity(self):
        """(state, strips, screening, table, ids, step) → ``stages.Activity``."""
        rows = self.layout.rows

        def run(state, strips, screening, table, ids, step):
            visible = owners.of_all(screening.seen > 0, ids, rows)
            carried = None
            if hasattr(self.pipeline, "with_carried"):
                carried = owners.of_all(self._carried(state, step), ids, rows)
            view = table.view[lax.axis_index(RANKS)]
            return renderers.activity(strips, view, len(screening.attributes), visible, carried)

        ins = (self.state_kinds, OWN, OWN, SAME, OWN, SAME)
        return self.program(("activity", rows), run, ins, OWN)

    def give_back(self, lengths: tuple[int, int]):
        """(gradients of strips, entries, words) → those of the set for other ranks and for this one."""
        def run(strips, entries, words):
            return renderers.give_back(strips, entries, words, lengths)

        return self.program(("give_back", lengths), run, (OWN, OWN, SAME), OWN)

    def collect(self, views: int):
        """(from other ranks, own, table, route) → [V, L, G] gradients of the attributes."""
        def run(far, near, table, route):
            return owners.collect(far, near, table, route, views)

        return self.program(("collect", views), run, (OWN, OWN, SAME, OWN), OWN)

    def advance(self, fields: tuple[str, ...], views: int):
        """(state, observed, d_attributes, chosen, seen, cameras, step, inputs) → state."""
        def run(state, observed, d_attributes, chosen, seen, cameras, step, inputs):
            grads, magnitude = owners.gradient(self.pipeline, state, observed, cameras, step, d_attributes)
            return owners.advance(self.pipeline, state, grads, magnitude, chosen, seen, views, step, inputs, fields)

        ins = (self.state_kinds, self.state_kinds.gaussians, OWN, OWN, OWN, SAME, SAME, SAME)
        return self.program(("advance", fields, views), run, ins, self.state_kinds)

    def settle_rows(self, fields: tuple[str, ...], views: int, last: bool):
        """(state, chosen, seen, step, inputs) → state after a step without gradient.

        Unless it is the ``last`` one, what is the same for all rows stays as before the step.
        """
        def run(state, chosen, seen, step, inputs):
            grads = jax.tree.map(jnp.zeros_like, state.gaussians)
            magnitude = jnp.zeros(len(chosen), jnp.float32)
            after = owners.advance(self.pipeline, state, grads, magnitude, chosen, seen, views, step, inputs, fields)
            if last:
                return after
            return jax.tree.map(lambda kind, new, old: new if kind == OWN else old, self.state_kinds, after, state)

        ins = (self.state_kinds, OWN, OWN, SAME, SAME)
        return self.program(("settle_rows", fields, views, last), run, ins, self.state_kinds)

    def _carried(self, state: Any, step: jax.Array) -> jax.Array:
        """[L] rows that earlier units left a gradient in which ``step`` takes."""
        if not hasattr(self.pipeline, "with_carried"):
            return jnp.zeros(len(state.alive), bool)
        return self.pipeline.with_carried(state, *nothing(state.gaussians), step, 1)[1].carried


def _living(alive: jax.Array) -> jax.Array:
    return lax.psum(jnp.sum(alive, dtype=jnp.int32), RANKS)
