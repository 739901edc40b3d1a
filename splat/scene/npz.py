"""A whole scene in one ``.npz``: cameras, points, tracks, split and photos; needs no pycolmap."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from splat.errors import UserError
from splat.io.files import atomic_write, check_file
from splat.scene.photos import encoded_bytes, training_size
from splat.scene.types import Photo, Scene, Tracks, load_photo

_FORMAT = 1
_ARRAYS = ("views", "intrinsics", "sizes", "points", "colours", "view_ptr", "point_ids", "train", "test")
_HEAD = ("name", "names", "masks", "extent", "background", "warnings")
Encoding = Literal["png", "jpeg", "raw"]


def save_npz(scene: Scene, path: str | Path, *, encoding: Encoding = "png") -> None:
    """Write ``scene`` with its photos at training size into one file, atomically.

    A photo whose file already holds exactly the training pixels is stored as that file's bytes.

    Args:
        scene: the scene.
        path: the file, ``.npz``.
        encoding: of photos that had to be resized or composited: "png" and "raw" keep every pixel, "jpeg" is
            smaller.

    Raises:
        UserError: a photo cannot be decoded or the file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise UserError(f"scene file {path} must end in .npz; rename it")
    head = {"format": _FORMAT, "name": scene.name, "names": [photo.name for photo in scene.photos],
            "masks": [], "extent": scene.extent, "background": scene.background, "warnings": scene.warnings}
    arrays = {"views": np.stack([photo.view for photo in scene.photos]),
              "intrinsics": np.stack([photo.intrinsics for photo in scene.photos]),
              "sizes": np.asarray([(photo.width, photo.height) for photo in scene.photos], np.int64),
              "points": scene.points, "colours": scene.colours, "view_ptr": scene.tracks.view_ptr,
              "point_ids": scene.tracks.point_ids, "train": np.asarray(scene.train, np.int64),
              "test": np.asarray(scene.test, np.int64)}
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for index in range(len(scene.photos)):
            data, mask = _stored(scene, index, encoding)
            _put(archive, _entry("photo", index), np.frombuffer(data, np.uint8))
            head["masks"].append(mask is not None)
            if mask is not None:
                _put(archive, _entry("mask", index), np.frombuffer(_encoded(mask, "png"), np.uint8))
        for name, array in arrays.items():
            _put(archive, name, array)
        _put(archive, "head", np.frombuffer(json.dumps(head).encode(), np.uint8))


def load_npz(path: Path, *, downscale: float = 1) -> Scene:
    """Read a scene that ``save_npz`` wrote; photos stay in the file until they are decoded.

    Args:
        path: the file.
        downscale: a further reduction of the stored photos.

    Raises:
        UserError: missing, Git LFS pointer, truncated, or not a scene of this format.
    """
    check_file(path, "scene file")
    try:
        with np.load(path, allow_pickle=False) as data:
            head = json.loads(data["head"].tobytes())
            arrays = {name: data[name] for name in _ARRAYS}
            entries = set(data.files)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"scene file {path} is cut off or no saved scene ({error}); save it again") from error
    found = head.get("format") if isinstance(head, dict) else None
    if found != _FORMAT:
        raise UserError(f"scene file {path} has format {found}, this version reads {_FORMAT}; save it again")
    lacking = [name for name in _HEAD if name not in head]
    if lacking:
        raise UserError(f"scene file {path} has no {lacking[0]!r} in its head; save the scene again")
    _check(path, head, arrays, entries)
    photos = tuple(_photo(path, head, arrays, index, downscale) for index in range(len(head["names"])))
    return Scene(
        name=head["name"], photos=photos, points=arrays["points"], colours=arrays["colours"],
        tracks=Tracks(arrays["view_ptr"], arrays["point_ids"]), train=tuple(map(int, arrays["train"])),
        test=tuple(map(int, arrays["test"])), extent=head["extent"], source=path, alpha="mask",
        background=tuple(head["background"]), warnings=tuple(head["warnings"]))


def _photo(path: Path, head: dict[str, Any], arrays: dict[str, np.ndarray], index: int,
           downscale: float) -> Photo:
    stored = arrays["sizes"][index]
    width, height = training_size(int(stored[0]), int(stored[1]), downscale, head["names"][index])
    scale = np.asarray([width / stored[0], height / stored[1]] * 2)
    return Photo(name=head["names"][index], path=path, width=width, height=height,
                 view=arrays["views"][index], intrinsics=arrays["intrinsics"][index] * scale,
                 entry=_entry("photo", index),
                 mask_entry=_entry("mask", index) if head["masks"][index] else None)


def _check(path: Path, head: dict[str, Any], arrays: dict[str, np.ndarray], entries: set[str]) -> None:
    """Counts agree, numbers are finite, and every photo is there."""
    count, point_count = len(head["names"]), len(arrays["points"])
    shapes = {"views": (count, 4, 4), "intrinsics": (count, 4), "sizes": (count, 2), "view_ptr": (count + 1,),
              "points": (point_count, 3), "colours": (point_count, 3)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise UserError(f"scene file {path} field {name} has shape {arrays[name].shape}, not {shape}; "
                            "save it again")
    for name in ("views", "intrinsics", "points"):
        if not np.isfinite(arrays[name]).all():
            row = int(np.argwhere(~np.isfinite(arrays[name]))[0, 0])
            raise UserError(f"scene file {path} field {name} row {row} is not finite; save the scene again")
    missing = [name for index, name in enumerate(head["names"]) if _entry("photo", index) not in entries]
    if missing:
        raise UserError(f"scene file {path} lacks photo {missing[0]}; save the scene again")


def _stored(scene: Scene, index: int, encoding: Encoding) -> tuple[bytes, np.ndarray | None]:
    """Encoded bytes of the photo at training size, and its loss weights or None."""
    photo = scene.photos[index]
    rgb, mask = load_photo(scene, index)
    if photo.distortion is None and not photo.has_alpha:
        data = encoded_bytes(photo)
        with Image.open(io.BytesIO(data)) as image:
            if image.size == rgb.shape[1::-1] and image.format in ("PNG", "JPEG") and image.mode == "RGB":
                return data, mask
    return _encoded(rgb, encoding), mask


def _encoded(pixels: np.ndarray, encoding: Encoding) -> bytes:
    buffer = io.BytesIO()
    if encoding == "raw":
        Image.fromarray(pixels).save(buffer, format="PPM")
    elif encoding == "jpeg":
        Image.fromarray(pixels).save(buffer, format="JPEG", quality=95)
    else:
        Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def _put(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _entry(kind: str, index: int) -> str:
    return f"{kind}_{index:06d}"
