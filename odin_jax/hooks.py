"""What a pipeline may want of a run beyond units and events: the optional ``splat.pipelines.protocol.Staged``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from odin_jax.parallel import share
from odin_jax.runs import read_json, write_json
from splat.scene.types import Photo, Scene, load_photo


class TrainingPhotos(Sequence):
    """The training photos [H, W, 3] uint8 of a scene in their order; each is decoded when it is asked for."""

    def __init__(self, scene: Scene):
        self._scene = scene

    def __len__(self) -> int:
        return len(self._scene.train)

    def __getitem__(self, place: Any) -> Any:
        return load_photo(self._scene, self._scene.train[place])[0]


def surveyed(pipeline: Any, scene: Scene, before: Path | None, out: Path, leads: bool) -> Any:
    """The pipeline once it has seen the training photos; every process has to call it.

    The first process looks, or reads what the run that is continued found, from the file ``before``. It tells the
    others, so that all ranks have the same numbers, and writes them to ``out``. Raises UserError when a photo cannot be
    decoded.
    """
    if not callable(getattr(pipeline, "survey", None)):
        return pipeline
    found = None
    if leads:
        found = read_json(before) if before and before.exists() else pipeline.survey(TrainingPhotos(scene))
        write_json(out, found)
    return pipeline.with_survey(share.from_first(found))


def scale_of(pipeline: Any, step: int) -> int:
    """By how much the sides of the photos are divided in unit ``step``."""
    scale = getattr(pipeline, "scale", None)
    return 1 if scale is None else scale(step)


def event_views(pipeline: Any, event: str, step: int, state: Any) -> tuple[int, ...]:
    """Training views that an event wants to look at, counted within the training views."""
    wanted = getattr(pipeline, "event_views", None)
    return () if wanted is None else tuple(wanted(event, step, state))


def scaled(photo: Photo, scale: int) -> Photo:
    """The photo as it is trained on at an integer scale: sides ⌊size/scale⌋, at least 1 pixel; intrinsics follow."""
    if scale == 1:
        return photo
    width, height = max(photo.width // scale, 1), max(photo.height // scale, 1)
    x, y = width / photo.width, height / photo.height
    return replace(photo, width=width, height=height, intrinsics=photo.intrinsics * [x, y, x, y])


def resampled(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """A uint8 image [H, W, 3] or mask [H, W] on a smaller grid, bilinear with antialiasing."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def told(pipeline: Any, state: Any, step: int) -> dict[str, Any]:
    """JSON numbers about its schedule that a pipeline has to tell after the events of ``step``."""
    numbers = getattr(pipeline, "told", None)
    return {} if numbers is None else numbers(state, step)
