"""A city-like capture without images: cameras on a lawn-mower grid over ground points, for measuring the
planner.
"""

from __future__ import annotations

import numpy as np

from sched.capture import Capture, make_capture

REACH = 1.75  # half side of a camera's ground footprint, in camera spacings: 12.25 cameras cover a point
SEEN = 0.571  # chance that a camera which covers a point has it in its track: 7 views per track on average
CHUNK = 1 << 20  # points made at a time


def city_capture(images: int, observations: int, seed: int = 0) -> Capture:
    """Tracks of ``images`` views with about ``observations`` each: mean track length 7 (a little less at
    the rim).

    View ids follow the flight line, back and forth; track ids are in random order, as after an SfM
    reconstruction.
    """
    rng = np.random.default_rng((seed, 7))
    side = int(np.ceil(np.sqrt(images)))
    n_points = max(1, images * observations // 7)
    views, tracks = [], []
    for low in range(0, n_points, CHUNK):
        count = min(CHUNK, n_points - low)
        view, point = _sightings(rng, count, side, images)
        views.append(view)
        tracks.append(point + low)
    view, track = np.concatenate(views), np.concatenate(tracks)
    track = rng.permutation(n_points).astype(np.int32)[track]
    order = np.argsort(view.astype(np.int64) * n_points + track)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(view, minlength=images))])
    return make_capture(ptr, track[order], n_points=n_points)


def _sightings(rng: np.random.Generator, count: int, side: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    """(view, point) of every sighting of ``count`` random ground points."""
    place = rng.random((count, 2), np.float32) * (side - 1)
    first = np.ceil(place - REACH).astype(np.int32)
    span = np.arange(int(2 * REACH) + 1)
    column, row = (first[:, axis, None] + span for axis in (0, 1))
    inside = [
        (np.abs(at - place[:, axis, None]) <= REACH) & (at >= 0) & (at < side)
        for axis, at in enumerate((column, row))
    ]
    both = inside[0][:, None, :] & inside[1][:, :, None]
    both &= rng.random(both.shape, np.float32) < SEEN
    point, j, i = np.nonzero(both)
    x, y = column[point, i], row[point, j]
    view = y * side + np.where(y % 2 == 0, x, side - 1 - x)
    real = view < images
    return view[real].astype(np.int32), point[real].astype(np.int32)
