"""What a loaded capture is: photos with exact pinhole cameras, SfM points and the tracks between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from splat.scene import photos as photo_files

AlphaMode = Literal["mask", "background"]


@dataclass(frozen=True)
class Distortion:
    """A lens that the photo's file still has in it; it is taken out when the photo is decoded."""

    model: str  # COLMAP camera model name, e.g. OPENCV
    params: tuple[float, ...]  # in COLMAP's order for that model, pixels of the file
    width: int  # pixels of the file
    height: int  # pixels of the file


@dataclass(frozen=True, eq=False)
class Photo:
    """One view: where its pixels lie and the pinhole camera of those pixels at training size."""

    name: str  # posix path relative to the folder of photos; names are unique in a scene
    path: Path  # the image file, or the .npz that holds it
    width: int  # pixels at training size
    height: int  # pixels at training size
    view: np.ndarray  # [4, 4] float64 world → camera (x right, y down, z forward)
    intrinsics: np.ndarray  # [4] float64 fx, fy, cx, cy in pixels at training size; pixel centres at +0.5
    mask_path: Path | None = None  # grey image whose values are loss weights 0..255
    has_alpha: bool = False  # the file has an alpha channel
    distortion: Distortion | None = None  # None: the file is pinhole already
    entry: str | None = None  # name of the photo inside the .npz
    mask_entry: str | None = None  # name of its mask inside the .npz

    @property
    def centre(self) -> np.ndarray:
        """[3] float64 camera centre in world units: −Rᵀ t."""
        return -self.view[:3, :3].T @ self.view[:3, 3]


@dataclass(frozen=True, eq=False)
class Tracks:
    """Which SfM points each view saw, as compressed sparse rows (view → points)."""

    view_ptr: np.ndarray  # [V + 1] int64; the points of view v are point_ids[view_ptr[v]:view_ptr[v + 1]]
    point_ids: np.ndarray  # [nnz] int32 rows of Scene.points, ascending and unique within a view

    def of(self, view: int) -> np.ndarray:
        """[k] int32 rows of the points that view ``view`` saw."""
        return self.point_ids[self.view_ptr[view]:self.view_ptr[view + 1]]


@dataclass(frozen=True, eq=False)
class Scene:
    """A capture ready to train on. Pixels stay in their files until ``load_photo`` decodes one."""

    name: str  # last part of the source path
    photos: tuple[Photo, ...]  # sorted by name
    points: np.ndarray  # [P, 3] float32 world units
    colours: np.ndarray  # [P, 3] uint8
    tracks: Tracks  # empty rows where the source has no SfM
    train: tuple[int, ...]  # indices of photos
    test: tuple[int, ...]  # indices of photos, disjoint from train
    extent: float  # world units: 1.1 × largest distance of a training camera from their mean (spec §0)
    source: Path  # what was loaded
    alpha: AlphaMode = "mask"  # what an alpha channel means
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # 0..1, behind photos when alpha is "background"
    warnings: tuple[str, ...] = ()  # one line each, for the user to read


def load_photo(scene: Scene, index: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Decode one photo at training size.

    Args:
        scene: the scene.
        index: position in ``scene.photos``.

    Returns:
        ``(rgb, mask)``: [H, W, 3] uint8 and [H, W] uint8 loss weights or None (all pixels count).

    Raises:
        UserError: the file is missing, truncated, a Git LFS pointer or not an image.
    """
    return photo_files.decode(scene.photos[index], scene.alpha, scene.background)
