"""Tracks where a source has none: which points fall into the image of which view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splat.scene.source import SourceView

TRACKED_POINTS = 100_000  # at most so many points carry tracks: every n-th, so that a city's pairs fit into memory
_NEAR = 0.2  # world units in front of a camera from which on the renderer draws (spec §1)


def tracks_by_projection(views: Sequence[SourceView], points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (view, point) where the point projects into the view's image; what stands in between is not looked at.

    Args:
        views: V views; lens distortion is ignored, a lens without a size (its photo is missing) sees nothing.
        points: [P, 3] world units. Above ``TRACKED_POINTS`` only every n-th carries tracks, spread over the whole.

    Returns:
        ``(seen_by, seen_point)``: [n] int64 index into ``views`` and [n] int64 row of ``points``.
    """
    rows = np.arange(0, len(points), max(1, -(-len(points) // TRACKED_POINTS)))
    kept = np.asarray(points, np.float64)[rows]
    found = [rows[_inside(view, kept)] for view in views]
    seen_by = np.repeat(np.arange(len(views)), [len(mine) for mine in found])
    return seen_by.astype(np.int64), np.concatenate([*found, np.zeros(0, np.int64)]).astype(np.int64)


def _inside(view: SourceView, points: np.ndarray) -> np.ndarray:
    """[P] bool: in front of the camera and within its image."""
    lens = view.lens
    if lens.width is None or lens.height is None:
        return np.zeros(len(points), bool)
    fx, fy, cx, cy = lens.params[:4]
    with np.errstate(invalid="ignore", over="ignore"):
        x, y, z = view.view[:3, :3] @ points.T + view.view[:3, 3:]
        ahead = z > _NEAR
        depth = np.where(ahead, z, 1.0)
        u, v = fx * x / depth + cx, fy * y / depth + cy
        return ahead & (u >= 0) & (u < lens.width) & (v >= 0) & (v < lens.height)
