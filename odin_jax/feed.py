"""Views for the loop: photos decoded ahead by threads, cameras, masks, backgrounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from odin_jax import hooks, order
from odin_jax.backdrop import backdrop
from odin_jax.rooms import Size
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


def largest(views: Iterable[View]) -> Size:
    """The largest image size of a unit; its room serves all of them."""
    return max(((view.camera.width, view.camera.height) for view in views), key=lambda size: size[0] * size[1])


class UnitFeed:
    """The views of a run, decoded ahead by threads until ``close``."""

    def __init__(self, scene: Scene, config: TrainConfig, pipeline: Any):
        self._scene, self._config, self._pipeline = scene, config, pipeline
        self._backdrop = backdrop(config, scene)
        self._cache = PhotoCache(scene, budget=config.photo_cache_mb << 20)

    def by_size(self, views: Iterable[int]) -> list[int]:
        """Training views in the order of their image sizes, so that few combinations are compiled."""
        photos, train = self._scene.photos, self._scene.train
        return sorted(views, key=lambda view: (photos[train[view]].width, photos[train[view]].height))

    def later(self, step: int) -> range:
        """Steps whose photos are to be decoded while ``step`` runs."""
        return range(step + 1, min(step + AHEAD, self._config.iterations) + 1)

    def photo(self, step: int, index: int) -> Photo:
        """A photo with the size and the camera that it has in unit ``step``."""
        return hooks.scaled(self._scene.photos[index], hooks.scale_of(self._pipeline, step))

    def train_photos(self, step: int) -> list[Photo]:
        """The training photos with the sizes that they have in unit ``step``."""
        return [self.photo(step, index) for index in self._scene.train]

    def views(self, step: int, placed: Sequence[tuple[int, int]]) -> tuple[View, ...]:
        """Views of unit ``step`` as NumPy arrays for (place in the unit, photo) pairs.

        Raises UserError when a photo cannot be decoded.
        """
        return tuple(self._view(step, place, index) for place, index in placed)

    def train_views(self, step: int, train: Sequence[int]) -> tuple[View, ...]:
        """Views of unit ``step`` as NumPy arrays; ``train`` counts within the training views."""
        return self.views(step, [(place, self._scene.train[view]) for place, view in enumerate(train)])

    def prefetch(self, indices: Iterable[int]) -> None:
        """Start to decode photos."""
        self._cache.prefetch(indices)

    def close(self) -> None:
        """End the threads."""
        self._cache.close()

    def _view(self, step: int, place: int, index: int) -> View:
        rgb, mask = self._cache.get(index)
        photo = self.photo(step, index)
        rgb = hooks.resampled(rgb, photo.width, photo.height)
        mask = None if mask is None else hooks.resampled(mask, photo.width, photo.height)
        behind = self._backdrop
        if self._config.background == "random":
            behind = order.random_background(self._config.seed, step, place)
        return View(camera_of(photo), rgb, mask, behind)  # type: ignore[arg-type]
