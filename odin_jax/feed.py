"""Units of views for the loop: photos decoded ahead by threads, cameras, masks, backgrounds."""

from __future__ import annotations

import jax
import numpy as np

from odin_jax import order
from odin_jax.backdrop import backdrop
from odin_jax.train_config import TrainConfig
from splat.cameras import Camera
from splat.pipelines.protocol import View
from splat.scene.prefetch import PhotoCache
from splat.scene.types import Photo, Scene

AHEAD = 4  # units whose photos are decoded ahead of the loop


def camera_of(photo: Photo) -> Camera:
    """The float32 camera of a photo at training size."""
    view, intrinsics = np.asarray(photo.view, np.float32), np.asarray(photo.intrinsics, np.float32)
    return Camera(view, intrinsics, photo.width, photo.height)  # type: ignore[arg-type]


class UnitFeed:
    """The units of a run by step number; a context manager, because threads read ahead."""

    def __init__(self, scene: Scene, config: TrainConfig):
        self._scene, self._config, self._backdrop = scene, config, backdrop(config, scene)
        self._cache = PhotoCache(scene, budget=config.photo_cache_mb << 20)

    def __enter__(self) -> UnitFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self._cache.close()

    def indices(self, step: int) -> tuple[int, ...]:
        """Photos of the unit of 1-based ``step``, sorted by size so that few combinations are compiled."""
        at = order.unit_views(self._config.seed, step, len(self._scene.train), self._config.batch)
        photos = self._scene.photos
        return tuple(
            sorted(
                (self._scene.train[position] for position in at),
                key=lambda index: (photos[index].width, photos[index].height),
            )
        )

    def unit(self, step: int) -> tuple[View, ...]:
        """The views of ``step``, going to the device. Raises UserError when a photo cannot be decoded."""
        mine = self.indices(step)
        views = tuple(self._view(step, slot, index) for slot, index in enumerate(mine))
        for later in range(step + 1, min(step + AHEAD, self._config.iterations) + 1):
            self._cache.prefetch(self.indices(later))
        return views

    def _view(self, step: int, slot: int, index: int) -> View:
        rgb, mask = self._cache.get(index)
        random = self._config.background == "random"
        background = (
            order.random_background(self._config.seed, step, slot)
            if random
            else self._backdrop
        )
        return jax.device_put(View(camera_of(self._scene.photos[index]), rgb, mask, background))  # type: ignore[arg-type]
