"""Units on one device: nothing to exchange, nothing to wait for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from odin_jax import health, order
from odin_jax.engine import Started, living, open_room
from odin_jax.feed import UnitFeed, largest
from odin_jax.progress import StepNumbers
from odin_jax.rooms import PairRooms
from odin_jax.train_config import TrainConfig
from splat.gaussians import Gaussians
from splat.pipelines.protocol import Evidence, Pipeline, View
from splat.scene.types import Scene


class _Launched(NamedTuple):
    """A gradient on its way, and the scalars that the host has to see before it may be used."""

    grads: Gaussians
    evidence: Evidence
    scalars: dict[str, jax.Array]


class Alone:
    """Engine of one device: gradient, look at its scalars, optimizer step; photos of the next unit meanwhile."""

    def __init__(self, config: TrainConfig, scene: Scene, pipeline: Pipeline, state: Any, rooms: PairRooms):
        self._config, self._scene, self._pipeline, self._rooms = config, scene, pipeline, rooms
        self._gradient = jax.jit(partial(_gradient, pipeline), static_argnums=3)
        self._update = jax.jit(pipeline.update, donate_argnums=0)
        self._feed = UnitFeed(scene, config, pipeline)
        self._next: tuple[int, tuple[View, ...]] = (0, ())
        self.load(state)

    def start(self, step: int, stop: bool) -> Started:
        views = self._next[1] if self._next[0] == step else self._views(step)
        launched = self._launch(step, views)
        if step < self._config.iterations and not stop:
            self._next = step + 1, self._views(step + 1)
        return Started(self._finish(step, views, launched), stop)

    def settle(self) -> StepNumbers | None:
        return None

    def state(self) -> Any:
        return self._state

    def load(self, state: Any) -> None:
        self._state, self._gaussians = state, living(state)

    def saved(self) -> tuple[Any, dict[str, Any]]:
        return self._state, {}

    def views(self, step: int, train: Sequence[int]) -> tuple[View, ...]:
        return self._feed.train_views(step, train)

    def close(self) -> None:
        self._feed.close()

    def _views(self, step: int) -> tuple[View, ...]:
        config, train = self._config, self._scene.train

        def indices(step: int) -> list[int]:
            views = order.unit_views(config.seed, step, len(train), config.batch)
            return [train[view] for view in self._feed.by_size(views)]

        views = self._feed.views(step, list(enumerate(indices(step))))
        self._feed.prefetch(index for later in self._feed.later(step) for index in indices(later))
        return jax.device_put(views)

    def _launch(self, step: int, views: tuple[View, ...]) -> _Launched:
        size = largest(views)
        if size not in self._rooms.rooms:
            open_room(self._rooms, size, self._pipeline, self._state, self._feed.train_photos(step))
        return self._gradient(self._state, views, jnp.int32(step), self._rooms.rooms[size])

    def _finish(self, step: int, views: tuple[View, ...], launched: _Launched) -> StepNumbers:
        scalars = jax.device_get(launched.scalars)
        while scalars["overflow"]:
            self._rooms.widen(largest(views), int(scalars["pairs"]))
            launched = self._launch(step, views)
            scalars = jax.device_get(launched.scalars)
        loss = float(scalars["loss"])
        if not (math.isfinite(loss) and scalars["finite"]):
            raise health.NotFinite("gradient", launched.grads, step, loss)
        self._rooms.observe(largest(views), int(scalars["pairs"]))
        self._state = self._update(self._state, launched.grads, launched.evidence, jnp.int32(step))
        mse, pairs = float(scalars["mse"]), int(scalars["pairs"])
        return StepNumbers(step, loss, mse, self._gaussians, pairs, len(views))


def _gradient(pipeline: Pipeline, state: Any, views: tuple[View, ...], step: jax.Array, room: int) -> _Launched:
    """One program for the gradient and what the host has to know of it."""
    grads, evidence = pipeline.loss_and_grad(state, views, step, room)
    scalars = {name: getattr(evidence, name) for name in ("loss", "mse", "overflow")}
    scalars["pairs"] = jnp.max(evidence.pairs)
    scalars["finite"] = health.all_finite(grads)
    return _Launched(grads, dataclasses.replace(evidence, active=None), scalars)
