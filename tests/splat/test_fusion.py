"""Depth maps of a known shape become its surface, as a mesh that a reader opens."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from plyfile import PlyData

from splat import Camera
from splat.errors import UserError
from splat.fusion import empty_volume, integrate, surface
from splat.io.mesh import write_mesh

RADIUS, AWAY, SIZE = 0.5, 2.0, 96
LOW, HIGH = np.full(3, -0.7), np.array([0.7, 0.7, 0.75])


def cameras() -> list[Camera]:
    """Fourteen cameras around the origin, looking at it from the sides and corners of a cube.

    From the sides alone the ball is seen at 55 degrees at best towards a corner, and holes are left there.
    """
    found = []
    for way in itertools.product((-1, 0, 1), repeat=3):
        if np.count_nonzero(way) in (1, 3):
            forward = np.asarray(way) / np.linalg.norm(way)
            right = np.cross(forward, [0.3, -0.5, 0.8])
            right /= np.linalg.norm(right)
            view = np.eye(4, dtype=np.float32)
            view[:3, :3] = np.stack([right, np.cross(forward, right), forward])
            view[2, 3] = AWAY
            found.append(Camera(jnp.asarray(view), jnp.asarray([100.0, 100.0, SIZE / 2, SIZE / 2]), SIZE, SIZE))
    return found


def ball(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """(depth [H, W], image [H, W, 3]) of a ball at the origin whose colour is its position."""
    x, y = np.meshgrid((np.arange(SIZE) + 0.5 - SIZE / 2) / 100, (np.arange(SIZE) + 0.5 - SIZE / 2) / 100)
    rays = np.stack([x, y, np.ones_like(x)], -1)
    a, b = np.sum(rays**2, -1), -rays[..., 2] * AWAY
    root = b * b - a * (AWAY**2 - RADIUS**2)
    depth = np.where(root > 0, (-b - np.sqrt(np.maximum(root, 0))) / a, 0)
    turn, shift = np.asarray(camera.view)[:3, :3], np.asarray(camera.view)[:3, 3]
    points = (rays * depth[..., None] - shift) @ turn
    return depth.astype(np.float32), (0.5 + points).astype(np.float32)


@pytest.fixture(scope="module")
def volume():
    made = empty_volume(LOW, HIGH, 64)
    for camera in cameras():
        made = integrate(made, camera, *map(jnp.asarray, ball(camera)))
    return made


def test_a_ball_becomes_a_closed_sphere_that_looks_outwards_in_its_colours(volume):
    mesh = surface(volume, keep=1)
    radii = np.linalg.norm(mesh.vertices, axis=1)
    assert np.abs(radii - RADIUS).max() < 1.5 * float(volume.voxel)
    assert np.abs(radii - RADIUS).mean() < 0.25 * float(volume.voxel)
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    enclosed = np.sum(np.cross(corners[:, 0], corners[:, 1]) * corners[:, 2]) / 6
    assert enclosed == pytest.approx(4 / 3 * np.pi * RADIUS**3, rel=0.03)
    edges = np.sort(np.concatenate([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]]), axis=1)
    assert np.all(np.unique(edges, axis=0, return_counts=True)[1] == 2)
    assert np.abs(mesh.colours / 255 - (0.5 + mesh.vertices)).max() < 0.12


def test_only_the_largest_pieces_are_kept(volume):
    """A second ball, seen by one camera only, is an open shell of fewer faces."""
    speck = volume.replace(distance=volume.distance.at[2:4, 2:4, 2:4].set(-1.0),
                           weight=volume.weight.at[1:5, 1:5, 1:5].set(1.0))
    one, both = surface(speck, keep=1), surface(speck, keep=2)
    assert len(both.faces) > len(one.faces) and len(both.vertices) > len(one.vertices)
    np.testing.assert_array_equal(one.vertices, surface(volume, keep=1).vertices)


def test_the_file_holds_the_mesh(volume, tmp_path):
    mesh = surface(volume, keep=1)
    write_mesh(mesh, tmp_path / "ball.ply")
    read = PlyData.read(str(tmp_path / "ball.ply"))
    vertices = read["vertex"].data
    np.testing.assert_array_equal(np.stack([vertices[name] for name in "xyz"], 1), mesh.vertices)
    np.testing.assert_array_equal(np.stack([vertices[name] for name in ("red", "green", "blue")], 1), mesh.colours)
    np.testing.assert_array_equal(np.stack(read["face"].data["vertex_indices"]), mesh.faces)


def test_what_cannot_work_is_said():
    with pytest.raises(UserError, match="at least 8"):
        empty_volume(LOW, HIGH, 4)
    with pytest.raises(UserError, match="no volume"):
        empty_volume(LOW, LOW, 64)
    with pytest.raises(UserError, match="no surface"):
        surface(empty_volume(LOW, HIGH, 16), keep=1)
