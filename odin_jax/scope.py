"""Conservative scopes of a task unit (paper §2.1, §4.3; design §6).

A unit U renders the views it holds, so before it observes anything the rows it can depend on are

    R⁺(U) = ∪ over its views of {p : the view can touch p in every state that U may come to read}.

While an earlier unit A is pending that state is not known yet, but it lies in a box: A is one optimizer step, which
moves each parameter by no more than a bound known from the published moments alone. A pipeline declares both halves,

* ``drift(state, step)``: that bound at the pending 1-based ``step``, a ``Gaussians`` with the colour fields None;
* ``reach(state, camera, drift)``: [N] bool, the rows that a render of ``camera`` can touch anywhere in the box,

and R⁺ is the union of ``reach``. So it may be computed on the published rows at any time before A's publication, and
still holds after it. A gradient is zero outside the rows a view touches, so U updates a part of what it reads:
W⁺(U) ⊆ R⁺(U). The rows of U's realized activity C_U lie in R⁺(U), which a run can check.

No scope, or one so broad that waiting for its rows saves nothing, is answered by the synchronised phase (paper §4.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sched.hazards import Rows, count
from splat.cameras import Camera
from splat.columns import per_row

HOOKS = ("drift", "reach")  # what a pipeline declares its scope by


def unit_scope(pipeline: Any, state: Any, cameras: Sequence[Camera], step: jax.Array,
               written: jax.Array | None = None) -> jax.Array | None:
    """R⁺ [N] bool of a unit with ``cameras``, on the published ``state``, while ``step`` (1-based) is pending.

    ``written`` [N] bool: the only rows that the pending step may still change; the others are tested exactly, but for
    a pixel. None: any row may change. Under dense Adam every row moves by its moments, also without gradient, so
    there ``written`` may leave out rows only if that part of the step is already in ``state``.
    Pure, jittable; under ``shard_map`` each rank gives its own views, and the union over ranks is the unit's.
    None if the pipeline declares no ``reach`` and ``drift``: no scope, hence the synchronised phase.
    """
    if not cameras or not all(callable(getattr(pipeline, hook, None)) for hook in HOOKS):
        return None
    drift = pipeline.drift(state, step)
    if written is not None:
        drift = jax.tree.map(lambda bound: jnp.where(per_row(written, bound), bound, jnp.zeros_like(bound)), drift)
    return jnp.any(reach_of_views(pipeline, state, cameras, drift), axis=0)


def reach_of_views(pipeline: Any, state: Any, cameras: Sequence[Camera], drift: Any) -> jax.Array:
    """[S, N] bool, ``pipeline.reach`` of each of S ≥ 1 cameras; views of one size run in one loop."""
    def reach(camera: Camera) -> jax.Array:
        return pipeline.reach(state, camera, drift)

    sizes: dict[tuple[int, int], list[int]] = {}
    for place, camera in enumerate(cameras):
        sizes.setdefault((camera.width, camera.height), []).append(place)
    of_view: dict[int, jax.Array] = {}
    for places in sizes.values():
        alike = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(cameras[place] for place in places))
        of_view.update(zip(places, jax.lax.map(reach, alike), strict=True))
    return jnp.stack([of_view[place] for place in range(len(cameras))])


def write_scope(read: Rows, expected: Rows | None = None) -> Rows:
    """W⁺ ⊆ R⁺, bool [N] or packed, before a unit has run.

    With ``expected`` None it is R⁺ itself, the only choice that is certain. ``expected``, of the same kind, is
    evidence: the rows that the unit's views really updated last time under the same structural version. That may miss
    rows, so only throughput-first uses it, and counts what it missed (:func:`mispredicted`).
    """
    return read if expected is None else read & expected


def mispredicted(active: Rows, write: Rows) -> Any:
    """Number of rows of the realized activity ``active`` that the write scope had left out."""
    return count(active & ~write)


def usable(read: int | None, alive: int, limit: float) -> str | None:
    """Why a scope cannot serve for waiting row by row, or None if it can.

    ``read`` = |R⁺(B)| or None without a scope, ``alive`` rows exist, and ``limit`` in (0, 1] is the largest share of
    them a scope may have. Plain Python on counts that all hosts share, so that all decide alike. An empty scope is
    usable: nothing it reads is pending.
    """
    if read is None:
        return "missing scope"
    return "scope too broad" if read > limit * alive else None
