"""Adaptive density control on rows of fixed capacity (spec §1.5).

The rows that are alive are marked by a mask and the others are room. A survivor keeps its row, a clone's
copy and a split's second child take the lowest free rows, and a split's first child takes its parent's row.
``choose`` decides on the device, ``arrange`` gives places on the host, ``grow`` writes on the device, after
the host has widened the arrays if their room is too small.

Pruning comes after growth in 3DGS. A copy has its parent's opacity, and a child its parent's opacity and
its scales / 1.6, so whether newborns survive the pruning is known from their parents. ``choose`` uses that:
it never grows what would be pruned at once, which leaves the same rows and lets a cap be exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.special import ndtri

from splat.columns import per_row
from splat.gaussians import Gaussians

ROW_MULTIPLE = 256  # capacities are multiples of this


@dataclass(frozen=True)
class DensityRules:
    """Thresholds of clone, split and prune; hashable, compiled in."""

    grad_threshold: float  # mean NDC gradient at or above which a row is cloned or split
    split_share: float  # rows larger than this share of the extent are split, others cloned
    prune_opacity: float  # rows with less opacity are pruned
    prune_share: float  # rows larger than this share of the extent are pruned once size pruning is on
    cap: int | None  # most rows alive after an event; None: no limit
    growth_limit: int | None = None  # rows from which on none are added, but none taken away; None: no limit

    @property
    def limit(self) -> int | None:
        """Rows that growth stops at, by the cap or the growth limit; None: nowhere."""
        limits = [limit for limit in (self.cap, self.growth_limit) if limit is not None]
        return min(limits, default=None)


SPLIT_SHRINK = 1.6  # a child's scales are its parent's divided by this
CHILDREN = 2  # of a split
SPLIT_NOISE = 1  # the purpose that sets the keys of this noise apart from others of the same seed


@struct.dataclass
class DensityStats:
    """Sums over views since the last densification; being plain sums, partial ones can be added up."""

    grad_accum: jax.Array  # [N] norms of the NDC position gradient, one per view in which the row was visible
    denom: jax.Array  # [N] int32 number of those views

    @property
    def mean_gradient(self) -> jax.Array:
        """[N] average norm; 0 for rows that no view saw."""
        return self.grad_accum / jnp.maximum(self.denom, 1)


@struct.dataclass
class Choice:
    """What an event does to each row. ``clone``, ``split`` and ``prune`` exclude one another."""

    clone: jax.Array  # [N] bool, a copy is added
    split: jax.Array  # [N] bool, replaced by two children
    prune: jax.Array  # [N] bool, removed
    rows: jax.Array  # [] int32 rows alive afterwards


@struct.dataclass
class Arrangement:
    """Where each row of an event comes from, at the new capacity."""

    origin: jax.Array  # [N] int32 row it is copied from; its own where nothing is born
    child: jax.Array  # [N] bool, child of a split
    newborn: jax.Array  # [N] bool, child of a split or copy of a clone
    alive: jax.Array  # [N] bool, exists afterwards
    noise: jax.Array  # [N, 3] float32 place of a child in units of its parent's axes


def empty_stats(rows: int, dtype: Any = jnp.float32) -> DensityStats:
    """Statistics of ``rows`` rows that nothing has seen yet."""
    return DensityStats(jnp.zeros(rows, dtype), jnp.zeros(rows, jnp.int32))


def bucket(rows: int, growth: float) -> int:
    """Capacity for at least ``rows`` rows: one of few sizes, each ``growth`` (> 1) times the one before."""
    size = 1024
    while size < rows:
        size = -(-int(size * growth + 1) // ROW_MULTIPLE) * ROW_MULTIPLE
    return size


def widen(gaussians: Gaussians, capacity: int) -> Gaussians:
    """The same rows with room up to ``capacity``; a row that is only room has the identity rotation."""
    wide = pad_rows(gaussians, capacity)
    return replace(wide, quats=wide.quats.at[gaussians.count :, 0].set(1))


def pad_rows(tree: Any, capacity: int) -> Any:
    """A pytree of row arrays [N, ...] lengthened to ``capacity`` with zeros (False)."""
    return jax.tree.map(lambda rows: jnp.pad(rows, [(0, capacity - rows.shape[0])] + [(0, 0)] * (rows.ndim - 1)), tree)


@partial(jax.jit, static_argnames="rules")
def choose(
    gaussians: Gaussians,
    alive: jax.Array,
    mean_gradient: jax.Array,
    extent: jax.Array,
    size_prune: jax.Array,
    rules: DensityRules,
    target: jax.Array | None = None,
) -> Choice:
    """Which rows to clone, split and prune (spec §1.5), at most ``rules.cap`` of them alive afterwards.

    ``target`` [] int32: rows from which on this event adds none, a limit beside those of ``rules``. Where the cap, the
    growth limit or the target leaves room for some of the candidates only, those with the largest ``mean_gradient`` [N]
    are taken, the lower row first among equals. Rows beyond the cap are pruned, the faintest first.
    """
    largest = jnp.max(gaussians.scales, axis=-1)
    faint = gaussians.opacities < rules.prune_opacity
    too_large = size_prune & (largest > rules.prune_share * extent)
    child_too_large = size_prune & (largest / SPLIT_SHRINK > rules.prune_share * extent)
    large = largest > rules.split_share * extent
    candidate = alive & (mean_gradient >= rules.grad_threshold) & ~faint
    clone = candidate & ~large & ~too_large
    split = candidate & large & ~child_too_large
    prune = alive & (faint | (too_large & ~split))
    if rules.cap is not None:
        prune = prune | _beyond(alive & ~prune, gaussians.opacities, rules.cap)
    if (limit := _least(rules.limit, target)) is not None:
        room = jnp.maximum(limit - jnp.sum(alive & ~prune), 0)
        grow_ = _largest((clone | split) & ~prune, mean_gradient, room)
        clone, split = clone & grow_, split & grow_
        prune = prune | (alive & too_large & ~split)
    rows = jnp.sum(alive & ~prune) + jnp.sum(clone | split)
    return Choice(clone, split, prune, rows.astype(jnp.int32))


def arrange(choice: Choice, alive: jax.Array, capacity: int, seed: int, version: int) -> Arrangement:
    """Where the rows of an event go; on the host, so that an event costs little compilation.

    ``capacity`` must hold ``choice.rows``. The noise of a split follows from (seed, version, parent's row) alone.
    """
    clone, split, prune, lives = (
        np.pad(np.asarray(mask), (0, capacity - alive.size))
        for mask in (choice.clone, choice.split, choice.prune, alive)
    )
    kept = lives & ~prune
    sources, parents = np.flatnonzero(clone | split), np.flatnonzero(split)
    targets = np.flatnonzero(~kept)[: len(sources)]
    origin = np.arange(capacity, dtype=np.int32)
    origin[targets] = sources
    child, newborn = split.copy(), split.copy()
    child[targets], newborn[targets], kept[targets] = split[sources], True, True
    noise = np.zeros((capacity, 3), np.float32)
    noise[parents], noise[targets[split[sources]]] = _split_noise(parents, seed, version)
    return Arrangement(*map(jnp.asarray, (origin, child, newborn, kept, noise)))


@jax.jit
def grow(gaussians: Gaussians, arrangement: Arrangement) -> Gaussians:
    """The rows after an event; children of a split lie at N(parent, R diag(s²) Rᵀ) with scales s / 1.6.

    A surfel has no third scale, and its children lie in its plane (spec §2.8).
    """
    rows = gaussians.take(arrangement.origin)
    quats = rows.quats / jnp.linalg.norm(rows.quats, axis=-1, keepdims=True)
    noise = arrangement.noise.astype(rows.means.dtype)
    scales = jnp.pad(rows.scales, ((0, 0), (0, noise.shape[1] - rows.log_scales.shape[1])))
    shifted = rows.means + _turned(quats, noise * scales)
    child = arrangement.child[:, None]
    shrunk = rows.log_scales - math.log(SPLIT_SHRINK)
    return replace(
        rows, means=jnp.where(child, shifted, rows.means), log_scales=jnp.where(child, shrunk, rows.log_scales)
    )


def forget(tree: Any, rows: jax.Array) -> Any:
    """A pytree of row arrays with the marked ``rows`` [N] set to zero."""
    return jax.tree.map(lambda array: jnp.where(per_row(rows, array), 0, array), tree)


def reset_opacity(gaussians: Gaussians, most: float) -> Gaussians:
    """Rows with no opacity above ``most``."""
    limit = jnp.log(jnp.asarray(most / (1 - most), gaussians.opacity_logits.dtype))
    return replace(gaussians, opacity_logits=jnp.minimum(gaussians.opacity_logits, limit))


def _split_noise(parents: np.ndarray, seed: int, version: int) -> np.ndarray:
    """[2, M, 3] standard normal numbers of the two children of the given rows."""
    last = int(parents[-1]) + 1 if len(parents) else 0
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, SPLIT_NOISE, version])))
    uniform = generator.random((last, CHILDREN, 3))[parents]
    return np.moveaxis(ndtri(uniform + 2.0**-54), 1, 0)


def _turned(quats: jax.Array, vectors: jax.Array) -> jax.Array:
    """Vectors [..., 3] rotated by unit quaternions [..., 4]: v + 2 w u×v + 2 u×(u×v) with u = (x, y, z)."""
    scalar, axis = quats[..., :1], jnp.broadcast_to(quats[..., 1:], vectors.shape)
    across = jnp.cross(axis, vectors)
    return vectors + 2 * (scalar * across + jnp.cross(axis, across))


def _least(limit: int | None, target: jax.Array | None) -> Any:
    """The smaller of two limits; None: no limit."""
    if limit is None or target is None:
        return target if limit is None else limit
    return jnp.minimum(limit, target)


def _largest(rows: jax.Array, values: jax.Array, most: jax.Array) -> jax.Array:
    """The ``most`` of the marked rows with the largest values; the lower row first among equals."""
    order = jnp.argsort(jnp.where(rows, -values, jnp.inf), stable=True)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    return rows & (rank < most)


def _beyond(rows: jax.Array, opacities: jax.Array, cap: int) -> jax.Array:
    """The marked rows that have to go so that ``cap`` remain: those with the least opacity."""
    return rows & ~_largest(rows, opacities, jnp.asarray(cap))
