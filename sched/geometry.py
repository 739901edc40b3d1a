"""Geometry locality (paper §2.1): what a view may touch, from cameras and SfM points alone, before
training.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sched.capture import Cameras
from sched.rlg import Rlg, incidence_rlg
from sched.rowsets import pack, unpack

MARGIN = 0.05  # of the image's width and height on each side: primitives have a footprint around their centre
NEAR = 0.2  # world units, the renderer's near plane
CHUNK = 1 << 24  # view-point pairs tested at a time


def in_frusta(
    cameras: Cameras, points: np.ndarray, *, margin: float = MARGIN, near: float = NEAR, radius: float = 0.0
) -> np.ndarray:
    """Packed rows [V, W] of the ``points`` [P, 3] that lie in each view's frustum.

    The frustum is widened by ``margin`` of the image on each side and by spheres of ``radius`` world units
    around the points; it has no far plane.
    """
    step = max(1, CHUNK // max(len(points), 1))
    return np.concatenate(
        [
            _frusta(cameras, points, slice(low, low + step), margin, near, radius)
            for low in range(0, len(cameras.views), step)
        ]
    )


def _frusta(
    cameras: Cameras, points: np.ndarray, part: slice, margin: float, near: float, radius: float
) -> np.ndarray:
    view, focal = cameras.views[part], cameras.intrinsics[part, :2]
    x, y, z = np.moveaxis(np.einsum("vij,pj->vip", view[:, :3, :3], points) + view[:, :3, 3:], 1, 0)
    inside = z > near - radius
    depth = np.maximum(z, near)
    for axis, along in enumerate((x, y)):
        size, centre = cameras.sizes[part, axis], cameras.intrinsics[part, 2 + axis]
        slack = (margin * size)[:, None] + radius * focal[:, axis, None] / depth
        pixel = focal[:, axis, None] * along / depth + centre[:, None]
        inside &= (pixel > -slack) & (pixel < size[:, None] + slack)
    return pack(inside)


def owner_cells(points: np.ndarray, per_axis: int = 32) -> tuple[np.ndarray, float]:
    """(centres [C, 3], radius) of the occupied cells of a cubic grid, ``per_axis`` cells along the longest
    side.

    The grid spans the 1st to 99th percentile of the points; points outside belong to the nearest border cell.
    """
    low, high = np.percentile(points, [1, 99], axis=0)
    side = max(float((high - low).max()) / per_axis, 1e-9)
    last = np.maximum(np.ceil((high - low) / side) - 1, 0)
    cells = np.unique(np.clip(np.floor((points - low) / side), 0, last), axis=0)
    return low + (cells + 0.5) * side, side * np.sqrt(3) / 2


def geometry_rlg(cameras: Cameras, points: np.ndarray, *, top_k: int = 16, per_axis: int = 32) -> Rlg:
    """The geometry-based graph (§4.1.1): Jaccard similarity of the owner-region cells that two frusta
    meet.
    """
    centres, radius = owner_cells(points, per_axis)
    seen = unpack(in_frusta(cameras, centres, radius=radius), len(centres))
    return incidence_rlg(sparse.csr_array(seen, dtype=np.int32), "geometry", top_k=top_k)
