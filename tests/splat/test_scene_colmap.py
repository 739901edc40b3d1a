import re
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from splat.errors import UserError
from splat.scene.load import load_scene
from splat.scene.types import Scene, load_photo
from tests.splat.tiny_capture import (
    PINHOLE,
    Lens,
    as_binary,
    picture,
    write_capture,
    write_model,
    write_photos,
)

CAPTURES = ("snowmiku", "sheffield_cross", "chia_apartments", "banana", "brighton_beach")


def same(a: Scene, b: Scene) -> None:
    assert [p.name for p in a.photos] == [p.name for p in b.photos]
    for p, q in zip(a.photos, b.photos, strict=True):
        assert (p.width, p.height) == (q.width, q.height)
        np.testing.assert_allclose(p.view, q.view, atol=1e-12)
        np.testing.assert_allclose(p.intrinsics, q.intrinsics, rtol=1e-12)
    np.testing.assert_array_equal(a.points, b.points)
    np.testing.assert_array_equal(a.colours, b.colours)
    np.testing.assert_array_equal(a.tracks.view_ptr, b.tracks.view_ptr)
    np.testing.assert_array_equal(a.tracks.point_ids, b.tracks.point_ids)
    assert (a.train, a.test) == (b.train, b.test)


@pytest.mark.parametrize("name", CAPTURES)
def test_a_real_capture_has_the_counts_and_the_camera_its_source_states(scenes_dir, name):
    text = (scenes_dir / "SOURCES.md").read_text()
    row = re.search(rf"\| {name} \| (\d+) of \d+ \| (\d+)x(\d+) \| (\d+) \|", text)
    section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    camera = [float(value) for value in re.findall(r"PINHOLE, ([\d., ]+)", section)[0].split(",")]
    assert row is not None
    photos, width, height, points = map(int, row.groups())
    scene = load_scene(scenes_dir / name)
    assert len(scene.photos) == photos and len(scene.points) == points and not scene.warnings
    assert all((photo.width, photo.height) == (width, height) for photo in scene.photos)
    np.testing.assert_allclose(scene.photos[0].intrinsics, camera, atol=5e-3)
    assert scene.test == tuple(range(0, photos, 8)) and len(scene.train) + len(scene.test) == photos
    assert load_photo(scene, 0)[0].shape == (height, width, 3)


@pytest.mark.parametrize("name", ["banana", "chia_apartments"])
def test_every_tracked_point_of_a_real_capture_lies_before_its_camera_and_near_the_frame(scenes_dir, name):
    scene = load_scene(scenes_dir / name, downscale=2)
    for index, photo in enumerate(scene.photos):
        local = scene.points[scene.tracks.of(index)] @ photo.view[:3, :3].T + photo.view[:3, 3]
        pixel = photo.intrinsics[:2] * local[:, :2] / local[:, 2:] + photo.intrinsics[2:]
        slack = 8  # pixels: observations may lie in the strip that undistortion cut off
        assert (local[:, 2] > 0).all() and len(local) > 20
        assert (pixel > -slack).all() and (pixel < np.asarray([photo.width, photo.height]) + slack).all()


def test_binary_text_and_models_without_rigs_read_the_same(tmp_path):
    root = write_capture(tmp_path, ("x/a.png", "b.png", "x/c.png", "d.png"))
    text = load_scene(root)
    as_binary(root / "sparse" / "0")
    assert (root / "sparse" / "0" / "frames.bin").exists()
    same(load_scene(root), text)
    for name in ("rigs.bin", "frames.bin"):
        (root / "sparse" / "0" / name).unlink()
    same(load_scene(root), text)


def test_views_points_and_tracks_follow_names_and_ids(tmp_path):
    root = write_capture(tmp_path, ("z.png", "sub/m.png", "a.png"))
    scene = load_scene(root)
    assert [photo.name for photo in scene.photos] == ["a.png", "sub/m.png", "z.png"]
    np.testing.assert_array_equal(scene.colours[:, 0], np.arange(12))
    # The model listed z (0), sub/m (1), a (2), and photo i sees the points p with i + p even.
    np.testing.assert_array_equal(scene.tracks.of(0), np.arange(0, 12, 2))
    np.testing.assert_array_equal(scene.tracks.of(1), np.arange(1, 12, 2))
    np.testing.assert_array_equal(scene.tracks.of(2), np.arange(0, 12, 2))
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        scene.photos[0].view,
        [[half, 0, half, 0.6], [0, 1, 0, 0.2], [-half, 0, half, 4.5], [0, 0, 0, 1]],
        atol=1e-12,
    )


def test_several_cameras_mixed_sizes_and_off_centre_principal_points_stay_exact(tmp_path):
    lenses = (PINHOLE, Lens("SIMPLE_PINHOLE", (55.0, 21.5, 33.25), 40, 60))
    write_photos(tmp_path / "images", ["a.png"], 64, 48)
    write_photos(tmp_path / "images", ["b.png"], 40, 60)
    write_model(tmp_path / "sparse" / "0", ["a.png", "b.png"], lenses)
    first, second = load_scene(tmp_path).photos
    assert (first.width, first.height, second.width, second.height) == (64, 48, 40, 60)
    np.testing.assert_array_equal(first.intrinsics, [40.0, 42.0, 30.5, 25.25])
    np.testing.assert_array_equal(second.intrinsics, [55.0, 55.0, 21.5, 33.25])


def test_downscale_resizes_as_pil_and_scales_each_axis_exactly(tmp_path):
    lens = Lens("PINHOLE", (40.0, 42.0, 30.5, 25.25), 65, 47)
    scene = load_scene(write_capture(tmp_path, lens=lens), downscale=2)
    photo = scene.photos[1]
    assert (photo.width, photo.height) == (round(65 / 2), round(47 / 2))
    np.testing.assert_allclose(
        photo.intrinsics, [40 * 32 / 65, 42 * 24 / 47, 30.5 * 32 / 65, 25.25 * 24 / 47], rtol=1e-15
    )
    rgb, mask = load_photo(scene, 1)
    np.testing.assert_array_equal(rgb, np.asarray(Image.fromarray(picture(65, 47, 1)).resize((32, 24))))
    assert mask is None and rgb.dtype == np.uint8


def test_a_model_made_at_another_size_scales_exactly_and_another_shape_is_refused(tmp_path):
    root = write_capture(tmp_path)
    write_photos(root / "images", ("a.png", "b.png", "c.png"), 128, 96)
    photo = load_scene(root).photos[0]
    assert (photo.width, photo.height) == (128, 96)
    np.testing.assert_array_equal(photo.intrinsics, [80.0, 84.0, 61.0, 50.5])
    write_photos(root / "images", ("b.png",), 48, 64)
    with pytest.raises(
        UserError, match=r"b\.png is 48x64 but its camera in the model is 64x48.*use the photos"
    ):
        load_scene(root)


def radial(
    model: str, params: tuple[float, ...], x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distorted normalised coordinates, COLMAP's formulas (src/colmap/sensor/models.h) written out again."""
    r2 = x * x + y * y
    if model == "SIMPLE_RADIAL":
        return x * (1 + params[3] * r2), y * (1 + params[3] * r2)
    if model == "RADIAL":
        scale = 1 + params[3] * r2 + params[4] * r2 * r2
        return x * scale, y * scale
    k1, k2, p1, p2 = params[4:]
    scale = k1 * r2 + k2 * r2 * r2
    return (
        x + x * scale + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
        y + y * scale + 2 * p2 * x * y + p1 * (r2 + 2 * y * y),
    )


def painting(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A smooth picture on the plane z = 1."""
    bands = [np.sin(7 * x + k) * np.cos(6 * y - k) for k in range(3)]
    return np.rint(127.5 + 100 * np.stack(bands, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize(
    "lens",
    [
        Lens("SIMPLE_RADIAL", (150.0, 97.0, 78.0, -0.12), 200, 150),
        Lens("RADIAL", (150.0, 103.0, 74.0, 0.08, -0.05), 200, 150),
        Lens("OPENCV", (150.0, 156.0, 97.0, 77.5, -0.15, 0.06, 0.004, -0.003), 200, 150),
    ],
    ids=lambda lens: lens.model,
)
@pytest.mark.parametrize("scale", [1, 2])
def test_distorted_photos_become_exact_pinholes(tmp_path, lens, scale):
    root = write_capture(tmp_path, ("a.png", "b.png"), lens)
    width, height = lens.width * scale, lens.height * scale
    fx, fy, cx, cy = lens.params[:4] if lens.model == "OPENCV" else (lens.params[0], *lens.params[:3])
    u, v = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    goal_x, goal_y = (u / scale - cx) / fx, (v / scale - cy) / fy
    x, y = goal_x.copy(), goal_y.copy()
    for _ in range(50):
        bent_x, bent_y = radial(lens.model, lens.params, x, y)
        x, y = x + goal_x - bent_x, y + goal_y - bent_y
    Image.fromarray(painting(x, y)).save(root / "images" / "a.png")
    scene = load_scene(root)
    rgb, _ = load_photo(scene, 0)
    photo = scene.photos[0]
    fx, fy, cx, cy = photo.intrinsics
    u, v = np.meshgrid(np.arange(photo.width) + 0.5, np.arange(photo.height) + 0.5)
    straight = painting((u - cx) / fx, (v - cy) / fy).astype(int)
    assert rgb.shape == straight.shape
    error = np.abs(rgb - straight)[2:-2, 2:-2]  # the outermost pixels may look beyond the file
    assert error.max() <= 3 and error.mean() < 0.8


def test_fisheye_and_panorama_are_refused_by_one_line(tmp_path):
    root = write_capture(
        tmp_path, lens=Lens("OPENCV_FISHEYE", (40.0, 40.0, 32.0, 24.0, 0.1, 0.0, 0.0, 0.0), 64, 48)
    )
    with pytest.raises(
        UserError, match=r"OPENCV_FISHEYE of photo a\.png is not supported.*undistort the photos"
    ):
        load_scene(root)


def test_of_several_models_the_one_with_most_photos_is_used_and_said(tmp_path):
    write_photos(tmp_path / "images", ("a.png", "b.png", "c.png"))
    write_model(tmp_path / "sparse" / "0", ("a.png",))
    write_model(tmp_path / "sparse" / "1", ("a.png", "b.png", "c.png"))
    as_binary(tmp_path / "sparse" / "1")
    write_model(tmp_path / "sparse" / "2", ("a.png", "b.png"))
    scene = load_scene(tmp_path)
    assert len(scene.photos) == 3
    assert scene.warnings and re.search(r"0 has 1, 1 has 3, 2 has 2; using 1", scene.warnings[0])


@pytest.mark.parametrize("place", ["sparse", "."])
def test_a_model_may_lie_in_sparse_or_in_the_folder_itself(tmp_path, place):
    write_photos(tmp_path / "images", ("a.png", "b.png"))
    write_model(tmp_path / place, ("a.png", "b.png"))
    assert [photo.name for photo in load_scene(tmp_path).photos] == ["a.png", "b.png"]


def test_photos_may_lie_in_a_named_folder(tmp_path):
    root = write_capture(tmp_path)
    write_photos(root / "images_2", ("a.png", "b.png", "c.png"), 32, 24)
    photo = load_scene(root, images="images_2").photos[0]
    np.testing.assert_array_equal(photo.intrinsics, [20.0, 21.0, 15.25, 12.625])
    assert photo.path == root / "images_2" / "a.png"


def test_missing_photos_are_skipped_with_a_warning_and_tracks_stay_with_their_views(tmp_path):
    root = write_capture(tmp_path)
    (root / "images" / "a.png").unlink()
    scene = load_scene(root)
    assert [photo.name for photo in scene.photos] == ["b.png", "c.png"]
    assert "1 of 3 listed photos are missing" in scene.warnings[0] and "a.png" in scene.warnings[0]
    np.testing.assert_array_equal(scene.tracks.of(0), np.arange(1, 12, 2))
    np.testing.assert_array_equal(scene.tracks.of(1), np.arange(0, 12, 2))


def test_max_points_keeps_a_seeded_subset_with_its_tracks(tmp_path):
    root = write_capture(tmp_path)
    whole, some = load_scene(root), load_scene(root, max_points=5, seed=3)
    again, other = load_scene(root, max_points=5, seed=3), load_scene(root, max_points=5, seed=4)
    assert len(some.points) == 5
    np.testing.assert_array_equal(some.points, again.points)
    assert not np.array_equal(some.points, other.points)
    for view in range(3):
        expected = {tuple(p) for p in whole.points[whole.tracks.of(view)]} & {tuple(p) for p in some.points}
        assert {tuple(p) for p in some.points[some.tracks.of(view)]} == expected


def test_the_models_own_test_list_is_used_when_no_rule_is_given(tmp_path):
    root = write_capture(tmp_path)
    (root / "sparse" / "0" / "test.txt").write_text("b.png\n")
    scene = load_scene(root, test_every=0)
    assert (scene.train, scene.test) == ((0, 2), (1,))
    (root / "sparse" / "0" / "test.txt").unlink()
    assert load_scene(root, test_every=0).test == ()


def test_very_wide_photos_are_told_to_be_reduced(tmp_path):
    root = write_capture(tmp_path, lens=Lens("PINHOLE", (900.0, 900.0, 850.0, 20.0), 1700, 40))
    assert "1700 pixels wide" in load_scene(root).warnings[0]
    assert not load_scene(root, downscale=2).warnings


def test_masks_folder_and_alpha_become_loss_weights(tmp_path):
    root = write_capture(tmp_path, channels=4)
    alpha = picture(64, 48, 0, 4)[..., 3]
    scene = load_scene(root)
    np.testing.assert_array_equal(load_photo(scene, 0)[1], alpha)
    np.testing.assert_array_equal(load_photo(scene, 0)[0], picture(64, 48, 0, 4)[..., :3])
    (root / "masks").mkdir()
    mask = np.where(np.arange(64) < 20, 255, 0).astype(np.uint8) * np.ones((48, 1), np.uint8)
    Image.fromarray(mask).save(root / "masks" / "a.png.png")
    Image.fromarray(mask).save(root / "masks" / "b.png")
    scene = load_scene(root)
    np.testing.assert_array_equal(load_photo(scene, 0)[1], np.where(mask > 0, alpha, 0))
    assert scene.photos[1].mask_path == root / "masks" / "b.png" and scene.photos[2].mask_path is None


def test_alpha_can_be_composited_over_a_background(tmp_path):
    root = write_capture(tmp_path, channels=4)
    rgb, mask = load_photo(load_scene(root, alpha="background", background=(1.0, 0.5, 0.0)), 0)
    pixels = picture(64, 48, 0, 4).astype(float)
    share = pixels[..., 3:] / 255
    assert mask is None
    np.testing.assert_allclose(
        rgb, pixels[..., :3] * share + np.asarray([255, 127.5, 0]) * (1 - share), atol=0.51
    )


def test_loading_decodes_no_photo(tmp_path, monkeypatch):
    root = write_capture(tmp_path)

    def forbidden(*_: object) -> None:
        raise AssertionError("a photo was decoded")

    monkeypatch.setattr(Image.Image, "load", forbidden)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", forbidden)
    scene = load_scene(root)
    with pytest.raises(AssertionError, match="decoded"):
        load_photo(scene, 0)


def test_without_pycolmap_one_line_says_what_to_do(tmp_path, monkeypatch):
    root = write_capture(tmp_path)
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(UserError, match=r"needs pycolmap; install it, or save the scene as \.npz"):
        load_scene(root)


def test_a_capture_can_be_moved(tmp_path):
    root = write_capture(tmp_path / "here")
    before = load_scene(root)
    shutil.move(root, tmp_path / "there")
    same(load_scene(tmp_path / "there"), before)
