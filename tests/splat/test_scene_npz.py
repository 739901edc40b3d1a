import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splat.errors import UserError
from splat.scene.load import load_scene, save_npz
from splat.scene.types import Scene, load_photo
from tests.splat.tiny_capture import Lens, write_capture

ROOT = Path(__file__).resolve().parents[2]


def assert_same_scene(saved: Scene, scene: Scene) -> None:
    assert [photo.name for photo in saved.photos] == [photo.name for photo in scene.photos]
    assert (saved.train, saved.test, saved.extent, saved.name) == (
        scene.train,
        scene.test,
        scene.extent,
        scene.name,
    )
    assert saved.warnings == scene.warnings
    for name in ("points", "colours"):
        np.testing.assert_array_equal(getattr(saved, name), getattr(scene, name))
        assert getattr(saved, name).dtype == getattr(scene, name).dtype
    np.testing.assert_array_equal(saved.tracks.view_ptr, scene.tracks.view_ptr)
    np.testing.assert_array_equal(saved.tracks.point_ids, scene.tracks.point_ids)
    for index, (a, b) in enumerate(zip(saved.photos, scene.photos, strict=True)):
        assert (a.width, a.height) == (b.width, b.height)
        np.testing.assert_array_equal(a.view, b.view)
        np.testing.assert_array_equal(a.intrinsics, b.intrinsics)
        (rgb, mask), (rgb_there, mask_there) = load_photo(saved, index), load_photo(scene, index)
        np.testing.assert_array_equal(rgb, rgb_there)
        assert (mask is None) == (mask_there is None)
        if mask is not None:
            np.testing.assert_array_equal(mask, mask_there)


@pytest.mark.parametrize("downscale", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "jpeg", "alpha", "masks", "distorted"])
def test_a_saved_scene_is_the_scene_bit_for_bit(tmp_path, kind, downscale):
    names = [f"{i}.{'jpg' if kind == 'jpeg' else 'png'}" for i in range(9)]
    lens = Lens("OPENCV", (60.0, 60.0, 32.0, 24.0, -0.1, 0.02, 0.0, 0.0), 64, 48)
    options = {"lens": lens} if kind == "distorted" else {"channels": 4} if kind == "alpha" else {}
    root = write_capture(tmp_path / "capture", names, **options)
    if kind == "masks":
        (root / "masks").mkdir()
        ramp = np.arange(64 * 48, dtype=np.uint8).reshape(48, 64)
        Image.fromarray(ramp).save(root / "masks" / "3.png")
    scene = load_scene(root, downscale=downscale)
    save_npz(scene, tmp_path / "scene.npz")
    saved = load_scene(tmp_path / "scene.npz")
    assert_same_scene(saved, scene)


def test_a_photo_that_needs_no_change_is_stored_as_its_own_file(tmp_path):
    root = write_capture(tmp_path, ("a.jpg", "b.jpg"))
    save_npz(load_scene(root), tmp_path / "scene.npz")
    with np.load(tmp_path / "scene.npz") as data:
        assert data["photo_000001"].tobytes() == (root / "images" / "b.jpg").read_bytes()


@pytest.mark.parametrize("encoding", ["png", "raw", "jpeg"])
def test_png_and_raw_keep_every_pixel_and_jpeg_keeps_noise_roughly(tmp_path, encoding):
    scene = load_scene(write_capture(tmp_path), downscale=2)
    save_npz(scene, tmp_path / "scene.npz", encoding=encoding)
    saved = load_scene(tmp_path / "scene.npz")
    error = np.abs(load_photo(saved, 0)[0].astype(int) - load_photo(scene, 0)[0])
    assert 0 < error.mean() < 25 if encoding == "jpeg" else not error.any()


def test_a_saved_scene_can_be_reduced_further(tmp_path):
    scene = load_scene(write_capture(tmp_path))
    save_npz(scene, tmp_path / "scene.npz")
    photo = load_scene(tmp_path / "scene.npz", downscale=2).photos[0]
    assert (photo.width, photo.height) == (32, 24)
    np.testing.assert_allclose(photo.intrinsics, scene.photos[0].intrinsics / 2)


def test_a_saved_scene_can_be_loaded_with_fewer_points(tmp_path):
    root = write_capture(tmp_path)
    save_npz(load_scene(root), tmp_path / "scene.npz")
    assert_same_scene(
        load_scene(tmp_path / "scene.npz", max_points=4, seed=2),
        replace(load_scene(root, max_points=4, seed=2), name=root.name),
    )


def test_a_scene_saved_again_in_the_same_place_is_the_new_one(tmp_path):
    for seed in (0, 1):
        root = write_capture(tmp_path / str(seed), ("a.png", "b.png", "c.png")[seed:])
        save_npz(load_scene(root, downscale=1 + seed), tmp_path / "scene.npz")
        saved = load_scene(tmp_path / "scene.npz")
        np.testing.assert_array_equal(
            load_photo(saved, 0)[0], load_photo(load_scene(root, downscale=1 + seed), 0)[0]
        )


def test_a_machine_without_pycolmap_reads_it(tmp_path):
    lens = Lens("SIMPLE_RADIAL", (60.0, 32.0, 24.0, -0.1), 64, 48)
    scene = load_scene(write_capture(tmp_path, lens=lens))
    save_npz(scene, tmp_path / "scene.npz")
    code = (
        "import sys; sys.modules['pycolmap'] = None\n"
        "from splat.scene.load import load_scene\nfrom splat.scene.types import load_photo\n"
        f"scene = load_scene({str(tmp_path / 'scene.npz')!r})\n"
        "print(len(scene.points), sum(int(load_photo(scene, i)[0].sum()) for i in range(len(scene.photos))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    total = sum(int(load_photo(scene, index)[0].sum()) for index in range(3))
    assert done.stdout.split() == [str(len(scene.points)), str(total)]


def refuse(path: Path, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        load_photo(load_scene(path), 0)
    assert "\n" not in str(caught.value)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_broken_scene_files_are_refused(tmp_path):
    path = tmp_path / "scene.npz"
    save_npz(load_scene(write_capture(tmp_path)), path)
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    refuse(path, "cut off", "save it again")
    path.write_bytes(b"")
    refuse(path, "empty", "copy it again")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refuse(path, "Git LFS pointer", "git lfs pull")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    refuse(tmp_path / "other.npz", "no saved scene", "save it again")
    with np.load(io.BytesIO(whole)) as data:
        arrays = dict(data)
    for head, words in ((b"[1]", "has format None"), (b'{"format": 1}', "has no 'name' in its head")):
        np.savez(path, **{**arrays, "head": np.frombuffer(head, np.uint8)})
        refuse(path, words, "save")


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        (
            "views",
            lambda a: np.where(np.arange(16).reshape(4, 4) == 3, np.nan, a),
            ("field views row 0", "not finite"),
        ),
        ("points", lambda a: a[:-1], ("field colours has shape", "save it again")),
        ("photo_000000", lambda a: a[:40], ("entry photo_000000", "truncated")),
    ],
)
def test_a_damaged_field_is_named(tmp_path, field, change, words):
    path = tmp_path / "scene.npz"
    save_npz(load_scene(write_capture(tmp_path)), path)
    with np.load(path) as data:
        arrays = dict(data)
    np.savez(path, **{**arrays, field: change(arrays[field])})
    refuse(path, *words)


def test_the_file_must_be_named_npz(tmp_path):
    with pytest.raises(UserError, match=r"must end in \.npz"):
        save_npz(load_scene(write_capture(tmp_path)), tmp_path / "scene.zip")
