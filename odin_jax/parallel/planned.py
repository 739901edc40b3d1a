"""What the engines of many ranks share: units by a plan, windows between them, the state gathered for events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from odin_jax import health
from odin_jax.admission import Admission
from odin_jax.engine import Started, living, open_room
from odin_jax.executor import Executor, Programs
from odin_jax.feed import UnitFeed
from odin_jax.parallel.mesh import Ranks, mine
from odin_jax.progress import StepNumbers
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position
from odin_jax.window import Assigned, Runtime, Window
from sched.plan import Plan
from splat.pipelines.protocol import View
from splat.scene.types import Scene


class Planned:
    """Engine of all ranks: every process runs it with the same arguments. What is divided, and how, is a subclass's."""

    def __init__(self, config: TrainConfig, scene: Scene, pipeline: Any, plan: Plan, ranks: Ranks, position: Position,
                 on_window: Callable[[Window], None] | None = None):
        """Go on from ``position``; ``on_window`` is told of each window. A subclass ends with ``_ready``."""
        self._config, self._scene, self._pipeline, self._plan = config, scene, pipeline, plan
        self._ranks, self._rooms, self._on_window = ranks, position.rooms, on_window
        self._step = position.step
        self._feed = UnitFeed(scene, config, pipeline)
        self._stop = False

    def _ready(self, programs: Programs, executor: Executor, placed: Any) -> None:
        """Train on from the ``placed`` state with these programs."""
        config = self._config
        admission = Admission(admission_path(config), config.tau)
        self._executor = executor
        self._runtime = Runtime(programs, executor, admission, placed, self._step, config.path == "sync-dense")
        self._settled = self._gathered()
        self._gaussians = living(self._settled)
        self._open_rooms(self._step + 1)

    def start(self, step: int, stop: bool) -> Started:
        self._step = step
        unit = self._assigned(step, self._feed.by_size(self._plan.unit(step - 1)))
        planned = self._plan.windows[(step - 2) % len(self._plan.windows)]
        self._runtime.stopping = stop
        window = self._runtime.unit(unit, planned.reason if planned.blocking else None)
        train = self._scene.train
        self._feed.prefetch(train[view] for later in self._feed.later(step) for view in self._plan.unit(later - 1))
        return Started(self._numbers(window), self._stop)

    def settle(self) -> StepNumbers | None:
        numbers = self._numbers(self._runtime.drain())
        self._settled = self._gathered()
        return numbers

    def state(self) -> Any:
        return self._settled

    def load(self, state: Any) -> None:
        self._settled, self._gaussians = state, living(state)
        self._open_rooms(self._step + 1)
        self._runtime.restructure(self._placed(state))
        self._runtime.admission.forget()

    def views(self, step: int, train: Sequence[int]) -> tuple[View, ...]:
        return self._feed.train_views(step, train)

    def close(self) -> None:
        self._executor.close()
        self._feed.close()

    def _assigned(self, step: int, views: list[int]) -> Assigned:
        """Unit ``step`` of these training views, and which rank has what of it."""
        raise NotImplementedError

    def _placed(self, state: Any) -> Any:
        """A state of one device on all ranks."""
        raise NotImplementedError

    def _gathered(self) -> Any:
        """The runtime's state on one device, or on the host, of every process."""
        raise NotImplementedError

    def _observe(self, window: Window) -> None:
        """Learn from a finished unit."""
        raise NotImplementedError

    def _open_rooms(self, step: int) -> None:
        """Rooms for every size of photo from unit ``step`` on, now that the state is at hand: later updates use it up.
        """
        photos = self._feed.train_photos(step)
        for size in sorted({(photo.width, photo.height) for photo in photos} - set(self._rooms.rooms)):
            open_room(self._rooms, size, self._pipeline, self._settled, photos)

    def _numbers(self, window: Window | None) -> StepNumbers | None:
        if window is None:
            return None
        if not window.finite:
            grads = mine(self._runtime.failed.grads)[0] if self._runtime.failed else ()
            raise health.NotFinite("gradient", grads, window.step, window.loss)
        if self._on_window:
            self._on_window(window)
        self._observe(window)
        self._stop = self._stop or window.stop
        self._rooms.observe(window.size, int(window.pairs.max()))
        return StepNumbers(window.step, window.loss, window.mse, self._gaussians, int(window.pairs.max()),
                           np.size(window.views))


def admission_path(config: TrainConfig) -> str:
    """The rule of ``sched.hazards.decide`` behind ``--path`` and ``--ablate``."""
    if config.path in ("sync", "sync-dense"):
        return "sync"
    return "unvalidated" if {"das", "hogwild"} & set(config.ablate) else config.path or "quality"
