"""What the training loop needs of whatever runs the units: one device alone, or many ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from odin_jax.feed import camera_of
from odin_jax.progress import StepNumbers
from odin_jax.rooms import PairRooms, Size
from splat.pipelines.protocol import Pipeline, View
from splat.scene.types import Photo

COUNTED = 12  # training views whose pairs are counted before the first room is chosen


class Started(NamedTuple):
    """What is known once a unit has been started."""

    numbers: StepNumbers | None  # of the newest unit that is known to have ended: this one or the one before
    stop: bool  # some process was told to stop: no further unit is to be started


class Engine(Protocol):
    """Runs units in the order of their steps. The state may be read and replaced only when it has settled."""

    def start(self, step: int, stop: bool) -> Started:
        """Start unit ``step``; its update may still be under way on return. ``stop``: this process was told to stop."""
        ...

    def settle(self) -> StepNumbers | None:
        """Wait until every update is in the state; numbers of the last unit, where they were not known yet."""
        ...

    def state(self) -> Any:
        """The settled state on one device, sums over views included. Every process has to call it."""
        ...

    def load(self, state: Any) -> None:
        """Go on from another settled state, of one device."""
        ...

    def saved(self) -> tuple[Any, dict[str, Any]]:
        """(arrays, JSON values) of the settled state that a checkpoint holds. Every process has to call it."""
        ...

    def views(self, step: int, train: Sequence[int]) -> tuple[View, ...]:
        """Views of unit ``step`` for an event, as NumPy arrays; ``train`` counts within the training views."""
        ...

    def close(self) -> None:
        """Let go of threads and files."""
        ...


def open_room(rooms: PairRooms, size: Size, pipeline: Pipeline, state: Any, photos: Sequence[Photo]) -> None:
    """Choose the first room for views of ``size`` from the pairs of some training ``photos`` of that size."""
    alike = [photo for photo in photos if (photo.width, photo.height) == size]
    sample = alike[:: max(1, len(alike) // COUNTED)]
    counts = [pipeline.scope(state, camera_of(photo))[1] for photo in sample]
    rooms.open(size, max(int(count) for count in counts), growth(state))


def growth(state: Any) -> float:
    """How much pairs may grow until the capacity is full: footprints shrink as rows are split."""
    return math.sqrt(len(state.alive) / max(living(state), 1))


def living(state: Any) -> int:
    """Rows that exist."""
    return int(np.count_nonzero(np.asarray(state.alive)))
