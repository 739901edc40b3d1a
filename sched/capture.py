"""What the scheduler knows of a capture: SfM tracks, cameras and points, as plain arrays, before any
training.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sched.errors import PlanError


@dataclass(frozen=True)
class Cameras:
    """Pinhole cameras of V views (OpenCV axes, pixel centres at +0.5)."""

    views: np.ndarray  # [V, 4, 4] world → camera
    intrinsics: np.ndarray  # [V, 4] fx, fy, cx, cy in pixels
    sizes: np.ndarray  # [V, 2] width, height in pixels

    @property
    def centres(self) -> np.ndarray:
        """[V, 3] camera centres in world units, −Rᵀ t."""
        return -np.einsum("vji,vj->vi", self.views[:, :3, :3], self.views[:, :3, 3])


@dataclass(frozen=True)
class Capture:
    """Views with their tracks (CSR), and, where known, cameras and SfM points."""

    names: tuple[str, ...]  # one per view, unique
    view_ptr: np.ndarray  # [V + 1] int64, CSR offsets into point_ids
    point_ids: np.ndarray  # [nnz] int32, tracks seen by a view, ascending and unique within the view
    n_points: int  # tracks in all; point_ids lie in 0..n_points − 1
    cameras: Cameras | None = None
    points: np.ndarray | None = None  # [n_points, 3] world units

    @property
    def n_views(self) -> int:
        """Number of views V."""
        return len(self.names)

    def digest(self) -> str:
        """SHA-256 over names, tracks and camera poses: the same at every image resolution."""
        sha = hashlib.sha256("\0".join(self.names).encode())
        sha.update(np.ascontiguousarray(self.view_ptr, "<i8").tobytes())
        sha.update(np.ascontiguousarray(self.point_ids, "<i4").tobytes())
        if self.cameras is not None:
            sha.update(np.ascontiguousarray(self.cameras.views, "<f4").tobytes())
        return sha.hexdigest()

    def take(self, views: np.ndarray) -> Capture:
        """The same capture with only ``views`` (indices, in that order), such as the training views."""
        views = np.asarray(views, np.int64)
        lengths = np.diff(self.view_ptr)[views]
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        where = np.repeat(self.view_ptr[views] - ptr[:-1], lengths) + np.arange(ptr[-1])
        cameras = self.cameras and Cameras(
            self.cameras.views[views], self.cameras.intrinsics[views], self.cameras.sizes[views]
        )
        names = tuple(self.names[i] for i in views)
        return Capture(names, ptr, self.point_ids[where], self.n_points, cameras, self.points)


def make_capture(
    view_ptr: np.ndarray,
    point_ids: np.ndarray,
    *,
    names: tuple[str, ...] | None = None,
    n_points: int | None = None,
    cameras: Cameras | None = None,
    points: np.ndarray | None = None,
) -> Capture:
    """Check the arrays of a capture and put the tracks of each view in ascending order without repeats.

    ``view_ptr`` [V + 1], ``point_ids`` [nnz]; a view may have no tracks. Raises ``PlanError`` for anything
    that is no CSR, for ids out of range, for repeated names and for arrays whose lengths disagree.
    """
    ptr, ids = np.asarray(view_ptr), np.asarray(point_ids)
    if ptr.ndim != 1 or len(ptr) < 2 or ids.ndim != 1:
        raise PlanError(
            "tracks: view_ptr needs one entry per view plus one, and point_ids one dimension; "
            f"got shapes {ptr.shape} and {ids.shape}"
        )
    if ptr.dtype.kind not in "iu" or (ids.dtype.kind not in "iu" and len(ids)):
        raise PlanError(f"tracks: view_ptr and point_ids must be integers, not {ptr.dtype} and {ids.dtype}")
    ptr = ptr.astype(np.int64)
    if ptr[0] != 0 or ptr[-1] != len(ids) or np.any(np.diff(ptr) < 0):
        raise PlanError(f"tracks: view_ptr must rise from 0 to {len(ids)}, the length of point_ids")
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
    count = len(points) if points is not None else n_points if n_points is not None else high + 1
    if low < 0 or high >= count:
        raise PlanError(f"tracks: point id {low if low < 0 else high} is outside 0..{count - 1}")
    views = len(ptr) - 1
    names = names if names is not None else tuple(f"view{i}" for i in range(views))
    _check_lengths(views, names, cameras)
    ptr, ids = _ascending(ptr, ids.astype(np.int32, copy=False))
    return Capture(tuple(names), ptr, ids, int(count), cameras, points)


def load_tracks(path: str | Path) -> Capture:
    """Read ``.npz`` with ``view_ptr``, ``point_ids`` and, if present, ``names``. Raises ``PlanError``."""
    try:
        with np.load(path, allow_pickle=False) as data:
            missing = [key for key in ("view_ptr", "point_ids") if key not in data]
            if missing:
                raise PlanError(
                    f"{path}: has no array {missing[0]}; write the tracks as view_ptr and point_ids"
                )
            names = tuple(str(name) for name in data["names"]) if "names" in data else None
            arrays = data["view_ptr"], data["point_ids"]
    except (OSError, ValueError, EOFError) as error:
        raise PlanError(f"{path}: cannot be read as .npz ({error})") from error
    try:
        return make_capture(*arrays, names=names)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _check_lengths(views: int, names: tuple[str, ...], cameras: Cameras | None) -> None:
    if len(names) != views:
        raise PlanError(f"tracks: {views} views but {len(names)} names")
    if len(set(names)) != views:
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise PlanError(f"tracks: the view name {repeated!r} appears twice; names must be unique")
    if (
        cameras is not None
        and not len(cameras.views) == len(cameras.intrinsics) == len(cameras.sizes) == views
    ):
        raise PlanError(f"cameras: {len(cameras.views)} cameras for {views} views")


def _ascending(ptr: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort the ids within each view and drop repeats; does nothing where that already holds."""
    if len(ids) < 2:
        return ptr, ids
    rises = np.diff(ids) > 0
    starts = ptr[(ptr > 0) & (ptr < len(ids))]
    rises[starts - 1] = True
    if rises.all():
        return ptr, ids
    view = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    order = np.lexsort((ids, view))
    view, ids = view[order], ids[order]
    fresh = np.append(True, (np.diff(view) > 0) | (np.diff(ids) > 0))
    counts = np.bincount(view[fresh], minlength=len(ptr) - 1)
    return np.concatenate([[0], np.cumsum(counts)]), ids[fresh]
