"""A ball of surfels by the pipeline of 2DGS: its depth, the picture of its normals, and its mesh."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from odin_jax.depth_pictures import normal_picture
from odin_jax.evaluate import Drawer
from splat import Camera
from splat.fusion import empty_volume, integrate, surface
from splat.gaussians import Gaussians
from splat.pipelines.gs2d import Gs2d
from splat.pipelines.gs2d_config import Gs2dConfig
from splat.sh import C0
from splat.surfel.losses import surface_normals

RADIUS, AWAY, SIZE, FOCAL = 0.5, 2.0, 96, 100.0
ROWS, SIGMA = 1500, 0.03
WAYS = [np.asarray(way) / np.linalg.norm(way) for way in itertools.product((-1, 0, 1), repeat=3)
        if np.count_nonzero(way) in (1, 3)]  # to the sides and corners of a cube
BACKWARD = np.array([0.0, 0.0, 1.0])
X, Y = np.meshgrid(*[(np.arange(SIZE) + 0.5 - SIZE / 2) / FOCAL] * 2)
MIDDLE = np.hypot(X, Y) < 0.5 * RADIUS / AWAY  # half of the ball's radius


def camera(forward: np.ndarray) -> Camera:
    """From ``AWAY`` before the middle of the ball, which it looks at."""
    right = np.cross(forward, [0.3, -0.5, 0.8])
    right /= np.linalg.norm(right)
    view = np.eye(4, dtype=np.float32)
    view[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    view[2, 3] = AWAY
    return Camera(jnp.asarray(view), jnp.asarray([FOCAL, FOCAL, SIZE / 2, SIZE / 2]), SIZE, SIZE)


def ball(near_half: bool = False) -> Gaussians:
    """Nearly opaque disks, evenly on the sphere, the third axis of each outwards; colours are positions.

    ``near_half``: only those on the side of a camera that looks along ``BACKWARD``.
    """
    height = 1 - (2 * np.arange(ROWS) + 1) / ROWS
    around, turn = np.sqrt(1 - height**2), np.arange(ROWS) * np.pi * (3 - 5**0.5)
    out = np.stack([around * np.cos(turn), around * np.sin(turn), height], 1)
    out = out[out @ BACKWARD < 0] if near_half else out
    rows = len(out)
    quats = np.stack([1 + out[:, 2], -out[:, 1], out[:, 0], np.zeros(rows)], 1)
    fields = (RADIUS * out, np.full((rows, 2), np.log(SIGMA)), quats, np.full(rows, 4.0), RADIUS * out / C0,
              np.zeros((rows, 15, 3)))
    return Gaussians(*(jnp.asarray(field, jnp.float32) for field in fields))


def drawer(depth_ratio: float, near_half: bool = False) -> Drawer:
    pipeline = Gs2d(Gs2dConfig(depth_ratio=depth_ratio))
    return Drawer(pipeline.surface, ball(near_half), np.zeros(3, np.float32))


def true_depths() -> tuple[np.ndarray, np.ndarray]:
    """[H, W] depths at which the ray of a pixel enters and leaves the ball; only for those in the middle."""
    length = X**2 + Y**2 + 1
    root = np.sqrt(np.maximum(AWAY**2 - length * (AWAY**2 - RADIUS**2), 0))
    return (AWAY - root) / length, (AWAY + root) / length


def tilts(depth: jax.Array, seen_by: Camera) -> np.ndarray:
    """Degrees between the normals of a depth map and those of the ball, of the pixels in the middle."""
    near = true_depths()[0]
    out = np.stack([X * near, Y * near, near - AWAY], -1) / RADIUS
    cosines = np.sum(np.asarray(surface_normals(depth, seen_by)) * out, -1)
    return np.degrees(np.arccos(np.clip(cosines[MIDDLE], -1, 1)))


@pytest.mark.parametrize(("depth_ratio", "near_half"), [(1.0, False), (0.0, True)])
def test_the_middle_of_a_ball_faces_the_camera(depth_ratio, near_half):
    """In the median depth, and in the mean depth where nothing lies behind."""
    seen_by = camera(BACKWARD)
    _, depth = drawer(depth_ratio, near_half)(seen_by)
    picture = normal_picture(depth, seen_by).astype(int)
    middle = picture[SIZE // 2 - 1 : SIZE // 2 + 1, SIZE // 2 - 1 : SIZE // 2 + 1].reshape(-1, 3)
    assert np.all(middle[:, 2] >= 250) and np.all(np.abs(middle[:, :2] - 128) <= 16)
    assert np.all(np.abs(np.asarray(depth) - true_depths()[0])[MIDDLE] < 0.02)
    assert np.median(tilts(depth, seen_by)) < 4
    assert picture[SIZE // 2, SIZE // 2 - 18, 0] < 70 < 185 < picture[SIZE // 2, SIZE // 2 + 17, 0]  # left and right
    assert picture[SIZE // 2 - 18, SIZE // 2, 1] > 185 > 70 > picture[SIZE // 2 + 17, SIZE // 2, 1]  # above and below
    assert not picture[0].any()


def test_the_mean_depth_lies_behind_the_surface_by_what_the_far_side_shines_through():
    """A share 1 − α of the light passes the near side: that is why normals of the mean depth are tilted."""
    seen_by = camera(BACKWARD)
    _, whole = drawer(0.0)(seen_by)
    _, near = drawer(0.0, near_half=True)(seen_by)
    passing = 1 - Gs2d(Gs2dConfig()).maps(ball(near_half=True), seen_by, jnp.zeros(3), 1 << 16).alpha
    enters, leaves = true_depths()
    behind, expected = np.asarray(whole - near)[MIDDLE], (np.asarray(passing) * (leaves - enters))[MIDDLE]
    np.testing.assert_allclose(behind, expected, rtol=0.05, atol=5e-3)
    assert behind.mean() == pytest.approx(expected.mean(), rel=0.05) and behind.mean() > 0.01
    assert np.median(tilts(whole, seen_by)) > 3 * np.median(tilts(near, seen_by))


@pytest.mark.parametrize("depth_ratio", [0.0, 1.0])
def test_the_mesh_of_a_ball_is_closed_and_close_to_it(depth_ratio):
    """Seen from 14 sides: each edge in two triangles, vertices within two voxels of the sphere, and no handles.

    Handles are looked for in the median depth alone: at an outline the mean depth mixes near and far sides.
    """
    draw, volume = drawer(depth_ratio), empty_volume(np.full(3, -0.7), np.full(3, 0.7), 40)
    for way in WAYS:
        seen_by = camera(way)
        image, depth = draw(seen_by)
        volume = integrate(volume, seen_by, depth, image)
    mesh = surface(volume, keep=1)
    edges = np.sort(np.concatenate([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]]), axis=1)
    edges, triangles = np.unique(edges, axis=0, return_counts=True)
    assert np.all(triangles == 2)
    if depth_ratio == 1:
        assert len(mesh.vertices) - len(edges) + len(mesh.faces) == 2  # Euler's number of a sphere
    away = np.abs(np.linalg.norm(mesh.vertices, axis=1) - RADIUS) / float(volume.voxel)
    assert away.max() < 2 and away.mean() < 0.3
    assert np.abs(mesh.colours / 255 - (0.5 + mesh.vertices)).mean() < 0.03
