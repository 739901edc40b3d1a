"""Data parallelism: every rank has all rows and runs some of a unit's views; the engine of many ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from odin_jax import health, placement
from odin_jax.admission import Admission
from odin_jax.balance import Balance
from odin_jax.engine import Started, living, open_room
from odin_jax.executor import Executor, Programs, Unit
from odin_jax.feed import UnitFeed, largest
from odin_jax.fused import Fused
from odin_jax.lanes import Lanes
from odin_jax.parallel.alike import alike, has_masks
from odin_jax.parallel.mesh import Ranks, mine
from odin_jax.progress import StepNumbers
from odin_jax.rooms import PairRooms
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position
from odin_jax.window import Assigned, Runtime, Window
from sched.plan import Plan
from splat.pipelines.protocol import View
from splat.scene.types import Scene


class DataParallel:
    """Engine of all ranks: every process runs it with the same arguments."""

    def __init__(self, config: TrainConfig, scene: Scene, pipeline: Any, plan: Plan, ranks: Ranks, position: Position,
                 on_window: Callable[[Window], None] | None = None):
        """Go on from ``position``; ``on_window`` is told of each window."""
        self._config, self._scene, self._pipeline, self._plan = config, scene, pipeline, plan
        self._ranks, self._rooms, self._on_window = ranks, position.rooms, on_window
        self._step = position.step
        self._feed = UnitFeed(scene, config, pipeline)
        self._balance = Balance(
            ranks.count, not plan.options.leaves_out("dds"), config.exchange == "psum", position.pairs)
        placed = placement.place_parts(ranks, pipeline, position.state, position.parts)
        programs = Programs(ranks, pipeline, config.exchange, placement.kinds(pipeline, placed))
        self._executor = executor_of(config, programs, position.rooms)
        admission = Admission(admission_path(config), config.tau)
        self._runtime = Runtime(
            programs, self._executor, admission, placed, position.step, config.path == "sync-dense")
        self._settled = placement.one_device(ranks, pipeline, placed)
        self._gaussians = living(self._settled)
        self._open_rooms(position.step + 1)
        self._masked, self._stop = has_masks(scene), False

    def start(self, step: int, stop: bool) -> Started:
        self._step = step
        views = self._balance.assign(np.array(self._feed.by_size(self._plan.unit(step - 1))))
        unit = Assigned(self._unit(step, views), views)
        planned = self._plan.windows[(step - 2) % len(self._plan.windows)]
        self._runtime.stopping = stop
        window = self._runtime.unit(unit, planned.reason if planned.blocking else None)
        train = self._scene.train
        self._feed.prefetch(train[view] for later in self._feed.later(step) for view in self._plan.unit(later - 1))
        return Started(self._numbers(window), self._stop)

    def settle(self) -> StepNumbers | None:
        numbers = self._numbers(self._runtime.drain())
        self._settled = placement.one_device(self._ranks, self._pipeline, self._runtime.now.state)
        return numbers

    def state(self) -> Any:
        return self._settled

    def load(self, state: Any) -> None:
        self._settled, self._gaussians = state, living(state)
        self._open_rooms(self._step + 1)
        self._runtime.restructure(placement.place(self._ranks, self._pipeline, state))
        self._runtime.admission.forget()

    def saved(self) -> tuple[Any, dict[str, Any]]:
        self._runtime.admission.forget()
        pairs = sorted(self._balance.pairs.items())
        return (placement.with_parts(self._ranks, self._pipeline, self._runtime.now.state),
                {"parts": self._ranks.count, "view_pairs": [list(entry) for entry in pairs]})

    def views(self, step: int, train: Sequence[int]) -> tuple[View, ...]:
        return self._feed.train_views(step, train)

    def close(self) -> None:
        self._executor.close()
        self._feed.close()

    def _open_rooms(self, step: int) -> None:
        """Rooms for every size of photo from unit ``step`` on, now that the state is at hand: later updates use it up.
        """
        photos = self._feed.train_photos(step)
        for size in sorted({(photo.width, photo.height) for photo in photos} - set(self._rooms.rooms)):
            open_room(self._rooms, size, self._pipeline, self._settled, photos)

    def _unit(self, step: int, views: np.ndarray) -> Unit:
        """The views of this process's ranks on their devices; all ranks' views are alike in shape, place by place."""
        indices = [[self._scene.train[view] for view in of_rank] for of_rank in views]
        slots = range(views.shape[1])
        shapes = [alike([self._feed.photo(step, of_rank[slot]) for of_rank in indices], self._masked) for slot in slots]
        parts = []
        for rank in self._ranks.local:
            placed = [(rank * len(slots) + slot, indices[rank][slot]) for slot in slots]
            loaded = self._feed.views(step, placed)
            parts.append(tuple(shape.shaped(view) for shape, view in zip(shapes, loaded, strict=True)))
        size = largest(parts[0])
        if size not in self._rooms.rooms:  # the common shape of unlike photos
            self._rooms.open(size, max(self._rooms.seen.values()))
        return Unit(step, self._ranks.own(parts), size)

    def _numbers(self, window: Window | None) -> StepNumbers | None:
        if window is None:
            return None
        if not window.finite:
            grads = mine(self._runtime.failed.grads)[0] if self._runtime.failed else ()
            raise health.NotFinite("gradient", grads, window.step, window.loss)
        if self._on_window:
            self._on_window(window)
        self._balance.observe(window)
        self._stop = self._stop or window.stop
        self._rooms.observe(window.size, int(window.pairs.max()))
        return StepNumbers(window.step, window.loss, window.mse, self._gaussians, int(window.pairs.max()),
                           window.views.size)


def admission_path(config: TrainConfig) -> str:
    """The rule of ``sched.hazards.decide`` behind ``--path`` and ``--ablate``."""
    if config.path in ("sync", "sync-dense"):
        return "sync"
    return "unvalidated" if {"das", "hogwild"} & set(config.ablate) else config.path or "quality"


def executor_of(config: TrainConfig, programs: Programs, rooms: PairRooms) -> Executor:
    """The executor of ``--executor``; auto: two lanes on CPU, one program per window elsewhere."""
    device = programs.ranks.mesh.devices.flat[0]
    chosen = config.executor if config.executor != "auto" else "lanes" if device.platform == "cpu" else "fused"
    return Lanes(programs, rooms) if chosen == "lanes" else Fused(programs, rooms)
