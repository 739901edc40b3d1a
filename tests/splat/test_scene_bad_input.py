"""Every bad input ends in one line that names the file and the remedy."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splat.errors import UserError
from splat.scene.load import load_scene
from splat.scene.types import load_photo
from tests.splat.tiny_capture import (
    PINHOLE,
    Lens,
    as_binary,
    picture,
    write_capture,
    write_model,
    write_photos,
)

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 12345\n"


def refusal(action: Callable[[], object], *parts: str) -> None:
    """The action raises a UserError of one line that holds all parts."""
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


@pytest.fixture
def text_capture(tmp_path: Path) -> Path:
    return write_capture(tmp_path)


@pytest.fixture
def binary_capture(tmp_path: Path) -> Path:
    as_binary(write_capture(tmp_path) / "sparse" / "0")
    return tmp_path


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", ["cameras", "images", "points3D", "rigs", "frames"])
def test_a_cut_binary_model_file(binary_capture, name, share):
    path = binary_capture / "sparse" / "0" / f"{name}.bin"
    cut(path, share)
    refusal(lambda: load_scene(binary_capture), str(path), "empty" if share == 0 else "truncated", "again")


def test_a_binary_model_file_with_bytes_behind_its_end(binary_capture):
    path = binary_capture / "sparse" / "0" / "points3D.bin"
    path.write_bytes(path.read_bytes() + b"1234")
    refusal(lambda: load_scene(binary_capture), str(path), "4 bytes too many", "export it again")


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
def test_a_model_file_that_is_missing(binary_capture, name):
    path = binary_capture / "sparse" / "0" / name
    path.unlink()
    refusal(lambda: load_scene(binary_capture), str(path), "does not exist", "check the path")


@pytest.mark.parametrize("name", ["cameras.bin", "points3D.bin", "frames.bin"])
def test_a_model_file_that_is_a_git_lfs_pointer(binary_capture, name):
    path = binary_capture / "sparse" / "0" / name
    path.write_text(LFS)
    refusal(lambda: load_scene(binary_capture), str(path), "Git LFS pointer", "git lfs pull")


@pytest.mark.parametrize("name", ["cameras.txt", "images.txt", "points3D.txt"])
@pytest.mark.parametrize("junk", ["1 zz 3\n", "1 2\n", "0.5 nonsense here and there 1 2 3 4 5 6\n"])
def test_a_malformed_text_model_line(text_capture, name, junk):
    path = text_capture / "sparse" / "0" / name
    path.write_text(path.read_text() + junk)
    refusal(lambda: load_scene(text_capture), str(path), "again")


def test_a_cut_text_model(text_capture):
    path = text_capture / "sparse" / "0" / "points3D.txt"
    words = path.read_text().rsplit(" ", 1)[0]
    path.write_text(words)
    refusal(lambda: load_scene(text_capture), str(path), "cut or malformed", "copy it again")


def test_a_track_that_refers_to_an_unknown_photo(text_capture):
    path = text_capture / "sparse" / "0" / "points3D.txt"
    path.write_text(path.read_text().replace(" 0.5 10 0", " 0.5 99 0"))
    refusal(lambda: load_scene(text_capture), str(path.parent), "cannot be read", "export the model again")


def test_a_model_with_no_points(tmp_path):
    refusal(
        lambda: load_scene(write_capture(tmp_path, points=0)),
        str(tmp_path),
        "no points",
        "run the mapper again",
    )


def test_a_model_with_an_empty_points_file(text_capture):
    path = text_capture / "sparse" / "0" / "points3D.txt"
    path.write_text("")
    refusal(lambda: load_scene(text_capture), str(path), "empty", "copy it again")


def test_a_model_with_no_photos(tmp_path):
    write_photos(tmp_path / "images", ["a.png"])
    write_model(tmp_path / "sparse" / "0", ["a.png"])
    as_binary(tmp_path / "sparse" / "0")
    for name in ("images", "frames"):
        (tmp_path / "sparse" / "0" / f"{name}.bin").write_bytes(struct.pack("<Q", 0))
    refusal(lambda: load_scene(tmp_path), str(tmp_path), "again")


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("images", "0.3 0.1 4.5", "nan 0.1 4.5", ("pose of photo b.png", "solve it again")),
        ("cameras", "40.0", "inf", ("camera 1", "solve it again")),
        ("points3D", " 0.5 ", " nan ", ("point 5", "solve it again")),
    ],
)
def test_a_number_of_a_text_model_that_is_not_finite(text_capture, name, old, new, words):
    path = text_capture / "sparse" / "0" / f"{name}.txt"
    path.write_text(path.read_text().replace(old, new, 1))
    refusal(lambda: load_scene(text_capture), str(path), "not finite", *words)


def poison(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + 8] = struct.pack("<d", np.nan)
    path.write_bytes(data)


@pytest.mark.parametrize("rigs", [True, False])
def test_a_pose_of_a_binary_model_that_is_not_finite(binary_capture, rigs):
    model = binary_capture / "sparse" / "0"
    if rigs:
        poison(model / "frames.bin", 8 + 8 + 32)
    else:
        (model / "rigs.bin").unlink()
        (model / "frames.bin").unlink()
        poison(model / "images.bin", 8 + 4 + 32)
    refusal(
        lambda: load_scene(binary_capture),
        "pose of photo",
        ".png",
        str(binary_capture),
        "not finite",
        "solve it again",
    )


def test_a_camera_of_a_binary_model_that_is_not_finite(binary_capture):
    poison(binary_capture / "sparse" / "0" / "cameras.bin", 8 + 24)
    refusal(lambda: load_scene(binary_capture), "again")


def test_points_of_a_binary_model_that_are_not_finite_are_dropped_with_a_warning(binary_capture):
    before = load_scene(binary_capture)
    poison(binary_capture / "sparse" / "0" / "points3D.bin", 8 + 8)
    scene = load_scene(binary_capture)
    assert len(scene.points) == len(before.points) - 1 and np.isfinite(scene.points).all()
    assert "1 points that are not finite were dropped" in scene.warnings[0]
    for view in range(3):
        kept = {tuple(row) for row in scene.colours[scene.tracks.of(view)]}
        assert kept == {tuple(row) for row in before.colours[before.tracks.of(view)]} & {
            tuple(row) for row in scene.colours
        }


def test_all_photos_missing(text_capture):
    for path in (text_capture / "images").iterdir():
        path.unlink()
    refusal(
        lambda: load_scene(text_capture), "none of the 3 listed photos exists", str(text_capture), "--images"
    )


def test_a_named_folder_of_photos_that_does_not_exist(text_capture):
    refusal(lambda: load_scene(text_capture, images="photos"), str(text_capture / "photos"), "--images")


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_photo_is_found_when_the_scene_is_loaded(tmp_path, suffix, share):
    root = write_capture(
        tmp_path, (f"a.{suffix}", f"b.{suffix}"), Lens("PINHOLE", (90.0, 90.0, 100.0, 80.0), 200, 160)
    )
    path = root / "images" / f"b.{suffix}"
    cut(path, share)
    refusal(lambda: load_scene(root), str(path), "truncated", "copy it again")


def test_a_photo_cut_after_loading_is_found_when_it_is_decoded(text_capture):
    scene = load_scene(text_capture)
    cut(scene.photos[1].path, 0.6)
    refusal(lambda: load_photo(scene, 1), str(scene.photos[1].path), "truncated", "copy it again")


def test_a_photo_with_a_vendors_bytes_behind_its_end_is_fine(tmp_path):
    root = write_capture(tmp_path, ("a.jpg", "b.jpg"))
    path = root / "images" / "a.jpg"
    path.write_bytes(path.read_bytes() + bytes(100_000))
    scene = load_scene(root)
    assert load_photo(scene, 0)[0].shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (LFS.encode(), ("Git LFS pointer", "git lfs pull")),
        (b"", ("empty", "copy it again")),
        (b"hello, this is no picture", ("not an image", "copy it again")),
    ],
)
def test_a_photo_that_is_none(text_capture, content, words):
    path = text_capture / "images" / "b.png"
    path.write_bytes(content)
    refusal(lambda: load_scene(text_capture), str(path), *words)


def test_a_photo_that_is_a_folder(text_capture):
    path = text_capture / "images" / "b.png"
    path.unlink()
    path.mkdir()
    refusal(lambda: load_scene(text_capture), str(path), "folder")


def test_a_mask_of_another_size(text_capture):
    (text_capture / "masks").mkdir()
    Image.fromarray(picture(32, 24, 0)[..., 0]).save(text_capture / "masks" / "a.png")
    scene = load_scene(text_capture)
    refusal(
        lambda: load_photo(scene, 0), str(text_capture / "masks" / "a.png"), "32x24", "64x48", "make the mask"
    )


def test_a_photo_listed_twice(tmp_path):
    write_photos(tmp_path / "images", ["a.png"])
    write_model(tmp_path / "sparse" / "0", ["a.png", "a.png"], (PINHOLE,))
    refusal(lambda: load_scene(tmp_path), "a.png", "twice", "remove")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"downscale": 0}, ("--downscale 0", "use 1")),
        ({"downscale": 97}, ("--downscale 97 leaves nothing", "a.png", "64x48", "smaller")),
        ({"downscale": float("nan")}, ("--downscale nan", "use 1")),
        ({"test_every": 1}, ("--test-every 1", "use 0")),
        ({"test_every": -2}, ("--test-every -2", "use 0")),
        ({"max_points": 0}, ("--max-points 0", "leave it out")),
        ({"alpha": "matte"}, ("--alpha matte", "use mask")),
        ({"background": (1, 2, 3)}, ("background=(1, 2, 3)", "(1, 1, 1)")),
    ],
)
def test_an_option_out_of_range(text_capture, options, words):
    refusal(lambda: load_scene(text_capture, **options), *words)


def test_a_path_that_is_no_scene(tmp_path):
    refusal(lambda: load_scene(tmp_path / "nothing"), str(tmp_path / "nothing"), "check the path")
    refusal(
        lambda: load_scene(tmp_path),
        str(tmp_path),
        "COLMAP",
        "transforms.json",
        "give the folder of a capture",
    )
    (tmp_path / "x.ply").write_text("ply")
    refusal(lambda: load_scene(tmp_path / "x.ply"), "x.ply", "give the folder of a capture")
