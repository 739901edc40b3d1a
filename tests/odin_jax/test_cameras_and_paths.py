"""cameras.json as viewers read it, and camera paths made from it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from captures import pose, write_capture

from odin_jax import cameras_json, paths
from splat.cameras import Camera
from splat.errors import UserError
from splat.scene.load import load_scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return load_scene(write_capture(tmp_path_factory.mktemp("capture") / "capture"))


@pytest.fixture
def cameras(scene, tmp_path):
    cameras_json.write(tmp_path / "cameras.json", scene)
    return [camera for _, camera in cameras_json.read(tmp_path / "cameras.json")]


def test_cameras_survive_the_file(scene, cameras):
    assert len(cameras) == len(scene.photos)
    for photo, camera in zip(scene.photos, cameras, strict=True):
        np.testing.assert_allclose(camera.view, photo.view, atol=1e-6)
        np.testing.assert_allclose(camera.intrinsics, photo.intrinsics, rtol=1e-6)
        assert (camera.width, camera.height) == (photo.width, photo.height)


def test_an_entry_is_what_viewers_expect(scene, tmp_path):
    cameras_json.write(tmp_path / "cameras.json", scene)
    entry = json.loads((tmp_path / "cameras.json").read_text())[3]
    to_world = pose(3 / 12) @ np.diag([1.0, -1.0, -1.0, 1.0])
    np.testing.assert_allclose(entry["position"], to_world[:3, 3], atol=1e-6)
    np.testing.assert_allclose(entry["rotation"], to_world[:3, :3], atol=1e-6)
    assert {"id", "img_name", "width", "height", "fx", "fy"} <= set(entry)


def test_splits_are_kept_and_other_trainers_files_are_all_training_views(scene, tmp_path):
    path = tmp_path / "cameras.json"
    cameras_json.write(path, scene)
    assert len(cameras_json.read(path, "test")) == len(scene.test)
    entries = json.loads(path.read_text())
    for entry in entries:
        for name in ("split", "cx", "cy"):
            del entry[name]
    path.write_text(json.dumps(entries))
    read = cameras_json.read(path, "train")
    assert len(read) == len(entries)
    assert float(read[0][1].intrinsics[2]) == entries[0]["width"] / 2


def test_a_broken_entry_is_named(tmp_path):
    (tmp_path / "cameras.json").write_text('[{"img_name": "a"}]')
    with pytest.raises(UserError, match="camera number 0"):
        cameras_json.read(tmp_path / "cameras.json")


def centre_and_axis(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    view = np.asarray(camera.view, np.float64)
    return -view[:3, :3].T @ view[:3, 3], view[2, :3]


def test_an_orbit_circles_the_focus_and_looks_at_it(cameras):
    np.testing.assert_allclose(paths.focus(cameras), [0, 0, 0], atol=1e-5)
    frames = paths.orbit(cameras, 16, np.zeros((1, 3)))
    assert len(frames) == 16
    for camera in frames:
        centre, axis = centre_and_axis(camera)
        np.testing.assert_allclose(centre[2], 1.0, atol=1e-4)
        np.testing.assert_allclose(np.hypot(*centre[:2]), 4.0, atol=1e-4)
        np.testing.assert_allclose(np.cross(axis, centre / np.linalg.norm(centre)), 0, atol=1e-4)
        rotation = np.asarray(camera.view, np.float64)[:3, :3]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-5)
        assert np.linalg.det(rotation) > 0.99


def test_a_ride_passes_through_every_camera(cameras):
    frames = paths.ride(cameras, (len(cameras) - 1) * 5 + 1)
    for index, camera in enumerate(cameras):
        np.testing.assert_allclose(frames[5 * index].view, camera.view, atol=1e-4)


def test_parallel_cameras_have_a_focus_ahead_of_them():
    view = np.eye(4, dtype=np.float32)
    aside = view.copy()
    aside[0, 3] = -2.0
    lens = np.array([50, 50, 24, 16], np.float32)
    both = [Camera(view, lens, 48, 32), Camera(aside, lens, 48, 32)]
    assert paths.focus(both)[2] > 0
    assert all(np.isfinite(camera.view).all() for camera in paths.orbit(both, 8, np.zeros((0, 3))))


def test_over_a_capture_that_looks_straight_down_the_orbit_stays_above_and_looks_at_the_ground():
    lens, rng = np.array([50, 50, 24, 16], np.float32), np.random.default_rng(0)
    ground = np.concatenate([rng.uniform(-30, 30, (200, 2)), rng.uniform(-1, 1, (200, 1))], 1)
    down = []
    for x in range(-20, 21, 5):
        view = paths.look_at(np.array([x, 3.0, 40.0]), np.array([x + 0.5, 3.0, 0.0]), np.array([0, 1.0, 0]))
        down.append(Camera(view.astype(np.float32), lens, 48, 32))
    for camera in paths.orbit(down, 8, ground):
        centre, axis = centre_and_axis(camera)
        assert 30 < centre[2] < 50
        hit = centre - axis * (centre[2] / axis[2])
        np.testing.assert_allclose(hit, [0, 3, 0], atol=1.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"width": 0}, "number 2.*0x48 pixels"), ({"position": [float("nan")] * 3}, "number 2.*not finite"),
     ({"fx": "a"}, "number 2 is broken")],
)
def test_a_camera_that_cannot_be_rendered_is_named(scene, tmp_path, change, words):
    path = tmp_path / "cameras.json"
    cameras_json.write(path, scene)
    entries = json.loads(path.read_text())
    entries[2].update({"height": 48, **change})
    path.write_text(json.dumps(entries))
    with pytest.raises(UserError, match=words):
        cameras_json.read(path)


@pytest.mark.parametrize("name", ["../x.png", "a/../../x.png", "/x.png"])
def test_a_name_that_leads_out_of_the_renders_is_refused(scene, tmp_path, name):
    path = tmp_path / "cameras.json"
    cameras_json.write(path, scene)
    entries = json.loads(path.read_text())
    path.write_text(json.dumps([{**entries[0], "img_name": name}]))
    with pytest.raises(UserError, match=rf"img_name {name} leads out"):
        cameras_json.read(path)


def test_cameras_that_are_no_list_are_refused(tmp_path):
    (tmp_path / "cameras.json").write_text("{}")
    with pytest.raises(UserError, match=r"cameras\.json holds a JSON dict, not a list"):
        cameras_json.read(tmp_path / "cameras.json")
