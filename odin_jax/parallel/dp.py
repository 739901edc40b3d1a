"""Data parallelism: every rank has all rows and runs some of a unit's views; the engine of many ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from odin_jax import placement
from odin_jax.balance import Balance
from odin_jax.executor import Executor, Programs, Unit
from odin_jax.feed import largest
from odin_jax.fused import Fused
from odin_jax.lanes import Lanes
from odin_jax.parallel.alike import alike, has_masks
from odin_jax.parallel.mesh import Ranks
from odin_jax.parallel.planned import Planned
from odin_jax.rooms import PairRooms
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position
from odin_jax.window import Assigned, Window
from sched.plan import Plan
from splat.scene.types import Scene


class DataParallel(Planned):
    """Engine of ranks that each have all rows."""

    def __init__(self, config: TrainConfig, scene: Scene, pipeline: Any, plan: Plan, ranks: Ranks, position: Position,
                 on_window: Callable[[Window], None] | None = None):
        """Go on from ``position``; ``on_window`` is told of each window."""
        super().__init__(config, scene, pipeline, plan, ranks, position, on_window)
        self._balance = Balance(
            ranks.count, not plan.options.leaves_out("dds"), config.exchange == "psum", position.pairs)
        self._masked = has_masks(scene)
        placed = placement.place_parts(ranks, pipeline, position.state, position.parts)
        programs = Programs(ranks, pipeline, config.exchange, placement.kinds(pipeline, placed))
        self._ready(programs, executor_of(config, programs, position.rooms), placed)

    def saved(self) -> tuple[Any, dict[str, Any]]:
        self._runtime.admission.forget()
        pairs = sorted(self._balance.pairs.items())
        return (placement.with_parts(self._ranks, self._pipeline, self._runtime.now.state),
                {"parts": self._ranks.count, "view_pairs": [list(entry) for entry in pairs]})

    def _placed(self, state: Any) -> Any:
        return placement.place(self._ranks, self._pipeline, state)

    def _gathered(self) -> Any:
        return placement.one_device(self._ranks, self._pipeline, self._runtime.now.state)

    def _observe(self, window: Window) -> None:
        self._balance.observe(window)

    def _assigned(self, step: int, views: list[int]) -> Assigned:
        by_rank = self._balance.assign(np.array(views))
        return Assigned(self._unit(step, by_rank), by_rank)

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


def executor_of(config: TrainConfig, programs: Programs, rooms: PairRooms) -> Executor:
    """The executor of ``--executor``; auto: two lanes on CPU, one program per window elsewhere."""
    device = programs.ranks.mesh.devices.flat[0]
    chosen = config.executor if config.executor != "auto" else "lanes" if device.platform == "cpu" else "fused"
    return Lanes(programs, rooms) if chosen == "lanes" else Fused(programs, rooms)
