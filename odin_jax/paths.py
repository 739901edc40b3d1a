"""Camera paths for videos: an orbit around what the cameras look at, and a smooth ride along the cameras."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation, Slerp

from splat.cameras import Camera

ONE_WAY = 0.9  # length of the mean viewing axis above which cameras look much the same way
TILT = 0.3  # radius of the circle in front of such cameras, share of the distance


def look_at(eye: np.ndarray, target: np.ndarray, up: np.ndarray) -> np.ndarray:
    """[4, 4] world → camera (x right, y down, z forward) at ``eye``, looking at ``target``."""
    forward = target - eye
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = rotation, -rotation @ eye
    return view


def focus(cameras: Sequence[Camera]) -> np.ndarray:
    """[3] point nearest to all viewing axes (least squares); ahead of the middle where they are parallel."""
    centres, axes = _centres(cameras), _rows(cameras, 2)
    planes = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    system = planes.sum(0)
    if np.linalg.cond(system) > 1e6:
        return centres.mean(0) + axes.mean(0)
    return np.linalg.solve(system, np.einsum("nij,nj->i", planes, centres))


def orbit(cameras: Sequence[Camera], frames: int, points: np.ndarray) -> list[Camera]:
    """A circle around the focus at the cameras' median height and distance, with the first camera's lens.

    Where all cameras look much the same way, as from a plane, there is no going around: the circle then lies in front
    of the middle of what they see, ``TILT`` of its distance wide. ``points`` [n, 3]: of the scene.
    """
    if np.linalg.norm(_rows(cameras, 2).mean(0)) > ONE_WAY:
        return _circle_in_front(cameras, frames, points)
    centres, target = _centres(cameras), focus(cameras)
    up = -_rows(cameras, 1).mean(0)
    up = up / np.linalg.norm(up)
    offsets = centres - target
    height = np.median(offsets @ up)
    radius = np.median(np.linalg.norm(offsets - np.outer(offsets @ up, up), axis=1))
    first = offsets[0] - (offsets[0] @ up) * up
    if np.linalg.norm(first) < 1e-9:
        first = np.cross(up, _rows(cameras, 0)[0])
    first = first / np.linalg.norm(first)
    second = np.cross(up, first)
    eyes = _circle(target + height * up, radius * first, radius * second, frames)
    return [_with_view(cameras[0], look_at(eye, target, up)) for eye in eyes]


def _circle_in_front(cameras: Sequence[Camera], frames: int, points: np.ndarray) -> list[Camera]:
    """A circle of viewpoints beside the middle camera, at the median distance of the points in front of it."""
    forward = _rows(cameras, 2).mean(0)
    forward = forward / np.linalg.norm(forward)
    middle = np.median(_centres(cameras), axis=0)
    ahead = (points - middle) @ forward
    distance = float(np.median(ahead[ahead > 0])) if (ahead > 0).any() else 1.0
    right = np.cross(_rows(cameras, 1)[0], forward)
    right = right / np.linalg.norm(right)
    down, target = np.cross(forward, right), middle + distance * forward
    eyes = _circle(middle, TILT * distance * right, TILT * distance * down, frames)
    return [_with_view(cameras[0], look_at(eye, target, -down)) for eye in eyes]


def _circle(middle: np.ndarray, first: np.ndarray, second: np.ndarray, frames: int) -> list[np.ndarray]:
    """Points [3] on the circle around ``middle`` that starts at ``first`` from it and goes on towards ``second``."""
    angles = np.linspace(0, 2 * np.pi, frames, endpoint=False)
    return [middle + np.cos(angle) * first + np.sin(angle) * second for angle in angles]


def ride(cameras: Sequence[Camera], frames: int) -> list[Camera]:
    """A smooth curve through the cameras in the given order, with the first camera's lens."""
    if len(cameras) < 2:
        return [cameras[0]] * frames
    knots = np.arange(len(cameras), dtype=float)
    times = np.linspace(0, knots[-1], frames)
    turns = Rotation.from_matrix(np.stack([np.asarray(c.view, np.float64)[:3, :3] for c in cameras]))
    rotations = Slerp(knots, turns)(times).as_matrix()
    eyes = CubicSpline(knots, _centres(cameras))(times)
    views = np.tile(np.eye(4), (frames, 1, 1))
    views[:, :3, :3] = rotations
    views[:, :3, 3] = -np.einsum("nij,nj->ni", rotations, eyes)
    return [_with_view(cameras[0], view) for view in views]


def _centres(cameras: Sequence[Camera]) -> np.ndarray:
    views = np.stack([np.asarray(camera.view, np.float64) for camera in cameras])
    return -np.einsum("nji,nj->ni", views[:, :3, :3], views[:, :3, 3])


def _rows(cameras: Sequence[Camera], row: int) -> np.ndarray:
    """[n, 3] one axis of every camera in world coordinates: 0 right, 1 down, 2 forward."""
    return np.stack([np.asarray(camera.view, np.float64)[row, :3] for camera in cameras])


def _with_view(camera: Camera, view: np.ndarray) -> Camera:
    return Camera(view.astype(np.float32), camera.intrinsics, camera.width, camera.height)  # type: ignore[arg-type]
