"""``cameras.json``: the list of cameras that viewers of 3DGS scenes read (spec §6.6 names the file)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from odin_jax.runs import read_json, write_json
from splat.cameras import Camera
from splat.errors import UserError
from splat.finite import check_camera
from splat.scene.types import Photo, Scene


def entry(index: int, photo: Photo, split: str) -> dict[str, Any]:
    """One camera: position, camera → world rotation (rows), focal lengths; beyond the format: the centre."""
    fx, fy, cx, cy = (float(value) for value in photo.intrinsics)
    return {
        "id": index,
        "img_name": photo.name,
        "width": photo.width,
        "height": photo.height,
        "position": [float(value) for value in photo.centre],
        "rotation": photo.view[:3, :3].T.tolist(),
        "fy": fy,
        "fx": fx,
        "cx": cx,
        "cy": cy,
        "split": split,
    }


def write(path: Path, scene: Scene) -> None:
    """All cameras of a scene at training size, training and test views alike."""
    test = set(scene.test)
    write_json(
        path,
        [
            entry(index, photo, "test" if index in test else "train")
            for index, photo in enumerate(scene.photos)
        ],
    )


def read(path: Path, split: str | None = None) -> list[tuple[str, Camera]]:
    """(name, camera) of every entry, or of those of one split ("train", "test").

    Files of other trainers have neither centres nor splits: the image's centre is taken, and all are training
    views.

    Raises UserError when the file is missing or an entry lacks a field.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: an imported scene has no cameras, it can be viewed and exported; to "
                        "render, give the folder that was written with `odin train --out`")
    found = []
    for number, item in enumerate(read_json(path, list)):
        try:
            if split is not None and item.get("split", "train") != split:
                continue
            rotation = np.asarray(item["rotation"], np.float64).T
            view = np.eye(4)
            view[:3, :3] = rotation
            view[:3, 3] = -rotation @ np.asarray(item["position"], np.float64)
            width, height = int(item["width"]), int(item["height"])
            centre = (item.get("cx", width / 2), item.get("cy", height / 2))
            intrinsics = np.asarray([item["fx"], item["fy"], *centre], np.float32)
            camera = Camera(view.astype(np.float32), intrinsics, width, height)  # type: ignore[arg-type]
            check_camera(camera)
            found.append((_inside(item["img_name"]), camera))
        except UserError as error:
            raise UserError(f"{path}: camera number {number}: {error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{path}: camera number {number} is broken ({error!r}); train again") from error
    return found


def _inside(name: Any) -> str:
    """A photo's name, which becomes a file below a folder of renders."""
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"img_name {name} leads out of the folder of renders; rename it")
    return str(name)
