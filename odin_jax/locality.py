"""Which share of the rows a view may touch, updates, and updates by much (paper §2.2, Fig. 3).

The same three signals that the schedule and the admission use, measured on a trained state one view at a time:
geometry, the rows that a render of the view lists; computation, those that get a gradient; importance, those of them
whose gradient is above τ times the mean, as the gradient gate of throughput-first has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

from odin_jax import hooks, pipelines, placement, train_config
from odin_jax.checkpoint import steps_in
from odin_jax.engine import living, open_room
from odin_jax.feed import UnitFeed, largest
from odin_jax.record import Clock
from odin_jax.runs import RunFolder, read_json
from odin_jax.session import scene_of
from odin_jax.trainer import restored
from sched.hazards import low_impact
from splat.errors import UserError


@dataclass(frozen=True)
class ViewShares:
    """Shares of the living rows, 0 to 1, for each of V measured training views."""

    names: tuple[str, ...]  # of the photos
    geometry: np.ndarray  # [V] rows that a render lists
    computation: np.ndarray  # [V] rows with a gradient
    importance: np.ndarray  # [V] rows whose gradient is above τ times the mean over rows with one
    tau: float
    step: int  # of the checkpoint that was measured


def view_shares(path: Path, views: int) -> ViewShares:
    """Measure up to ``views`` training views, evenly spaced by name, on the newest checkpoint of a run.

    Raises UserError when the run has no configuration or no checkpoint, or its capture cannot be read.
    """
    run = RunFolder(path)
    if not run.config.exists() or not steps_in(run.checkpoints):
        raise UserError(f"{path} has no checkpoint to measure views on; give a folder written by `odin train --out`")
    config = train_config.from_json(read_json(run.config), run.config)
    scene = scene_of(config)
    pipeline = hooks.surveyed(pipelines.build(config), scene, run.survey, run.survey, leads=True)
    at = restored(pipeline, scene, config.seed, (run.checkpoints, steps_in(run.checkpoints)[-1]), Clock())
    state, alive = placement.summed(pipeline, at.state, at.parts), living(at.state)
    gradient = jax.jit(pipeline.loss_and_grad, static_argnums=3)
    important = jax.jit(partial(_important, config.tau))
    places = np.unique(np.linspace(0, len(scene.train) - 1, views).round().astype(int))
    chosen = [scene.train[place] for place in places]
    feed, shares = UnitFeed(scene, config, pipeline), []
    for index in track(chosen, description="views"):
        (view,) = jax.device_put(feed.views(at.step, [(0, index)]))
        size = largest([view])
        if size not in at.rooms.rooms:
            open_room(at.rooms, size, pipeline, state, feed.train_photos(at.step))
        touched, pairs = pipeline.scope(state, view.camera)
        if int(pairs) > at.rooms.rooms[size]:
            at.rooms.widen(size, int(pairs))
        _, evidence = gradient(state, (view,), jnp.int32(at.step), at.rooms.rooms[size])
        counts = (touched, evidence.active[0], important(evidence.active[0], evidence.magnitude))
        shares.append([int(jnp.sum(rows)) / alive for rows in counts])
    feed.close()
    geometry, computation, importance = np.array(shares).T
    names = tuple(scene.photos[index].name for index in chosen)
    return ViewShares(names, geometry, computation, importance, config.tau, at.step)


def _important(tau: float, active: jax.Array, magnitude: jax.Array) -> jax.Array:
    mean = jnp.sum(jnp.where(active, magnitude, 0)) / jnp.maximum(jnp.sum(active), 1)
    return active & ~low_impact(magnitude, mean, tau)
