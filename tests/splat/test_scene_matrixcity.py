"""MatrixCity's layout, whole and in blocks: poses, names, split, tracks, one block at a time, bad input in one line."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import numpy as np
import pytest

from splat.errors import UserError
from splat.gaussians import FIELDS, Gaussians
from splat.io.ply import write_ply, write_points
from splat.scene import blocks, visible
from splat.scene.load import load_scene
from tests.splat.tiny_capture import write_photos

HEAD = {"fl_x": 50.0, "fl_y": 52.0, "cx": 31.0, "cy": 25.0, "w": 64.0, "h": 48.0, "k1": 0, "k3": 0, "k4": 0}


def down(x: float, y: float) -> np.ndarray:
    """Camera → world in OpenGL axes at height 4, looking straight down, the image's top to +y."""
    pose = np.eye(4)
    pose[:3, 3] = x, y, 4.0
    return pose


def raw(pose: np.ndarray) -> np.ndarray:
    return np.block([[pose[:3, :3] / 100, 100 * pose[:3, 3:]], [pose[3:]]])


def listing(root: Path, role: str, frames: list[dict], head: dict | None = None) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / f"transforms_{role}.json").write_text(json.dumps({**(HEAD if head is None else head), "frames": frames}))


def frame(name: str, x: float, y: float = 0.0) -> dict:
    return {"file_path": name, "transform_matrix": down(x, y).tolist()}


def dataset(root: Path, x: float = 0.0, seed: int = 0, points: int = 40) -> Path:
    """Two training views and a test view over points around (x, 0, 0)."""
    write_photos(root / "photos", ["a.png", "b.png", "c.png"])
    listing(root, "train", [frame("photos/a", x), frame("photos/b.png", x + 1)])
    listing(root, "test", [frame("photos/c.png", x - 1)])
    rng = np.random.default_rng(seed)
    places = rng.uniform([x - 3, -3, -0.5], [x + 3, 3, 0.5], (points, 3))
    write_points(places, rng.integers(0, 256, (points, 3), np.uint8), root / "points.ply")
    return root


def rows(seed: int, count: int) -> Gaussians:
    rng = np.random.default_rng(seed)
    shapes = {"means": (3,), "log_scales": (3,), "quats": (4,), "opacity_logits": (), "sh_dc": (3,), "sh_rest": (15, 3)}
    return Gaussians(**{name: rng.normal(size=(count, *shapes[name])).astype(np.float32) for name in FIELDS})


@pytest.fixture
def city(tmp_path: Path) -> Path:
    for number, name in enumerate(["block_b", "block_a", "block_c"]):
        write_ply(rows(number, 5 + number), dataset(tmp_path / name, 10.0 * number, number, 20 + number)
                  / "gaussians.ply")
    return tmp_path


def test_poses_lenses_and_split_are_those_of_the_listings(tmp_path):
    scene = load_scene(dataset(tmp_path))
    assert [photo.name for photo in scene.photos] == ["photos/a.png", "photos/b.png", "photos/c.png"]
    assert (scene.train, scene.test) == ((0, 1), (2,))
    for photo, x in zip(scene.photos, (0, 1, -1), strict=True):
        np.testing.assert_allclose(photo.centre, [x, 0, 4], atol=1e-12)
        np.testing.assert_array_equal(photo.intrinsics, [50, 52, 31, 25])
        np.testing.assert_allclose(photo.view @ [x, 1, 0, 1], [0, -1, 4, 1], atol=1e-12)


def test_tracks_hold_exactly_the_points_within_each_image(tmp_path):
    scene = load_scene(dataset(tmp_path))
    seen = [set(scene.tracks.of(view).tolist()) for view in range(3)]
    for photo, mine in zip(scene.photos, seen, strict=True):
        fx, fy, cx, cy = photo.intrinsics
        for number, point in enumerate(scene.points):
            x, y, z = (photo.view @ [*point, 1])[:3]
            assert (number in mine) == (0 <= fx * x / z + cx < 64 and 0 <= fy * y / z + cy < 48)
    assert min(map(len, seen)) > 0 and max(map(len, seen)) < len(scene.points)


def test_points_behind_a_camera_are_not_seen_and_above_the_limit_every_nth_counts(tmp_path, monkeypatch):
    root = dataset(tmp_path)
    points = np.asarray([[0, 0, 9.0], *[[0, 0, 0.0]] * 9])
    write_points(points, np.zeros((10, 3), np.uint8), root / "points.ply")
    assert load_scene(root).tracks.of(0).tolist() == list(range(1, 10))
    monkeypatch.setattr(visible, "TRACKED_POINTS", 4)
    assert load_scene(root).tracks.of(0).tolist() == [3, 6, 9]


def test_raw_poses_are_brought_to_the_units_of_the_others(tmp_path):
    expected = load_scene(dataset(tmp_path / "own"))
    write_photos(tmp_path / "raw", ["0007.png", "0008.png"])
    angle = 2 * np.arctan(32 / 50)
    listing(tmp_path / "raw", "train", [{"frame_index": 7 + i, "rot_mat": raw(down(i, 0)).tolist()} for i in range(2)],
            {"camera_angle_x": angle})
    scene = load_scene(tmp_path / "raw")
    assert [photo.name for photo in scene.photos] == ["0007.png", "0008.png"]
    for got, want in zip(scene.photos, expected.photos[:2], strict=True):
        np.testing.assert_allclose(got.view, want.view, atol=1e-12)
        np.testing.assert_allclose(got.intrinsics, [50, 50, 32, 24])
    assert scene.test == () and "no transforms_test.json" in scene.warnings[0]


def test_listings_may_lie_apart_from_the_photos(tmp_path):
    write_photos(tmp_path / "train" / "block_1", ["0000.png"])
    listing(tmp_path / "pose" / "block_A", "train", [frame("../../train/block_1/0000.png", 0)])
    assert [photo.name for photo in load_scene(tmp_path / "pose" / "block_A").photos] == ["train/block_1/0000.png"]


def test_a_city_is_the_union_of_its_blocks_in_order_of_their_names(city):
    scene = load_scene(city)
    assert [photo.name for photo in scene.photos] == [
        f"block_{name}/photos/{photo}.png" for name in "abc" for photo in "abc"]
    assert scene.test == (2, 5, 8)
    parts = [load_scene(city / f"block_{name}") for name in "abc"]
    np.testing.assert_array_equal(scene.points, np.concatenate([part.points for part in parts]))
    np.testing.assert_array_equal(scene.colours, np.concatenate([part.colours for part in parts]))
    starts = np.cumsum([0, *(len(part.points) for part in parts)])
    for block, part in enumerate(parts):
        for view in range(3):
            mine = scene.tracks.of(3 * block + view)
            own = mine[(mine >= starts[block]) & (mine < starts[block + 1])] - starts[block]
            np.testing.assert_array_equal(own, part.tracks.of(view))


def test_blocks_together_are_the_whole(city):
    scene, listed = load_scene(city), list(blocks.iter_blocks(city))
    assert [name for name, _, _ in listed] == ["block_a", "block_b", "block_c"]
    np.testing.assert_array_equal(np.concatenate([points for _, points, _ in listed]), scene.points)
    np.testing.assert_array_equal(np.concatenate([colours for _, _, colours in listed]), scene.colours)
    assert blocks.point_counts(city) == [(name, len(points)) for name, points, _ in listed]
    assert {points.dtype for _, points, _ in listed} == {scene.points.dtype}


def test_rows_of_blocks_are_those_written_as_numpy(city):
    listed = list(blocks.iter_gaussian_blocks(city))
    assert [(name, mine.count) for name, mine in listed] == blocks.gaussian_counts(city)
    for (name, mine), seed in zip(listed, (1, 0, 2), strict=True):
        for field in FIELDS:
            assert isinstance(getattr(mine, field), np.ndarray), name
            np.testing.assert_array_equal(getattr(mine, field), getattr(rows(seed, 5 + seed), field))


def test_points_that_are_not_finite_are_dropped_alike(city):
    bad = np.full((3, 3), np.nan)
    bad[1] = 1, 2, 3
    write_points(bad, np.full((3, 3), 7, np.uint8), city / "block_a" / "points.ply")
    whole = np.concatenate([points for _, points, _ in blocks.iter_blocks(city)])
    np.testing.assert_array_equal(whole, load_scene(city).points)
    np.testing.assert_array_equal(whole[0], [1, 2, 3])


@pytest.mark.parametrize("iterate", [blocks.iter_blocks, blocks.iter_gaussian_blocks])
def test_a_block_is_read_when_asked_for_and_let_go_before_the_next(city, iterate, monkeypatch):
    made: list[weakref.ref] = []
    for name in ("block_points", "read_rows"):
        monkeypatch.setattr(blocks, name, _first_of_its_time(getattr(blocks, name), made))
    source = iterate(city)
    assert made == []
    for number in range(3):
        block = next(source)
        assert len(made) == 2 * number + 1
        made.append(weakref.ref(_first(block[1:])))
        del block
    assert next(source, None) is None


def _first(block) -> np.ndarray:
    return block[0].means if isinstance(block[0], Gaussians) else block[0]


def _first_of_its_time(reader, made: list):
    """The reader, which asserts that nothing that was read or handed out before is still held by anyone."""

    def read(path):
        assert all(ref() is None for ref in made)
        result = reader(path)
        made.append(weakref.ref(_first(result if isinstance(result, tuple) else (result,))))
        return result

    return read


def test_one_dataset_is_one_block(tmp_path):
    ((name, points, _),) = blocks.iter_blocks(dataset(tmp_path / "lone"))
    assert name == "lone"
    np.testing.assert_array_equal(points, load_scene(tmp_path / "lone").points)


def refusal(action, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"frames": []}, ("no list 'frames'", "export it again")),
        ({"frames": [{"rot_mat": np.eye(4).tolist()}]}, ("frame 0", "no file_path", "add it")),
        ({"frames": [{"file_path": "photos/a"}]}, ("transform_matrix of frame 0 (photos/a)", "4x4", "again")),
        ({"frames": [{"file_path": "photos/a", "rot_mat": [[1, 2], [3]]}]}, ("rot_mat of frame 0", "4x4", "again")),
        ({"frames": [{"file_path": "photos/a", "rot_mat": (np.eye(4) * 0.02).tolist()}]}, ("rot_mat", "no rotation")),
        ({"frames": [{"file_path": "photos/a", "rot_mat": [[float("nan")] * 4] * 4}]}, ("rot_mat", "not finite")),
        ({"fl_x": "wide"}, ("fl_x = 'wide'", "calibrate")),
        ({"k3": 0.1}, ("k3", "undistort the photos")),
        ({"w": 48, "h": 64}, ("64x48", "48x64", "another shape")),
    ],
)
def test_a_listing_that_cannot_be_used(tmp_path, change, parts):
    path = dataset(tmp_path) / "transforms_train.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    where = () if "w" in change else (str(path),)
    refusal(lambda: load_scene(tmp_path), *where, *parts)


def test_a_cut_listing_of_a_block(city):
    path = city / "block_b" / "transforms_test.json"
    path.write_text(path.read_text()[:50])
    refusal(lambda: load_scene(city), str(path), "cut off or not JSON", "export it again")


def test_a_block_without_a_listing(city):
    (city / "block_d").mkdir()
    for action in (load_scene, lambda path: list(blocks.iter_blocks(path))):
        refusal(lambda action=action: action(city), str(city / "block_d"), "no transforms_train.json", "complete it")


def test_two_point_clouds(city):
    write_points(np.zeros((1, 3)), np.zeros((1, 3), np.uint8), city / "block_b" / "more.ply")
    refusal(lambda: load_scene(city), str(city / "block_b"), "2 PLY files", "more.ply, points.ply", "keep the one")


def test_a_cut_block(city):
    path = city / "block_b" / "gaussians.ply"
    path.write_bytes(path.read_bytes()[:-100])
    refusal(lambda: list(blocks.iter_gaussian_blocks(city)), str(path), "cut off", "copy it again")
    path.write_bytes(path.read_bytes()[:40])
    refusal(lambda: blocks.gaussian_counts(city), str(path), "cut off", "copy it again")
    path.unlink()
    refusal(lambda: blocks.gaussian_counts(city), str(path), "does not exist")


def test_a_folder_that_is_no_city(tmp_path):
    refusal(lambda: list(blocks.iter_blocks(tmp_path)), str(tmp_path), "block_*", "odin make-city")
