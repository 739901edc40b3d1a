"""From a loaded scene to what the scheduler plans with."""

from __future__ import annotations

import numpy as np

from sched.capture import Cameras, Capture, make_capture
from splat.scene.types import Scene


def training_capture(scene: Scene) -> Capture:
    """The tracks, cameras and points of the scene's training views, in the order of ``scene.train``."""
    cameras = Cameras(
        np.stack([photo.view for photo in scene.photos]),
        np.stack([photo.intrinsics for photo in scene.photos]),
        np.array([(photo.width, photo.height) for photo in scene.photos]),
    )
    names = tuple(photo.name for photo in scene.photos)
    whole = make_capture(
        scene.tracks.view_ptr, scene.tracks.point_ids, names=names, cameras=cameras, points=scene.points
    )
    return whole.take(np.asarray(scene.train, np.int64))
