"""The training loop: units by an engine, and between them structural events, checkpoints and pictures.

An engine may still be publishing the update of one unit when the next one starts. Whatever needs the whole state waits
for the engine to settle first: it is a barrier.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from odin_jax import checkpoint, health, hooks
from odin_jax.checkpoint import Checkpoints
from odin_jax.engine import Engine, growth, living
from odin_jax.interrupt import Interrupt
from odin_jax.progress import StepNumbers
from odin_jax.record import Clock
from odin_jax.rooms import PairRooms
from odin_jax.train_config import TrainConfig
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.pipelines.protocol import Pipeline
from splat.scene.types import Scene


@dataclass
class Position:
    """Where a run stands: all that a checkpoint holds."""

    state: Any
    step: int = 0  # last finished step; steps count from 1
    rooms: PairRooms = field(default_factory=PairRooms)
    parts: int | None = None  # ranks whose own sums the state's local fields hold along a leading axis; None: no axis
    pairs: dict[int, int] = field(default_factory=dict)  # tile-row pairs of each training view, as far as known
    mixed: dict[str, Any] = field(default_factory=dict)  # what ``parallel.mp`` keeps: ranks of rows, costs of tile rows
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
    """The position of a checkpoint (folder, step), which the first process reads for all.

    Raises UserError when it does not fit the pipeline.
    """
    few = min(len(scene.points), 8)
    template = pipeline.init(scene.points[:few], scene.colours[:few], scene.extent, seed)
    state, meta = checkpoint.restore(*source, template)
    clock.wall_before, clock.cpu_before = meta["wall_s"], meta["cpu_s"]
    pairs: dict[int, int] = dict(meta.get("view_pairs", []))
    return Position(state, meta["step"], PairRooms.from_json(meta["rooms"]), meta.get("parts"), pairs,
                    meta.get("mixed", {}), clock)


class Trainer:
    """Runs the units of one pipeline on one scene from a position, by an engine."""

    def __init__(self, config: TrainConfig, pipeline: Pipeline, engine: Engine, position: Position,
                 checkpoints: Checkpoints | None, saved_step: int | None):
        """``checkpoints`` None: another process writes them."""
        self.position = position
        self._config, self._pipeline, self._engine = config, pipeline, engine
        self._checkpoints, self._saved_step = checkpoints, saved_step

    def run(self, interrupt: Interrupt, after_step: Callable[[StepNumbers], None],
            picture: Callable[[int, Any], None] | None = None,
            after_events: Callable[[int, tuple[str, ...], Any], None] | None = None) -> bool:
        """Train until the last step or an interrupt; whether a process was told to stop.

        ``after_step(numbers)`` is called for each step, which may be later than the step; ``picture(step, state)``
        every ``image_every`` steps; ``after_events(step, names, state)`` after structural events. The position is saved
        every ``checkpoint_every`` steps and at the end. Raises Diverged when a number stops being finite; the
        checkpoints written before stay.
        """
        at, last, stop = self.position, self._config.iterations, False
        if at.step >= last:
            return False
        try:
            while at.step < last and not stop:
                step = at.step + 1
                numbers, stop = self._engine.start(step, interrupt.signal is not None)
                self._tell(numbers, after_step)
                at.step = step
                if stop or self._settles(step, picture is not None):
                    self._tell(self._engine.settle(), after_step)
                    self._settled(step, picture, after_events)
            if at.step != self._saved_step:
                self.save()
        except health.NotFinite as bad:
            raise health.diverged(bad.what, bad.tree, bad.step, bad.loss, self._saved_step) from bad
        finally:
            self._engine.close()
        return stop

    def save(self) -> None:
        """Start to write a checkpoint of the position, after a look at every number of it."""
        at = self.position
        state, values = self._engine.saved()
        if health.first_bad(state):
            raise health.diverged("state", state, at.step, math.nan, self._saved_step)
        if self._checkpoints is not None:
            self._checkpoints.save(at.step, state, {**at.meta(), **values})
        self._saved_step = at.step

    def _settles(self, step: int, pictures: bool) -> bool:
        """Whether anything but the next unit needs the state after ``step``."""
        drawn = pictures and self._due(self._config.image_every, step)
        saves = self._due(self._config.checkpoint_every, step) or step == self._config.iterations
        return bool(drawn or saves or self._pipeline.events(step))

    def _settled(self, step: int, picture: Callable[[int, Any], None] | None,
                 after_events: Callable[[int, tuple[str, ...], Any], None] | None) -> None:
        at, config = self.position, self._config
        events = self._structural(step)
        if events and after_events:
            after_events(step, events, self._engine.state())
        at.state = self._engine.state()
        if picture and self._due(config.image_every, step):
            picture(step, at.state)
        if self._due(config.checkpoint_every, step):
            self.save()

    def _structural(self, step: int) -> tuple[str, ...]:
        events = self._pipeline.events(step)
        if not events:
            return ()
        state = self._engine.state()
        capacity = len(state.alive)
        for event in events:
            wanted = hooks.event_views(self._pipeline, event, step, state)
            views = (self._engine.views(step, wanted),) if wanted else ()
            state = self._pipeline.apply_event(state, event, step, *views)
        if living(state) == 0:
            raise UserError(
                f"no Gaussian is left after {events[-1]} at step {step}: the photos and poses do not "
                "agree, or pruning is too strong; check the capture"
            )
        self._engine.load(state)
        if len(state.alive) != capacity:
            self.position.rooms.rebuild(growth(state))
        return events

    @staticmethod
    def _due(every: int, step: int) -> bool:
        """Whether ``step`` is one of every so many; never if ``every`` is 0."""
        return every > 0 and step % every == 0

    @staticmethod
    def _tell(numbers: StepNumbers | None, after_step: Callable[[StepNumbers], None]) -> None:
        if numbers is not None:
            after_step(numbers)


def exported(state: Any) -> Gaussians:
    """The rows that are alive, compacted: what the PLY holds and what is measured."""
    return _standard(state).take(jnp.asarray(np.flatnonzero(np.asarray(state.alive))))


def drawable(state: Any) -> Gaussians:
    """All rows with those that are only capacity made too faint to draw, so that the shape stays the same."""
    rows = _standard(state)
    return dataclasses.replace(rows, opacity_logits=jnp.where(state.alive, rows.opacity_logits, -30.0))


def _standard(state: Any) -> Gaussians:
    """The rows as PLY files hold them, where they are trained in another form."""
    return getattr(state, "exported", state.gaussians)
