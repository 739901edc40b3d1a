"""What one unit is made of on every rank, as pure functions: compute, scope, and what the ranks tell each other.

Each function here sees one rank's arrays and may use collectives; the executors compile them, one by one (lanes) or
several to a program (fused). Sets of rows travel and are kept as packed bits, ``uint8 [N/8]``.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from odin_jax import exchange, health
from odin_jax.scope import reach_of_views, write_scope
from sched.hazards import Rows, count, low_impact, raw, war, waw
from splat.cameras import Camera
from splat.pipelines.protocol import View

NUMBERS = ("loss", "mse", "magnitude", "finite")  # what every rank tells of a unit, in this order


@struct.dataclass
class Activity:
    """What one rank knows of a unit after backward (paper §5, post-backward hook)."""

    active: jax.Array  # [S, N/8] uint8, packed rows with a gradient, of each of the rank's S views
    visible: jax.Array  # [N/8] uint8, packed rows that were visible in a view of the rank
    magnitude: jax.Array  # [N] float32, the rank's part of g_U(p)
    numbers: jax.Array  # [4] float32, see NUMBERS: means over the rank's views, sum over rows, 1 if all finite
    pairs: jax.Array  # [S] int32, tile-row pairs of each of the rank's views
    overflow: jax.Array  # [] bool, the room for pairs was too small: nothing here may be used
    carried: Rows | None  # [N/8] uint8, packed rows to update by gradients of earlier units; None: there are never any


class Produced(NamedTuple):
    """A unit that no longer reads state: what is left to publish. Every array has a part per rank."""

    grads: Any  # parameter gradients, the rank's share of the unit's mean [N, ...]
    local: dict[str, Any]  # the state's local fields with the unit's statistics added
    activity: Activity


class Word(NamedTuple):
    """What all ranks know of a finished unit A and of the scope of the next unit B."""

    active: Rows  # [N/8] uint8, rows to update: C_A, those with a gradient on some rank, and ``carried``
    visible: Rows  # [N/8] uint8, rows visible in some view of A
    read: Rows  # [N/8] uint8, R⁺(B); nothing where no unit follows
    write: Rows  # [N/8] uint8, W⁺(B)
    counts: jax.Array  # [5] int32: C_A, R⁺(B), W⁺(B) ∩ C_A, RAW, WAR
    numbers: jax.Array  # [R, 4] NUMBERS of every rank
    pairs: jax.Array  # [R, S] int32, tile-row pairs of each view
    host: jax.Array  # [R, 2] float32 of each rank: seconds it computed, 1 if it was told to stop
    views: jax.Array | None  # [R, S, N/8] uint8, rows with a gradient of each view; None where nobody asks
    carried: Rows | None  # [N/8] uint8, rows outside C_A in which earlier units left a gradient; None: never any

    @property
    def delayed(self) -> Rows:
        """[N/8] rows of A's update that B only reads, which throughput-first may read late."""
        return raw(self.active, self.read, self.write)


def bins(pipeline: Any, room: int, state: Any, views: tuple[View, ...]) -> Any:
    """What a rank's views need of geometry alone, so that it can be made before colours are there (design §7).

    None if the pipeline has no ``bins``: its ``loss_and_grad`` does all by itself.
    """
    hook = getattr(pipeline, "bins", None)
    return hook(state, views, room) if callable(hook) else None


def compute(pipeline: Any, ranks: int, room: int, state: Any, views: tuple[View, ...], step: jax.Array,
            binned: Any) -> Produced:
    """Forward and backward of a rank's views at 1-based ``step``; ``room`` is the static capacity for pairs.

    ``binned``: from ``bins`` of the same geometry, views and room.
    """
    ready = {} if binned is None else {"bins": binned}
    grads, evidence = pipeline.loss_and_grad(state, views, step, room, **ready)
    after = pipeline.observe(state, evidence, step)
    numbers = jnp.stack([evidence.loss, evidence.mse, jnp.sum(evidence.magnitude),
                         health.all_finite(grads).astype(jnp.float32)])
    activity = Activity(
        jnp.packbits(evidence.active, axis=-1),
        jnp.packbits(evidence.visible_count > 0),
        evidence.magnitude,
        numbers.astype(jnp.float32),
        evidence.pairs,
        evidence.overflow,
        jnp.packbits(evidence.carried) if hasattr(evidence, "carried") else None,
    )
    local = {name: getattr(after, name) for name in pipeline.local_fields}
    return Produced(jax.tree.map(lambda field: field * (1 / ranks), grads), local, activity)


def scope(pipeline: Any, state: Any, cameras: tuple[Camera, ...], expected: Rows | None,
          step: jax.Array) -> tuple[Rows, Rows]:
    """(R⁺, W⁺) [N/8] of a rank's views while the optimizer step ``step`` is pending (design §6).

    ``expected`` [S, N/8]: rows that each view will update, by evidence; all bits set where there is none. None: W⁺ is
    R⁺ for all views.
    """
    read = jnp.packbits(reach_of_views(pipeline, state, cameras, pipeline.drift(state, step)), axis=-1)
    return _any(read), _any(write_scope(read, expected))


def tell(views: bool, activity: Activity, read: Rows, write: Rows, host: jax.Array) -> Word:
    """What the ranks learn of each other once a unit has finished; the only exchange that every window waits for.

    ``views``: also the rows of every single view; ``host`` [2] float32: what this rank's host knows (``Word.host``).
    Carried rows that B reads count as rows that it writes: A has no evidence of their update, so none may be read late.
    """
    own = [_any(activity.active), activity.visible, read, write]
    words = exchange.union(jnp.stack(own if activity.carried is None else [*own, activity.carried]))
    active, visible, read, write = words[:4]
    carried = None if activity.carried is None else words[4] & ~active
    if carried is not None:
        active, write = active | carried, write | (read & carried)
    sets = (active, read, waw(active, write), raw(active, read, write),
            war(visible, active, write))
    counts = jnp.stack([count(rows) for rows in sets])
    own = jnp.concatenate([activity.numbers, host, activity.pairs.astype(jnp.float32)])
    numbers, host, pairs = jnp.split(exchange.every(own), [len(NUMBERS), len(NUMBERS) + 2], axis=1)
    return Word(active, visible, read, write, counts, numbers, pairs.astype(jnp.int32), host,
                exchange.every(activity.active) if views else None, carried)


def gate(activity: Activity, delayed: Rows, skipped: Rows, mean: jax.Array, tau: float, room: int,
         kind: str) -> jax.Array:
    """[2] int32: delayed rows that fail the gradient gate, and those that skipped an update before (paper §4.3).

    ``mean`` is that of ‖g_A‖ over C_A. Only the magnitudes of the at most ``room`` delayed rows travel.
    """
    rows = row_list(delayed, room)
    magnitude = exchange.total(activity.magnitude.at[rows].get(mode="fill", fill_value=0)[:, None], kind)[:, 0]
    passes = low_impact(magnitude, mean, tau)
    failing = jnp.sum((rows < 8 * delayed.size) & ~passes, dtype=jnp.int32)
    return jnp.stack([failing, count(delayed & skipped).astype(jnp.int32)])


def row_list(rows: Rows, room: int) -> jax.Array:
    """[room] int32 indices of a packed set in ascending order, padded with N; ``room`` must not be smaller than it."""
    flags = jnp.unpackbits(rows).astype(bool)
    return jnp.nonzero(flags, size=room, fill_value=flags.size)[0].astype(jnp.int32)


def _any(words: Rows) -> Rows:
    """Union over the first axis of packed sets [S, N/8]."""
    return reduce(or_, words)
