"""A trained run tiled into a city: ground, sizes, seams, and that the loader reads what is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from odin_jax import city
from scripts import make_city
from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.ply import write_ply
from splat.scene import blocks
from splat.scene.load import load_scene


def rows(count: int = 300, seed: int = 0) -> Gaussians:
    """Flat, 8 wide and 4 deep, opaque."""
    rng = np.random.default_rng(seed)
    return Gaussians(
        means=rng.uniform([-4, -2, -0.1], [4, 2, 0.1], (count, 3)).astype(np.float32),
        log_scales=np.full((count, 3), -3, np.float32), quats=np.tile(np.float32([1, 0, 0, 0]), (count, 1)),
        opacity_logits=np.full(count, 3, np.float32), sh_dc=rng.normal(size=(count, 3)).astype(np.float32),
        sh_rest=np.zeros((count, 15, 3), np.float32))


def above(x: float, y: float = 0.0) -> Camera:
    view = np.diag([1.0, -1.0, -1.0, 1.0])
    view[:3, 3] = -view[:3, :3] @ [x, y, 6.0]
    return Camera(view.astype(np.float32), np.float32([40, 40, 24, 16]), 48, 32)  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path, monkeypatch) -> Path:
    """A city of 3x2 tiles of a run whose photos are half covered."""
    run = tmp_path / "run"
    write_ply(rows(), run / "point_cloud.ply")
    places = {"a": -1, "b": 0, "c": 1, "d": 9}
    views = [(f"{name}.jpg", "test" if name == "c" else "train", above(x)) for name, x in places.items()]
    entries = [{"img_name": name, "split": split, "width": 48, "height": 32, "fx": 40, "fy": 40, "cx": 24, "cy": 16,
                "position": [float(camera.view[0, 3]) * -1, 0, 6.0], "rotation": np.diag([1, -1, -1]).tolist()}
               for name, split, camera in views]
    city.write_json(run / "cameras.json", entries)

    def half(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
        white = np.zeros((32, 48, 3))
        white[:, 24:] = 1
        return np.full((32, 48, 3), 0.5), white

    monkeypatch.setattr(city, "Drawer", lambda *_: half)
    make_city.main(make_city.CityConfig(run, tmp_path / "city", tiles="3x2", footprint=0.8, points_per_tile=50))
    return tmp_path / "city"


def test_the_loader_reads_what_was_written(made):
    scene = load_scene(made)
    assert len(scene.photos) == 3 * 6 and len(scene.test) == 6 and len(scene.points) == 50 * 6
    assert {photo.path.resolve() for photo in scene.photos} == set((made / "photos").resolve().iterdir())
    alpha = np.asarray(Image.open(made / "photos" / "b.png"))[..., 3]
    assert (alpha[:, :24] == 255).all()  # opaque parts of the tile
    assert (alpha[12:20, 24:40] == 255).all()  # its own ground behind faint ones: 16 pixels are 2.4 of 3.2 units
    assert (alpha[0, 24:] == 0).all()  # ground 2.3 units from the middle, beyond the tile's 1.6


def test_blocks_are_one_tile_moved_and_lie_side_by_side(made):
    listed = [mine for _, mine in blocks.iter_gaussian_blocks(made)]
    scene = load_scene(made)
    for number, mine in enumerate(listed):
        shift = (mine.means - listed[0].means).mean(axis=0)
        np.testing.assert_allclose(mine.means, listed[0].means + shift, atol=1e-5)
        for name in ("log_scales", "quats", "sh_dc", "opacity_logits"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(listed[0], name))
        for view in range(3):
            np.testing.assert_allclose(scene.photos[3 * number + view].centre - scene.photos[view].centre, shift,
                                       atol=1e-5)
    for neighbour in (1, 3):
        step = (listed[neighbour].means - listed[0].means).mean(axis=0)
        along = listed[0].means @ (step / np.linalg.norm(step))
        assert 0.8 * np.linalg.norm(step) < np.ptp(along) <= np.linalg.norm(step) + 1e-4


def test_the_ground_is_found_whichever_way_it_lies():
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    tilted = dataclasses.replace(rows(), means=(rows().means @ turn.T).astype(np.float32))
    view = np.eye(4)
    view[:3, :3] = np.diag([1.0, -1.0, -1.0]) @ turn.T
    view[:3, 3] = [0, 0, 6.0]
    camera = Camera(view.astype(np.float32), np.float32([40, 40, 24, 16]), 48, 32)  # type: ignore[arg-type]
    found = city.find_footprint(tilted, [camera], 1.0)
    np.testing.assert_allclose(found.axes[2] @ (turn @ [0, 0, 1]), 1, atol=1e-2)
    np.testing.assert_allclose(found.high - found.low, [8, 4], rtol=0.1)
    assert city.looks_at(found, camera)


@pytest.mark.parametrize("count", [100, 300, 450, 1000])
def test_a_tile_has_as_many_rows_as_asked_for_the_same_each_time(count):
    first, again = city.sized(rows(), count, 5), city.sized(rows(), count, 5)
    assert first.count == count and np.isfinite(first.means).all()
    np.testing.assert_array_equal(first.means, again.means)
    assert (first.log_scales <= -3 + 1e-6).all()


def test_views_are_spread_and_both_splits_are_kept():
    train, test = [(f"{i:02d}", above(i)) for i in range(20)], [(f"t{i}", above(i)) for i in range(3)]
    kept, tested = city.choose_split(train, test, 6)
    assert len(kept) == 5 and len(tested) == 1 and [name for name, _ in kept] == ["02", "06", "10", "14", "18"]
    kept, tested = city.choose_split(train, test, 1)
    assert len(kept) == 1 and tested == []
    assert city.choose_split(train, test, None) == (train, test)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"tiles": "8"}, "--tiles 8 is not"), ({"tiles": "0x3"}, "--tiles 0x3"), ({"footprint": 0.0}, "--footprint 0"),
     ({"rows_per_tile": 0}, "--rows-per-tile 0"), ({"max_views_per_tile": -1}, "--max-views-per-tile -1")])
def test_options_out_of_range(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        make_city.check(make_city.CityConfig(tmp_path, tmp_path / "new", **change))


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(UserError, match=r"not an empty folder; choose another"):
        make_city.main(make_city.CityConfig(tmp_path, tmp_path))
