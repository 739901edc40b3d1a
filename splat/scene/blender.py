"""NeRF-synthetic (Blender) scenes: transforms_train.json, transforms_test.json and RGBA renders."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from splat.io.ply import read_points
from splat.scene.nerfstudio import angle_of, lens_by_angle, no_points, photo_path, pose_of, read_json
from splat.scene.source import SourceScene, SourceView

_HALF_SIDE = 1.3  # world units, random start of the synthetic set (spec §0.1)


def is_blender(path: Path) -> bool:
    """Whether ``path`` is the folder of a NeRF-synthetic scene."""
    return (path / "transforms_train.json").is_file()


def read_blender(root: Path) -> SourceScene:
    """Training and test views of a NeRF-synthetic scene, and ``points3d.ply`` if there is one.

    The validation views are not used, as in the reference.

    Raises:
        UserError: malformed JSON, no field of view, or a pose that is not one.
    """
    views = _read_split(root, "train")
    if (root / "transforms_test.json").is_file():
        views += _read_split(root, "test")
    cloud = root / "points3d.ply"
    points, colours = read_points(cloud) if cloud.is_file() else no_points()
    return SourceScene(views, points, colours, random_half_side=_HALF_SIDE, masks_folder=root / "masks")


def _read_split(root: Path, role: Literal["train", "test"]) -> list[SourceView]:
    listing = root / f"transforms_{role}.json"
    data = read_json(listing)
    angle = angle_of(data, "camera_angle_x", listing)
    views = []
    for number, frame in enumerate(data["frames"]):
        path = photo_path(root, frame, listing, number)
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
        views.append(SourceView(name, path, pose_of(frame, listing, number), lens_by_angle(path, angle, None),
                                role=role))
    return views
