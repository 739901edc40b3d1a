"""What a reader of one file format hands to ``assemble``: nothing checked against the photos yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from splat.errors import UserError

# COLMAP models with one focal length → the same lens with two; the parameters behind the centre carry over.
_ONE_FOCAL = {"SIMPLE_PINHOLE": "PINHOLE", "SIMPLE_RADIAL": "OPENCV", "RADIAL": "OPENCV"}
_PARAM_COUNTS = {"PINHOLE": 4, "OPENCV": 8, "FULL_OPENCV": 12}


@dataclass(frozen=True)
class Lens:
    """A camera as the source describes it."""

    model: str  # COLMAP camera model name
    params: tuple[float, ...]  # in COLMAP's order for that model, pixels
    width: int | None  # pixels; None: whatever the photo is
    height: int | None  # pixels; None: whatever the photo is


def two_focal(lens: Lens, name: str) -> Lens:
    """The same lens as PINHOLE, OPENCV or FULL_OPENCV, so that both axes can be scaled exactly.

    COLMAP's SIMPLE_RADIAL and RADIAL are OPENCV with equal focal lengths and no tangential part.

    Raises:
        UserError: a fisheye, a panorama, or numbers no camera can have; names the photo.
    """
    model, params = lens.model, lens.params
    if model in _ONE_FOCAL:
        model, params = _ONE_FOCAL[model], (params[0], *params)
        params = params + (0.0,) * (_PARAM_COUNTS[model] - len(params))
    if model not in _PARAM_COUNTS:
        raise UserError(f"camera model {lens.model} of photo {name} is not supported (fisheyes and panoramas "
                        "are not pinhole); undistort the photos to PINHOLE first")
    sides = (*params[:2], lens.width or 1, lens.height or 1)
    if len(params) != _PARAM_COUNTS[model] or not np.isfinite(params).all() or min(sides) <= 0:
        raise UserError(f"camera of photo {name} is {lens.width}x{lens.height} {lens.model} with parameters "
                        f"{list(lens.params)}, which no camera has; calibrate it again")
    return Lens(model, tuple(params), lens.width, lens.height)


@dataclass(frozen=True, eq=False)
class SourceView:
    """One listed photo."""

    name: str  # posix path relative to the folder of photos
    path: Path  # where the photo should be
    view: np.ndarray  # [4, 4] float64 world → camera, OpenCV axes
    lens: Lens
    mask_path: Path | None = None  # a mask that the source names itself
    role: Literal["train", "test"] | None = None  # fixed by the source; None: split by name


@dataclass(frozen=True, eq=False)
class SourceScene:
    """Everything one source says."""

    views: list[SourceView]
    points: np.ndarray  # [P, 3] float64 world units; P = 0: no points, a random start is drawn
    colours: np.ndarray  # [P, 3] uint8
    seen_by: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [n] index into views
    seen_point: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [n] row of points
    random_half_side: float | None = None  # world units, of the cube of a random start; None: by the cameras
    masks_folder: Path | None = None  # where masks named like the photos may lie
    warnings: tuple[str, ...] = ()
