"""The training loop of one process on one device: order, photos, steps, events, checkpoints.

One step: the unit's photos and cameras → loss and gradient → (overflow? once more with a larger room) →
optimizer step and statistics → the structural events that are due. The host reads one handful of scalars per
step, while the next unit's photos are already on their way to the device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from odin_jax import checkpoint, health
from odin_jax.checkpoint import Checkpoints
from odin_jax.feed import UnitFeed, camera_of
from odin_jax.interrupt import Interrupt
from odin_jax.progress import StepNumbers
from odin_jax.record import Clock
from odin_jax.rooms import PairRooms, Size
from odin_jax.train_config import TrainConfig
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.pipelines.protocol import Evidence, Pipeline, View
from splat.scene.types import Scene

COUNTED = 12  # training views whose pairs are counted before the first room is chosen


@dataclass
class Position:
    """Where a run stands: all that a checkpoint holds."""

    state: Any
    step: int = 0  # last finished step; steps count from 1
    rooms: PairRooms = field(default_factory=PairRooms)
    clock: Clock = field(default_factory=Clock)

    def meta(self) -> dict[str, Any]:
        """The part of a checkpoint that is no array."""
        return {
            "step": self.step,
            "rooms": self.rooms.to_json(),
            "wall_s": self.clock.wall_s(),
            "cpu_s": self.clock.cpu_s(),
        }


def fresh(pipeline: Pipeline, scene: Scene, seed: int, clock: Clock) -> Position:
    """The position before the first step."""
    return Position(pipeline.init(scene.points, scene.colours, scene.extent, seed), clock=clock)


def restored(pipeline: Pipeline, scene: Scene, seed: int, source: tuple[Path, int], clock: Clock) -> Position:
    """The position of a checkpoint (folder, step). Raises UserError when it does not fit the pipeline."""
    few = min(len(scene.points), 8)
    template = pipeline.init(scene.points[:few], scene.colours[:few], scene.extent, seed)
    state, meta = checkpoint.restore(*source, template)
    clock.wall_before, clock.cpu_before = meta["wall_s"], meta["cpu_s"]
    return Position(state, meta["step"], PairRooms.from_json(meta["rooms"]), clock)


class _Launched(NamedTuple):
    """A gradient on its way, and the scalars that the host has to see before it may be used."""

    grads: Gaussians
    evidence: Evidence
    scalars: dict[str, jax.Array]


class Trainer:
    """Runs steps of one pipeline on one scene from a position."""

    def __init__(
        self,
        config: TrainConfig,
        scene: Scene,
        pipeline: Pipeline,
        position: Position,
        checkpoints: Checkpoints,
        saved_step: int | None,
    ):
        self.position = position
        self._config, self._scene, self._pipeline = config, scene, pipeline
        self._checkpoints, self._saved_step = checkpoints, saved_step
        self._gradient = jax.jit(partial(_gradient, pipeline), static_argnums=3)
        self._update = jax.jit(pipeline.update, donate_argnums=0)
        self._gaussians = self._count()

    def run(self, interrupt: Interrupt, after_step: Callable[[StepNumbers, Any], None]) -> None:
        """Train until the last step or an interrupt, calling ``after_step(numbers, state)`` after each step.

        The position is saved every ``checkpoint_every`` steps and at the end. Raises Diverged when a number
        stops being finite; the checkpoints written before stay.
        """
        at, last = self.position, self._config.iterations
        if at.step >= last:
            return
        with UnitFeed(self._scene, self._config) as feed:
            views = feed.unit(at.step + 1)
            while at.step < last and interrupt.signal is None:
                step, current = at.step + 1, views
                launched = self._launch(step, current)
                views = feed.unit(step + 1) if step < last else ()
                after_step(self._finish(step, current, launched), at.state)
                if step % self._config.checkpoint_every == 0:
                    self.save()
        if at.step != self._saved_step:
            self.save()

    def save(self) -> None:
        """Start to write a checkpoint of the position, after a look at every number of it."""
        at = self.position
        if health.first_bad(at.state):
            raise health.diverged("state", at.state, at.step, math.nan, self._saved_step)
        self._checkpoints.save(at.step, at.state, at.meta())
        self._saved_step = at.step

    def _launch(self, step: int, views: tuple[View, ...]) -> _Launched:
        room = self.position.rooms.rooms.get(_size(views)) or self._first_room(views)
        return self._gradient(self.position.state, views, jnp.int32(step), room)

    def _finish(self, step: int, views: tuple[View, ...], launched: _Launched) -> StepNumbers:
        at = self.position
        scalars = jax.device_get(launched.scalars)
        while scalars["overflow"]:
            at.rooms.widen(_size(views), int(scalars["pairs"]))
            launched = self._launch(step, views)
            scalars = jax.device_get(launched.scalars)
        loss = float(scalars["loss"])
        if not (math.isfinite(loss) and scalars["finite"]):
            raise health.diverged("gradient", launched.grads, step, loss, self._saved_step)
        at.rooms.observe(_size(views), int(scalars["pairs"]))
        at.state = self._update(at.state, launched.grads, launched.evidence, jnp.int32(step))
        self._structural(step)
        at.step = step
        return StepNumbers(
            step, loss, float(scalars["mse"]), self._gaussians, int(scalars["pairs"]), len(views)
        )

    def _structural(self, step: int) -> None:
        at = self.position
        events = self._pipeline.events(step)
        if not events:
            return
        capacity = at.state.gaussians.count
        for event in events:
            at.state = self._pipeline.apply_event(at.state, event, step)
        self._gaussians = self._count()
        if self._gaussians == 0:
            raise UserError(
                f"no Gaussian is left after {events[-1]} at step {step}: the photos and poses do not "
                "agree, or pruning is too strong; check the capture"
            )
        if at.state.gaussians.count != capacity:
            at.rooms.rebuild(self._growth())

    def _first_room(self, views: tuple[View, ...]) -> int:
        """Room for the size of these views, from the pairs of some training views of that size."""
        photos, size = self._scene.photos, _size(views)
        alike = [index for index in self._scene.train if (photos[index].width, photos[index].height) == size]
        sample = alike[::max(1, len(alike) // COUNTED)]
        counts = [self._pipeline.scope(self.position.state, camera_of(photos[index]))[1] for index in sample]
        self.position.rooms.open(size, max(int(count) for count in counts), self._growth())
        return self.position.rooms.rooms[size]

    def _growth(self) -> float:
        """How much pairs may grow until the capacity is full: footprints shrink as rows are split."""
        return math.sqrt(self.position.state.gaussians.count / max(self._gaussians, 1))

    def _count(self) -> int:
        return int(np.count_nonzero(np.asarray(self.position.state.alive)))


def _gradient(
    pipeline: Pipeline, state: Any, views: tuple[View, ...], step: jax.Array, room: int
) -> _Launched:
    """One program for the gradient and what the host has to know of it."""
    grads, evidence = pipeline.loss_and_grad(state, views, step, room)
    scalars = {name: getattr(evidence, name) for name in ("loss", "mse", "overflow")}
    scalars["pairs"] = jnp.max(evidence.pairs)
    scalars["finite"] = health.all_finite(grads)
    return _Launched(grads, dataclasses.replace(evidence, active=None), scalars)


def exported(state: Any) -> Gaussians:
    """The rows that are alive, compacted: what the PLY holds and what is measured."""
    return state.gaussians.take(np.flatnonzero(np.asarray(state.alive)))


def drawable(state: Any) -> Gaussians:
    """All rows with those that are only capacity made too faint to draw, so that the shape stays the same."""
    logits = jnp.where(state.alive, state.gaussians.opacity_logits, -30.0)
    return dataclasses.replace(state.gaussians, opacity_logits=logits)


def _size(views: tuple[View, ...]) -> Size:
    """The largest image size of a unit; its room serves all of them."""
    return max(
        ((view.camera.width, view.camera.height) for view in views), key=lambda size: size[0] * size[1]
    )
