"""Structure of COLMAP model files, walked before pycolmap reads them: it can abort the process on a cut file.

Binary layouts: COLMAP, src/colmap/scene/reconstruction_io_binary.cc (all little endian).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

from splat.errors import UserError
from splat.io.files import check_file

_NAMES = ("cameras", "images", "points3D")
_OPTIONAL = ("rigs", "frames")  # written from COLMAP 3.12 on
_PARAM_COUNTS = (3, 4, 4, 5, 8, 8, 12, 5, 4, 5, 12, 16, 4, 5, 3, 4, 6, 2)  # by COLMAP's camera model id
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def check_model(folder: Path, suffix: str) -> None:
    """Raise a one-line UserError unless every file of the model is there and complete.

    Args:
        folder: the model's folder.
        suffix: "bin" or "txt".

    Raises:
        UserError: a file is missing, a Git LFS pointer, truncated, or (text) has a malformed line.
    """
    for name in _NAMES + _OPTIONAL:
        path = folder / f"{name}.{suffix}"
        if name in _OPTIONAL and not path.exists():
            continue
        check_file(path, "COLMAP model file")
        if suffix == "bin":
            _check_binary(path, _WALKERS[name])
        elif name in _MIN_WORDS:
            _check_text(path, name)


def registered_images(folder: Path, suffix: str) -> int:
    """Number of posed images that the model lists; −1 where it has no readable list."""
    path = folder / f"images.{suffix}"
    if not path.is_file():
        return -1
    if suffix == "txt":
        return len(_image_lines(_rows(path)))
    with path.open("rb") as file:
        head = file.read(_U64.size)
    return _U64.unpack(head)[0] if len(head) == _U64.size else -1


def _check_binary(path: Path, walk: Callable[[bytes], int]) -> None:
    data = path.read_bytes()
    try:
        end = walk(data)
    except (struct.error, ValueError, IndexError):
        end = len(data) + 1
    if end > len(data):
        raise UserError(f"COLMAP model file {path} is truncated or no model file (it has {len(data)} "
                        "bytes and announces more); copy it again or export the model again")
    if end < len(data):
        raise UserError(f"COLMAP model file {path} has {len(data) - end} bytes too many; export it again")


def _walk_cameras(data: bytes) -> int:
    at = 8
    for _ in range(_U64.unpack_from(data)[0]):
        model = struct.unpack_from("<i", data, at + 4)[0]
        if not 0 <= model < len(_PARAM_COUNTS):
            raise ValueError(model)
        at += 24 + 8 * _PARAM_COUNTS[model]
    return at


def _walk_images(data: bytes) -> int:
    at = 8
    for _ in range(_U64.unpack_from(data)[0]):
        at = data.index(b"\0", at + 64) + 1
        at += 8 + 24 * _U64.unpack_from(data, at)[0]
    return at


def _walk_points(data: bytes) -> int:
    at = 8
    for _ in range(_U64.unpack_from(data)[0]):
        at += 51 + 8 * _U64.unpack_from(data, at + 43)[0]
    return at


def _walk_rigs(data: bytes) -> int:
    at = 8
    for _ in range(_U64.unpack_from(data)[0]):
        sensors = _U32.unpack_from(data, at + 4)[0]
        at += 8 + (8 if sensors else 0)
        for _ in range(max(0, sensors - 1)):
            at += 9 + (56 if data[at + 8] else 0)
    return at


def _walk_frames(data: bytes) -> int:
    at = 8
    for _ in range(_U64.unpack_from(data)[0]):
        at += 68 + 16 * _U32.unpack_from(data, at + 64)[0]
    return at


_WALKERS = {"cameras": _walk_cameras, "images": _walk_images, "points3D": _walk_points, "rigs": _walk_rigs,
            "frames": _walk_frames}

# Words that a line has at least.
_MIN_WORDS = {"cameras": 7, "images": 10, "points3D": 8}


def _rows(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise UserError(f"COLMAP model file {path} is not text; export the model again") from error


def _image_lines(rows: list[str]) -> list[str]:
    """Header lines of images.txt: each is followed by one line of observations, which may be empty."""
    return [row for row in rows[::2] if row.strip()]


def _check_text(path: Path, name: str) -> None:
    rows = _rows(path)
    if name == "images":
        _check_observations(path, rows)
        rows = _image_lines(rows)
    for row in rows:
        words = row.split()
        if not words:
            continue
        numbers = words[2:] if name == "cameras" else words[:9] if name == "images" else words
        values = [_number(word) for word in numbers]
        if len(words) < _MIN_WORDS[name] or None in values or (name == "points3D" and len(words) % 2):
            raise UserError(f"COLMAP model file {path} has a cut or malformed line '{row[:60]}'; "
                            "copy it again or export the model again")
        if not all(math.isfinite(value) for value in values if value is not None):
            what = {"cameras": "camera", "images": "pose of photo", "points3D": "point"}[name]
            which = words[9] if name == "images" else words[0]
            raise UserError(f"{what} {which} in COLMAP model file {path} is not finite; remove it from the "
                            "model or solve it again")


def _check_observations(path: Path, rows: list[str]) -> None:
    if len(_image_lines(rows)) * 2 - 1 > len(rows) or any(len(row.split()) % 3 for row in rows[1::2]):
        raise UserError(f"COLMAP model file {path} is cut off or malformed; copy or export it again")


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
