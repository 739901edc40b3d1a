"""MatrixCity's layout: transforms_train.json, transforms_test.json and a PLY of points, whole or in blocks.

The dataset's own listings come in two kinds. Those of its ``pose`` folders hold ``transform_matrix`` in units of 100
metres beside ``fl_x`` and ``w``; the raw ones hold ``rot_mat``, whose rotation is divided by 100 and whose position is
in metres, beside ``frame_index`` and ``camera_angle_x``. Both are camera → world in OpenGL axes; here both end in units
of 100 metres, and the points are expected in the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from splat.errors import UserError
from splat.io.ply import read_points
from splat.scene.nerfstudio import lens_of, no_points, photo_path, pose_of, read_json
from splat.scene.source import SourceScene, SourceView
from splat.scene.visible import tracks_by_projection

ROWS = "gaussians.ply"  # trained rows that a block may bring beside its points
_TRAIN, _TEST = "transforms_train.json", "transforms_test.json"
_OWN_KEYS = (b'"fl_x"', b'"rot_mat"')  # which a Blender scene's listing does not have
_BLENDER_POINTS = "points3d.ply"
_RAW = 100.0  # a raw rotation is divided by it; a raw position in metres is so many times ours


def is_matrixcity(path: Path) -> bool:
    """Whether ``path`` is a folder of MatrixCity's layout or one of blocks of it.

    A Blender scene lists its views in the same files, but without focal lengths and points of another name.
    """
    if blocks_in(path):
        return True
    listing = path / _TRAIN
    if not listing.is_file():
        return False
    if any(file.name != _BLENDER_POINTS for file in path.glob("*.ply")):
        return True
    data = listing.read_bytes()
    return any(key in data for key in _OWN_KEYS)


def blocks_in(path: Path) -> list[Path]:
    """The folders ``block_*`` in ``path``, by name; none where no one of them lists views.

    Raises:
        UserError: some list views and one does not.
    """
    if not path.is_dir():
        return []
    folders = sorted(folder for folder in path.glob("block_*") if folder.is_dir())
    listed = [(folder / _TRAIN).is_file() for folder in folders]
    if not any(listed):
        return []
    if not all(listed):
        raise UserError(f"block {folders[listed.index(False)]} has no {_TRAIN}, other blocks beside it do; "
                        "complete it or move it away")
    return folders


def read_matrixcity(path: Path) -> SourceScene:
    """Views, points and derived tracks of one dataset, or of all blocks, their names behind ``BLOCK/``.

    Raises:
        UserError: malformed JSON, no intrinsics, a pose that is not one, more than one PLY of points.
    """
    blocks = blocks_in(path)
    parts = [_read_views(folder, f"{folder.name}/") for folder in blocks] or [_read_views(path, "")]
    clouds = [block_points(folder) for folder in blocks or [path]]
    points, colours = (np.concatenate(columns) for columns in zip(*clouds, strict=True))
    views = [view for part in parts for view in part]
    seen_by, seen_point = tracks_by_projection(views, points)
    lacking = [folder.name for folder in blocks or [path] if not (folder / _TEST).is_file()]
    warnings = (f"no {_TEST} in {', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}; no view there tests",)
    return SourceScene(views, points, colours, seen_by, seen_point, masks_folder=path / "masks",
                       warnings=warnings if lacking else ())


def block_points(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """([P, 3] float64 positions, [P, 3] uint8 colours) of the one PLY of points in ``folder``; none without one.

    Raises:
        UserError: more than one PLY besides ``gaussians.ply``, or a broken one.
    """
    cloud = points_file(folder)
    return no_points() if cloud is None else read_points(cloud)


def points_file(folder: Path) -> Path | None:
    """The one PLY of points in ``folder``, or None. Raises UserError for several."""
    clouds = sorted(file for file in folder.glob("*.ply") if file.name != ROWS)
    if len(clouds) > 1:
        raise UserError(f"{folder} holds {len(clouds)} PLY files of points ({clouds[0].name}, {clouds[1].name}); "
                        "keep the one to start from")
    return clouds[0] if clouds else None


def _read_views(root: Path, prefix: str) -> list[SourceView]:
    views = _read_split(root, "train", prefix)
    return views + _read_split(root, "test", prefix) if (root / _TEST).is_file() else views


def _read_split(root: Path, role: Literal["train", "test"], prefix: str) -> list[SourceView]:
    listing = root / f"transforms_{role}.json"
    data = read_json(listing)
    views = []
    for number, frame in enumerate(data["frames"]):
        frame = _named(frame)
        photo = photo_path(root, frame, listing, number)
        views.append(SourceView(prefix + _name(photo, root), photo, _pose(frame, listing, number),
                                lens_of(data | frame, photo, listing), role=role))
    return views


def _named(frame: dict[str, Any]) -> dict[str, Any]:
    """A raw frame has a number in place of a file name: 7 is 0007.png."""
    index = frame.get("frame_index")
    return {"file_path": f"{index:04d}.png", **frame} if isinstance(index, int) else frame


def _pose(frame: dict[str, Any], listing: Path, number: int) -> np.ndarray:
    """[4, 4] float64 world → camera; ``rot_mat`` is used where there is no ``transform_matrix``."""
    if "transform_matrix" in frame or "rot_mat" not in frame:
        return pose_of(frame, listing, number)
    try:
        matrix = np.array(frame["rot_mat"], np.float64)
    except (TypeError, ValueError):
        return pose_of(frame, listing, number, "rot_mat")
    if matrix.shape in ((3, 4), (4, 4)) and np.linalg.norm(matrix[:3, 0]) < 0.5:
        matrix[:3, :3] *= _RAW
        matrix[:3, 3] /= _RAW
    return pose_of({**frame, "rot_mat": matrix}, listing, number, "rot_mat")


def _name(photo: Path, root: Path) -> str:
    """The photo's path below ``root``, or without the steps that lead out of it: listings of blocks share photos."""
    relative = photo.relative_to(root) if photo.is_relative_to(root) else photo.relative_to(photo.anchor)
    return "/".join(part for part in relative.parts if part not in ("..", "."))
