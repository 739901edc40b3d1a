"""The state that the splatting pipelines share: rows, moments, statistics; how it starts and how events change it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.spatial import KDTree

from splat import density, optim
from splat.density import DensityStats
from splat.errors import UserError
from splat.gaussians import Gaussians

SOON = 4  # a limit within so many times the rows gets its room at once


@struct.dataclass
class SplatState:
    """All that training changes, and what it needs to be continued exactly; a sibling adds fields in a subclass."""

    gaussians: Gaussians  # rows, capacity included
    alive: jax.Array  # [N] bool, rows that exist
    optimizer: optim.AdamState  # moments as rows
    stats: DensityStats  # since the last densification
    structural_version: jax.Array  # [] int32, structural events so far
    extent: jax.Array  # [] float32 scene extent, world units (spec §0)
    seed: jax.Array  # [] uint32, all random numbers follow from it


State = TypeVar("State", bound=SplatState)


def first_points(points: Any, colours: Any, cap: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points [P, 3] float32 and colours [P, 3] to start from: all, or a random subset of ``cap`` in their order.

    Raises UserError without points.
    """
    points, colours = np.asarray(points, np.float32), np.asarray(colours)
    if len(points) == 0:
        raise UserError("the scene has no points to start from; run the reconstruction again or give random ones")
    if cap is not None and len(points) > cap:
        rows = np.sort(np.random.default_rng(seed).permutation(len(points))[:cap])
        points, colours = points[rows], colours[rows]
    return points, colours


def start_log_scales(points: np.ndarray, extent: float) -> np.ndarray:
    """[P, 3] ½ log of the mean squared distance to the 3 nearest neighbours, at least 1e-7 (spec §0.1).

    With fewer than 4 points the mean is over those there are; a single point gets a hundredth of the extent.
    """
    if len(points) == 1:
        squared = np.full(1, (0.01 * extent) ** 2)
    else:
        distances = KDTree(points).query(points, k=min(4, len(points)))[0][:, 1:]
        squared = np.mean(np.square(distances), axis=1)
    logs = 0.5 * np.log(np.maximum(squared, 1e-7))
    return np.repeat(logs[:, None], 3, axis=1).astype(np.float32)


def start(gaussians: Gaussians, capacity: int, optimizer: Any, extent: float, seed: int) -> SplatState:
    """The state before the first step: the given rows, all alive, with room up to ``capacity``."""
    rows = gaussians.count
    gaussians = density.widen(gaussians, capacity)
    return SplatState(
        gaussians,
        jnp.arange(capacity) < rows,
        optimizer.init(gaussians),
        density.empty_stats(capacity),
        jnp.zeros((), jnp.int32),
        jnp.float32(extent),
        jnp.uint32(seed),
    )


def capacity_for(rows: int, limit: int | None, growth: float) -> int:
    """Room for ``rows``: all that ``limit`` allows if that is not far off, so that the step compiles once.

    Otherwise one of few sizes, each ``growth`` times the one before.
    """
    capacity = density.bucket(rows, growth)
    if limit is None:
        return capacity
    most = -(-max(limit, rows) // density.ROW_MULTIPLE) * density.ROW_MULTIPLE
    return most if most <= SOON * rows else min(capacity, most)


def after_choice(state: State, choice: density.Choice, limit: int | None, growth: float) -> State:
    """The state after the clones, splits and prunings of ``choice``, with statistics begun anew.

    Its capacity is that of ``state`` if that is enough, else ``capacity_for`` the rows there are then.
    """
    rows = int(choice.rows)
    capacity = capacity_for(rows, limit, growth) if rows > state.gaussians.count else state.gaussians.count
    arrangement = density.arrange(choice, state.alive, capacity, int(state.seed), int(state.structural_version))
    return grown(widened(state, capacity), arrangement)


@partial(jax.jit, static_argnames="capacity")
def widened(state: State, capacity: int) -> State:
    """The state with room for ``capacity`` rows."""
    wide = density.pad_rows((state.alive, state.optimizer.mu, state.optimizer.nu, state.stats), capacity)
    alive, mu, nu, stats = wide
    return replace(
        state,
        gaussians=density.widen(state.gaussians, capacity),
        alive=alive,
        optimizer=optim.AdamState(state.optimizer.count, mu, nu),
        stats=stats,
    )


@jax.jit
def grown(state: State, arrangement: density.Arrangement) -> State:
    """The rows of an arrangement; those that are new have no moments, and no row has statistics."""
    strange = arrangement.newborn | ~arrangement.alive
    mu, nu = density.forget((state.optimizer.mu, state.optimizer.nu), strange)
    return replace(
        state,
        gaussians=density.grow(state.gaussians, arrangement),
        alive=arrangement.alive,
        stats=jax.tree.map(jnp.zeros_like, state.stats),
        optimizer=optim.AdamState(state.optimizer.count, mu, nu),
    )


@partial(jax.jit, static_argnames="most")
def opacities_reset(state: State, most: float) -> State:
    """No opacity above ``most``; the opacities' moments are zero."""
    mu, nu = (
        replace(moment, opacity_logits=jnp.zeros_like(moment.opacity_logits))  # type: ignore[attr-defined]
        for moment in (state.optimizer.mu, state.optimizer.nu)
    )
    return replace(
        state,
        gaussians=density.reset_opacity(state.gaussians, most),
        optimizer=optim.AdamState(state.optimizer.count, mu, nu),
    )
