"""``transforms.json`` of nerfstudio and instant-ngp: camera → world, OpenGL axes (x right, y up, z back)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from splat.errors import UserError
from splat.io.files import check_file
from splat.io.ply import read_points
from splat.scene.photos import read_header
from splat.scene.source import Lens, SourceScene, SourceView

_OPENGL_TO_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])
_ROTATION_SLACK = 1e-2  # how far a written rotation may be from orthonormal before it is refused
_SUFFIXES = ("", ".png", ".jpg", ".jpeg", ".JPG", ".PNG")
_LENS_MODELS = ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "PERSPECTIVE")


def is_transforms(path: Path) -> bool:
    """Whether ``path`` is a transforms.json or a folder with one."""
    return path.suffix == ".json" if path.is_file() else (path / "transforms.json").is_file()


def read_transforms(path: Path) -> SourceScene:
    """Views and, with ``ply_file_path``, the points of a transforms.json.

    Raises:
        UserError: malformed JSON, missing intrinsics, a fisheye lens, a pose that is not one.
    """
    listing = path if path.is_file() else path / "transforms.json"
    root = listing.parent
    data = read_json(listing)
    views = []
    for number, frame in enumerate(data["frames"]):
        photo = photo_path(root, frame, listing, number)
        mask = frame.get("mask_path")
        views.append(SourceView(_name(photo, root), photo, pose_of(frame, listing, number),
                                lens_of(data | frame, photo, listing), root / mask if mask else None))
    cloud = data.get("ply_file_path")
    points, colours = read_points(root / cloud) if cloud else no_points()
    return SourceScene(views, points, colours, masks_folder=root / "masks")


def no_points() -> tuple[np.ndarray, np.ndarray]:
    """([0, 3] positions, [0, 3] uint8 colours): the source has none and a random start is drawn."""
    return np.zeros((0, 3)), np.zeros((0, 3), np.uint8)


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``, checked to have a list ``frames`` of objects.

    Raises:
        UserError: missing file, Git LFS pointer, malformed JSON or no frames.
    """
    check_file(path, "camera file")
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"camera file {path} is cut off or not JSON ({error}); export it again") from error
    frames = data.get("frames") if isinstance(data, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise UserError(f"camera file {path} has no list 'frames' of photos; export it again")
    return data


def photo_path(root: Path, frame: dict[str, Any], listing: Path, number: int) -> Path:
    """The photo of one frame; a missing suffix is found on disk, ``.png`` where nothing is.

    Raises:
        UserError: the frame names no file.
    """
    name = frame.get("file_path")
    if not isinstance(name, str) or not name:
        raise UserError(f"frame {number} of {listing} has no file_path; add it or remove the frame")
    given = Path(root, name.replace("\\", "/"))
    found = next((given.with_name(given.name + end) for end in _SUFFIXES
                  if given.with_name(given.name + end).is_file()), None)
    return found or (given if given.suffix else given.with_name(given.name + ".png"))


def pose_of(frame: dict[str, Any], listing: Path, number: int, field: str = "transform_matrix") -> np.ndarray:
    """[4, 4] float64 world → camera in OpenCV axes from the frame's ``field``, camera → world in OpenGL axes.

    Raises:
        UserError: not 3x4 or 4x4 finite numbers, or not a rotation.
    """
    where = f"{field} of frame {number} ({frame.get('file_path')}) of {listing}"
    try:
        matrix = np.asarray(frame.get(field), np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.shape not in ((4, 4), (3, 4)):
        raise UserError(f"{where} is not a 4x4 matrix of numbers; export the cameras again")
    if not np.isfinite(matrix).all():
        raise UserError(f"{where} is not finite; remove the frame or solve it again")
    to_world = np.eye(4)
    to_world[:3] = matrix[:3]
    left, sizes, right = np.linalg.svd(to_world[:3, :3])
    if abs(sizes - 1).max() > _ROTATION_SLACK or np.linalg.det(left @ right) < 0:
        raise UserError(f"{where} is no rotation (scales {np.round(sizes, 4).tolist()}); export it again")
    to_world[:3, :3] = left @ right
    to_world = to_world @ _OPENGL_TO_OPENCV
    view = np.eye(4)
    view[:3, :3] = to_world[:3, :3].T
    view[:3, 3] = -to_world[:3, :3].T @ to_world[:3, 3]
    return view


def lens_by_angle(photo: Path, angle_x: float, angle_y: float | None) -> Lens:
    """Centred pinhole of a horizontal (and vertical) field of view in radians over the photo's own pixels."""
    if not photo.exists():  # never used: the photo is skipped
        return Lens("PINHOLE", (1.0, 1.0, 0.0, 0.0), None, None)
    header = read_header(photo)
    fx = 0.5 * header.width / math.tan(0.5 * angle_x)
    fy = fx if angle_y is None else 0.5 * header.height / math.tan(0.5 * angle_y)
    return Lens("PINHOLE", (fx, fy, header.width / 2, header.height / 2), header.width, header.height)


def angle_of(data: dict[str, Any], key: str, listing: Path) -> float:
    """A field of view in radians.

    Raises:
        UserError: it is missing or not between 0 and π.
    """
    angle = data.get(key)
    if not isinstance(angle, (int, float)) or not 0 < angle < math.pi:
        raise UserError(f"{listing} has {key} = {angle}; it must be an angle in radians between 0 and pi")
    return float(angle)


def lens_of(values: dict[str, Any], photo: Path, listing: Path) -> Lens:
    """The lens of a listing's fields, those of one frame over those of the whole.

    Raises:
        UserError: a lens that is not pinhole, or a field that is not a number.
    """
    model = "fisheye" if values.get("is_fisheye") else values.get("camera_model", "OPENCV")
    if model not in _LENS_MODELS:
        raise UserError(f"camera model {model} in {listing} is not supported (fisheyes and panoramas are not "
                        "pinhole); undistort the photos first")
    distortion = tuple(_number(values, key, listing) for key in ("k1", "k2", "p1", "p2"))
    if values.get("k3") or values.get("k4"):
        raise UserError(f"{listing} has k3 or k4, but only k1, k2, p1 and p2 can be taken out on loading; "
                        "undistort the photos first")
    if "fl_x" not in values:
        angle_y = angle_of(values, "camera_angle_y", listing) if "camera_angle_y" in values else None
        lens = lens_by_angle(photo, angle_of(values, "camera_angle_x", listing), angle_y)
        return Lens("OPENCV", lens.params + distortion, lens.width, lens.height)
    width, height = (int(_number(values, key, listing)) or None for key in ("w", "h"))
    if (width is None or height is None) and photo.exists():
        header = read_header(photo)
        width, height = header.width, header.height
    fx = _number(values, "fl_x", listing)
    fy = _number(values, "fl_y", listing, fx)
    cx = _number(values, "cx", listing, (width or 0) / 2)
    cy = _number(values, "cy", listing, (height or 0) / 2)
    return Lens("OPENCV", (fx, fy, cx, cy, *distortion), width, height)


def _number(values: dict[str, Any], key: str, listing: Path, default: float = 0.0) -> float:
    value = values.get(key, default)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{listing} has {key} = {value!r}, not a number; calibrate the camera again")
    return float(value)


def _name(photo: Path, root: Path) -> str:
    for folder in (root / "images", root):
        if photo.is_relative_to(folder):
            return photo.relative_to(folder).as_posix()
    return photo.as_posix()
