"""COLMAP models, binary and text, and undistortion, through pycolmap: it is imported only here, and late."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from splat.errors import UserError
from splat.scene.colmap_check import check_model, registered_images
from splat.scene.source import Lens, SourceScene, SourceView

if TYPE_CHECKING:
    from splat.scene.types import Distortion

_MODEL_FILES = ("cameras", "images", "points3D")
_PHOTO_FOLDERS = ("images", "input")


def find_models(root: Path) -> list[Path]:
    """Folders with (part of) a COLMAP model: each of ``root/sparse/*``, else ``sparse``, else ``root``."""
    if not root.is_dir():
        return []
    for candidates in (sorted((root / "sparse").glob("*/")), [root / "sparse"], [root]):
        models = [folder for folder in candidates if _suffix(folder) is not None]
        if models:
            return models
    return []


def read_colmap(root: Path, images: str | None, test_every: int) -> SourceScene:
    """The COLMAP model of a capture; of several the one with most registered images, and a warning says so.

    Args:
        root: capture folder.
        images: folder of photos relative to ``root``, or None to look for the usual ones.
        test_every: 0 takes the test views from the model's ``test.txt`` when there is one (spec §0).

    Raises:
        UserError: broken or truncated model file, no registered image, no points, NaN pose, fisheye lens.
    """
    models = find_models(root)
    counts = [registered_images(model, _suffix(model) or "bin") for model in models]
    folder = models[int(np.argmax(counts))]
    check_model(folder, _suffix(folder) or "bin")
    warnings = ()
    if len(models) > 1:
        listed = ", ".join(f"{model.name} has {count}" for model, count in zip(models, counts, strict=True))
        warnings = (f"{len(models)} models in {folder.parent}, of images {listed}; using {folder.name}",)
    reconstruction = _reconstruction(folder)
    photos = _photo_folder(root, images)
    test_names = _test_names(folder) if test_every == 0 else None
    ids = sorted(int(image_id) for image_id in reconstruction.reg_image_ids())
    views = [_view(reconstruction.images[image_id], reconstruction, photos, test_names) for image_id in ids]
    points, colours, seen_by, seen_point = _tracks(reconstruction, ids, folder)
    return SourceScene(views, points, colours, seen_by, seen_point, masks_folder=root / "masks",
                       warnings=warnings)


def undistorted_camera(distortion: Distortion) -> tuple[np.ndarray, int, int]:
    """([fx, fy, cx, cy], width, height) in pixels of the pinhole image that ``undistort`` makes."""
    pycolmap = _pycolmap()
    camera = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), _camera(distortion))
    return np.asarray(camera.params, np.float64), int(camera.width), int(camera.height)


def undistort(pixels: np.ndarray, distortion: Distortion) -> np.ndarray:
    """[H, W(, 3)] uint8 pixels of the file → the pinhole image of ``undistorted_camera`` (bilinear)."""
    pycolmap = _pycolmap()
    bitmap = pycolmap.Bitmap.from_array(np.ascontiguousarray(pixels))
    options = pycolmap.UndistortCameraOptions()
    straight, camera = pycolmap.undistort_image(options, bitmap, _camera(distortion))
    return straight.to_array().reshape(camera.height, camera.width, *pixels.shape[2:])


def _pycolmap() -> Any:
    """The module; SIGTERM goes on to end the process quietly, which pycolmap would turn into an abort with a dump."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        import pycolmap

        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    except ImportError as error:
        raise UserError("reading COLMAP models and undistorting photos needs pycolmap; install it, or save "
                        "the scene as .npz on a machine that has it") from error
    return pycolmap


def _camera(distortion: Distortion) -> Any:
    pycolmap = _pycolmap()
    return pycolmap.Camera(model=distortion.model, width=distortion.width, height=distortion.height,
                           params=list(distortion.params))


def _suffix(folder: Path) -> str | None:
    """"bin" or "txt" when the folder holds at least the cameras or the images of a model."""
    for suffix in ("bin", "txt"):
        if any((folder / f"{name}.{suffix}").exists() for name in _MODEL_FILES):
            return suffix
    return None


def _reconstruction(folder: Path) -> Any:
    pycolmap = _pycolmap()
    try:
        return pycolmap.Reconstruction(folder)
    except (ValueError, IndexError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"COLMAP model {folder} cannot be read ({reason}); export the model again") from error


def _photo_folder(root: Path, images: str | None) -> Path:
    if images is not None:
        if not (root / images).is_dir():
            raise UserError(f"folder of photos {root / images} does not exist; give the right --images")
        return root / images
    return next((root / name for name in _PHOTO_FOLDERS if (root / name).is_dir()), root)


def _test_names(folder: Path) -> set[str] | None:
    listing = folder / "test.txt"
    return set(listing.read_text().split("\n")) - {""} if listing.is_file() else None


def _view(image: Any, reconstruction: Any, photos: Path, test_names: set[str] | None) -> SourceView:
    pose: Any = image.cam_from_world  # a method from pycolmap 3.12 on
    pose = pose() if callable(pose) else pose
    view = np.eye(4)
    view[:3] = np.asarray(pose.matrix(), np.float64)
    camera = reconstruction.cameras[image.camera_id]
    lens = Lens(camera.model.name, tuple(float(value) for value in camera.params), int(camera.width),
                int(camera.height))
    role = None if test_names is None else "test" if image.name in test_names else "train"
    return SourceView(image.name, photos / image.name, view, lens, role=role)


def _tracks(reconstruction: Any, ids: list[int], folder: Path
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points by ascending id, their colours, and (view, point) pairs of every observation."""
    entries = sorted(reconstruction.points3D.items())
    if not entries:
        raise UserError(f"COLMAP model {folder} has no points; run the mapper again (or point_triangulator)")
    row_of = {image_id: row for row, image_id in enumerate(ids)}
    points = np.stack([point.xyz for _, point in entries])
    colours = np.stack([point.color for _, point in entries])
    seen = [(row_of.get(element.image_id, -1), row)
            for row, (_, point) in enumerate(entries) for element in point.track.elements]
    pairs = np.asarray(seen, np.int64).reshape(-1, 2)
    if len(pairs) and pairs[:, 0].min() < 0:
        raise UserError(f"COLMAP model {folder} cannot be read (a point's track names a photo that the "
                        "model has no pose of); export the model again")
    return points, colours, pairs[:, 0], pairs[:, 1]
