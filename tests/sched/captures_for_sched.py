"""Small captures for the scheduler's tests, and hypothesis strategies that draw them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sched.capture import Cameras, Capture, make_capture


def capture_of(sets: list[set[int]], n_points: int | None = None) -> Capture:
    """A capture whose view i sees the tracks ``sets[i]``."""
    ptr = np.concatenate([[0], np.cumsum([len(s) for s in sets])])
    ids = np.array([t for s in sets for t in sorted(s)], np.int32)
    return make_capture(ptr, ids, n_points=n_points)


def flight(n_views: int, seed: int = 0, n_points: int = 400, reach: float = 1.0) -> Capture:
    """Nadir cameras at height 2 and random places over a square of ground points, and what they see."""
    rng = np.random.default_rng(seed)
    side = np.sqrt(n_views)
    ground = np.c_[rng.uniform(-1, side + 1, (n_points, 2)), np.zeros(n_points)]
    places = rng.uniform(0, side, (n_views, 2))
    views = np.tile(np.diag([1.0, -1.0, -1.0, 1.0]), (n_views, 1, 1))  # looks down: z forward is world −z
    views[:, 0, 3], views[:, 1, 3], views[:, 2, 3] = -places[:, 0], places[:, 1], 2.0
    focal = 50 * 2.0 / reach
    cameras = Cameras(views, np.tile([focal, focal, 50.0, 50.0], (n_views, 1)), np.full((n_views, 2), 100))
    near = np.abs(ground[None, :, :2] - places[:, None]).max(-1) < reach
    sets = [set(np.flatnonzero(row & (rng.random(n_points) < 0.7)).tolist()) for row in near]
    ptr = np.concatenate([[0], np.cumsum([len(s) for s in sets])])
    ids = np.array([t for s in sets for t in sorted(s)], np.int32)
    return make_capture(ptr, ids, cameras=cameras, points=ground)


@st.composite
def track_sets(draw: st.DrawFn, most_views: int = 24, most_tracks: int = 12) -> list[set[int]]:
    """Any tracks: views without tracks, views alike and disconnected views included."""
    tracks = st.sets(st.integers(0, most_tracks - 1), max_size=most_tracks)
    return draw(st.lists(tracks, min_size=1, max_size=most_views))
