import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splat.errors import UserError
from splat.scene.load import load_scene
from splat.scene.procedural import make_world, write_scene
from splat.scene.raycast import cast, pixel_rays, render_view
from splat.scene.types import Scene, load_photo

VIEWS, WIDTH, HEIGHT = 16, 160, 120
FINE = 4


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("court"), seed=5, views=VIEWS, width=WIDTH, height=HEIGHT)


@pytest.fixture(scope="module")
def scene(capture: Path) -> Scene:
    return load_scene(capture)


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    parts = [path.relative_to(folder).as_posix().encode() + path.read_bytes() for path in files]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def observations(capture: Path) -> dict[str, np.ndarray]:
    """Photo name → [n, 3] rows of x, y, point id, parsed from images.txt."""
    lines = (capture / "sparse" / "0" / "images.txt").read_text().splitlines()
    return {
        head.split()[9]: np.asarray(row.split(), float).reshape(-1, 3)
        for head, row in zip(lines[::2], lines[1::2], strict=True)
    }


def test_it_loads_as_a_colmap_capture_on_two_paths(scene):
    assert len(scene.photos) == VIEWS and not scene.warnings
    assert {photo.name.split("_")[0] for photo in scene.photos} == {"orbit", "spiral"}
    assert all((photo.width, photo.height) == (WIDTH, HEIGHT) for photo in scene.photos)
    assert len(scene.points) > 300 and np.diff(scene.tracks.view_ptr).min() > 30
    assert np.bincount(scene.tracks.point_ids).min() >= 3
    assert 3 < scene.extent < 8


def test_every_observation_reprojects_within_a_pixel(capture, scene):
    for index, photo in enumerate(scene.photos):
        rows = observations(capture)[photo.name]
        np.testing.assert_array_equal(np.sort(rows[:, 2]) - 1, scene.tracks.of(index))
        local = scene.points[rows[:, 2].astype(int) - 1] @ photo.view[:3, :3].T + photo.view[:3, 3]
        pixel = photo.intrinsics[:2] * local[:, :2] / local[:, 2:] + photo.intrinsics[2:]
        assert np.linalg.norm(pixel - rows[:, :2], axis=1).max() < 1
        assert (rows[:, :2] > 0).all() and (rows[:, :2] < [WIDTH, HEIGHT]).all()


@pytest.fixture(scope="module")
def depths(scene: Scene) -> list[np.ndarray]:
    """True depth of every photo at FINE times its resolution, to know outlines to a quarter pixel."""
    world = make_world(5, VIEWS, WIDTH, HEIGHT)
    grid = np.stack(np.meshgrid(np.arange(FINE * WIDTH) + 0.5, np.arange(FINE * HEIGHT) + 0.5), axis=-1)
    maps = []
    for photo in scene.photos:
        view = world.views[world.names.index(photo.name)]
        np.testing.assert_allclose(photo.view, view, atol=1e-9)
        centre, direction = pixel_rays(view, world.intrinsics * FINE, grid.reshape(-1, 2))
        distance, _ = cast(world.shapes, centre, direction)
        maps.append((distance * (direction @ view[2, :3])).reshape(grid.shape[:2]))
    return maps


def placed(scene: Scene, index: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([n] camera depth, [n, 2] pixel) of points in a view."""
    photo = scene.photos[index]
    local = scene.points[rows] @ photo.view[:3, :3].T + photo.view[:3, 3]
    deep = np.maximum(local[:, 2:], 1e-6)
    return local[:, 2], photo.intrinsics[:2] * local[:, :2] / deep + photo.intrinsics[2:]


def test_every_observed_point_lies_at_the_true_depth(scene, depths):
    for index, depth in enumerate(depths):
        deep, pixel = placed(scene, index, scene.tracks.of(index))
        column, row = np.clip((FINE * pixel).astype(int).T, 1, [[FINE * WIDTH - 2], [FINE * HEIGHT - 2]])
        around = np.stack([depth[row + dy, column + dx] for dy in (-1, 0, 1) for dx in (-1, 0, 1)])
        assert (deep < around.max(axis=0) + 0.01).all()
        assert (deep > around.min(axis=0) - 0.01).all()


def test_points_behind_something_are_not_in_the_track(scene, depths):
    hidden = listed = 0
    for index, depth in enumerate(depths):
        deep, pixel = placed(scene, index, np.arange(len(scene.points)))
        inside = (deep > 0.1) & ((pixel > 1) & (pixel < [WIDTH - 1, HEIGHT - 1])).all(axis=1)
        rows = np.flatnonzero(inside)
        column, row = (FINE * pixel[rows]).astype(int).T
        behind = rows[deep[rows] > depth[row, column] + 0.3]
        hidden += len(behind)
        listed += len(np.intersect1d(behind, scene.tracks.of(index)))
    assert hidden > 1000 and listed < 0.02 * hidden  # what is listed lies at an outline


def test_points_carry_the_colour_of_the_photos(scene):
    errors = []
    for index in range(VIEWS):
        rows = scene.tracks.of(index)
        _, pixel = placed(scene, index, rows)
        column, row = np.clip(pixel.astype(int).T, 0, [[WIDTH - 1], [HEIGHT - 1]])
        rgb = load_photo(scene, index)[0].astype(float)
        errors.append(np.abs(rgb[row, column] - scene.colours[rows]).mean())
    assert np.mean(errors) < 25


def test_the_photos_show_something_everywhere(scene):
    for index in range(VIEWS):
        rgb = load_photo(scene, index)[0].astype(float)
        assert rgb.std() > 25 and 40 < rgb.mean() < 215
        blocks = rgb.reshape(HEIGHT // 20, 20, WIDTH // 20, 20, 3).std(axis=(1, 3))
        assert (blocks.max(axis=-1) > 2).mean() > 0.9


def test_one_seed_gives_the_same_bytes_and_another_other_ones(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_scene(tmp_path / name, seed=seed, views=8, width=48, height=36)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_the_depth_of_a_pixel_is_where_its_ray_meets_the_floor():
    world = make_world(0, 8, 64, 48)
    view = world.views[-1]
    _, depth = render_view(world.shapes, view, world.intrinsics, 64, 48)
    rows, columns = np.nonzero(np.isfinite(depth))
    local = np.stack(
        [
            (columns + 0.5 - world.intrinsics[2]) / world.intrinsics[0],
            (rows + 0.5 - world.intrinsics[3]) / world.intrinsics[1],
            np.ones(len(rows)),
        ],
        axis=1,
    )
    points = (local * depth[rows, columns][:, None] - view[:3, 3]) @ view[:3, :3]
    assert points[:, 2].min() > -1e-9 and (np.abs(points[:, 2]) < 1e-9).mean() > 0.3


def test_eight_views_at_the_default_size_take_a_few_seconds(tmp_path):
    start = time.process_time()
    write_scene(tmp_path, views=8)
    assert time.process_time() - start < 10
    assert Image.open(tmp_path / "images" / "orbit_000.png").size == (400, 300)


def test_too_small_a_scene_is_refused(tmp_path):
    with pytest.raises(UserError, match="2 views at 400x300 is too small; use at least 8 views"):
        write_scene(tmp_path, views=2)
