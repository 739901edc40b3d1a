"""One shape for the views that all ranks run at the same time: a program on many ranks has one shape for all.

Where photos differ in size, the smaller ones get black margins at the right and at the bottom that weigh nothing in the
loss; the camera's grid grows with them and its intrinsics stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from splat.pipelines.protocol import View
from splat.scene.types import Photo, Scene


@dataclass(frozen=True)
class Shape:
    """What the views of one place in the unit have in common."""

    width: int  # pixels
    height: int  # pixels
    masked: bool  # whether they carry a mask

    def shaped(self, view: View) -> View:
        """The view on this grid, as NumPy arrays."""
        right, below = self.width - view.camera.width, self.height - view.camera.height
        mask = view.mask
        if self.masked and mask is None:
            mask = np.full(view.photo.shape[:2], 255, np.uint8)  # type: ignore[assignment]
        if not (right or below):
            return view.replace(mask=mask)  # type: ignore[attr-defined]
        return View(
            replace(view.camera, width=self.width, height=self.height),
            np.pad(view.photo, ((0, below), (0, right), (0, 0))),  # type: ignore[arg-type]
            np.pad(mask, ((0, below), (0, right))),  # type: ignore[arg-type]
            view.background,
        )


def alike(photos: Sequence[Photo], masked: bool) -> Shape:
    """The common shape of one place's photos, one per rank; ``masked``: some view of the capture has a mask."""
    width, height = max(photo.width for photo in photos), max(photo.height for photo in photos)
    unlike = any((photo.width, photo.height) != (width, height) for photo in photos)
    return Shape(width, height, masked or unlike)


def has_masks(scene: Scene) -> bool:
    """Whether any training view weighs its pixels, so that all of them get a mask."""
    return any(photo.mask_path or photo.mask_entry or (photo.has_alpha and scene.alpha == "mask")
               for photo in (scene.photos[index] for index in scene.train))
