import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splat.errors import UserError
from splat.scene.load import load_scene
from splat.scene.types import load_photo
from tests.splat.tiny_capture import picture, write_photos

# A camera at (3, 2, 1) that looks along −x of the world with its up along +z: OpenGL axes in its columns.
POSE = [[0.0, 0.0, 1.0, 3.0], [1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]


def moved(distance: float) -> list[list[float]]:
    return [[*row[:3], row[3] + distance * (number == 1)] for number, row in enumerate(POSE)]


def write_transforms(root: Path, head: dict, frames: list[dict], name: str = "transforms.json") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps({**head, "frames": frames}))
    return root


@pytest.fixture
def studio(tmp_path: Path) -> Path:
    write_photos(tmp_path / "images", ["b.png", "a.png"])
    head = {"fl_x": 50.0, "fl_y": 52.0, "cx": 31.0, "cy": 25.0, "w": 64, "h": 48, "camera_model": "OPENCV"}
    return write_transforms(
        tmp_path,
        head,
        [
            {"file_path": "images/b.png", "transform_matrix": POSE},
            {"file_path": "images/a.png", "transform_matrix": moved(1.0), "fl_x": 60.0},
        ],
    )


def test_nerfstudio_cameras_turn_into_opencv_views(studio):
    scene = load_scene(studio)
    assert [photo.name for photo in scene.photos] == ["a.png", "b.png"]
    first, second = scene.photos
    np.testing.assert_array_equal(first.intrinsics, [60.0, 52.0, 31.0, 25.0])
    np.testing.assert_array_equal(second.intrinsics, [50.0, 52.0, 31.0, 25.0])
    np.testing.assert_allclose(second.centre, [3, 2, 1], atol=1e-12)
    ahead, right, above = second.view @ [1, 2, 1, 1], second.view @ [3, 3, 1, 1], second.view @ [3, 2, 2, 1]
    np.testing.assert_allclose(ahead[:3], [0, 0, 2], atol=1e-12)
    np.testing.assert_allclose(right[:3], [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(above[:3], [0, -1, 0], atol=1e-12)


def test_the_file_itself_may_be_given(studio):
    assert len(load_scene(studio / "transforms.json").photos) == 2


def test_without_points_a_seeded_random_cube_around_the_cameras_is_drawn(studio):
    scene, again, other = load_scene(studio), load_scene(studio), load_scene(studio, seed=1)
    assert scene.points.shape == (100_000, 3) and "random" in scene.warnings[-1]
    np.testing.assert_array_equal(scene.points, again.points)
    assert not np.array_equal(scene.points, other.points)
    assert len(scene.tracks.point_ids) == 0 and len(scene.tracks.view_ptr) == 3
    assert len(load_scene(studio, max_points=10).points) == 10


@pytest.mark.parametrize("colour_type", ["uchar", "float"])
def test_points_come_from_the_named_ply(studio, colour_type):
    values = "10 20 30" if colour_type == "uchar" else "0.1 0.2 0.3"
    (studio / "sparse.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\n"
        + "".join(f"property {colour_type} {name}\n" for name in ("red", "green", "blue"))
        + f"end_header\n1 2 3 {values}\n4 5 6 {values}\n"
    )
    data = json.loads((studio / "transforms.json").read_text())
    (studio / "transforms.json").write_text(json.dumps({**data, "ply_file_path": "sparse.ply"}))
    scene = load_scene(studio)
    np.testing.assert_array_equal(scene.points, [[1, 2, 3], [4, 5, 6]])
    expected = [10, 20, 30] if colour_type == "uchar" else [26, 51, 76]
    np.testing.assert_array_equal(scene.colours, [expected, expected])


def test_named_masks_are_used(studio):
    Image.fromarray(picture(64, 48, 9)[..., 0]).save(studio / "m.png")
    data = json.loads((studio / "transforms.json").read_text())
    data["frames"][0]["mask_path"] = "m.png"
    (studio / "transforms.json").write_text(json.dumps(data))
    scene = load_scene(studio)
    assert load_photo(scene, 0)[1] is None
    np.testing.assert_array_equal(load_photo(scene, 1)[1], picture(64, 48, 9)[..., 0])


def test_nerfstudio_distortion_is_taken_out(studio):
    data = json.loads((studio / "transforms.json").read_text())
    (studio / "transforms.json").write_text(json.dumps({**data, "k1": -0.1, "p1": 0.01}))
    scene = load_scene(studio)
    photo = scene.photos[1]
    assert photo.distortion is not None and photo.distortion.params == (
        50.0,
        52.0,
        31.0,
        25.0,
        -0.1,
        0.0,
        0.01,
        0.0,
    )
    assert load_photo(scene, 1)[0].shape == (photo.height, photo.width, 3)


def test_instant_ngp_by_field_of_view_and_without_suffixes(tmp_path):
    write_photos(tmp_path / "images", ["a.png", "b.png"])
    write_transforms(
        tmp_path,
        {"camera_angle_x": 1.0, "aabb_scale": 4},
        [
            {"file_path": "./images/a", "transform_matrix": POSE},
            {"file_path": "./images/b", "transform_matrix": moved(1.0)},
        ],
    )
    focal = 32 / math.tan(0.5)
    np.testing.assert_allclose(load_scene(tmp_path).photos[0].intrinsics, [focal, focal, 32, 24])


@pytest.fixture
def synthetic(tmp_path: Path) -> Path:
    write_photos(tmp_path / "train", [f"r_{i}.png" for i in range(3)], channels=4)
    write_photos(tmp_path / "test", ["r_0.png", "r_1.png"], channels=4)
    for role, count in (("train", 3), ("test", 2)):
        write_transforms(
            tmp_path,
            {"camera_angle_x": 0.7},
            [
                {"file_path": f"./{role}/r_{i}", "rotation": 0.1, "transform_matrix": moved(i)}
                for i in range(count)
            ],
            f"transforms_{role}.json",
        )
    return tmp_path


def test_blender_scenes_bring_their_split_and_are_composited(synthetic):
    scene = load_scene(synthetic, background=(1, 1, 1))
    assert [scene.photos[i].name for i in scene.test] == ["test/r_0.png", "test/r_1.png"]
    assert [scene.photos[i].name for i in scene.train] == [f"train/r_{i}.png" for i in range(3)]
    rgb, mask = load_photo(scene, scene.train[1])
    pixels = picture(64, 48, 1, 4).astype(float)
    share = pixels[..., 3:] / 255
    np.testing.assert_allclose(rgb, pixels[..., :3] * share + 255 * (1 - share), atol=0.51)
    assert mask is None
    assert load_photo(load_scene(synthetic, alpha="mask"), 0)[1] is not None


def test_blender_scenes_start_in_the_cube_of_the_specification(synthetic):
    scene = load_scene(synthetic)
    assert scene.points.shape == (100_000, 3)
    assert 1.299 < np.abs(scene.points).max() <= 1.3 and np.abs(scene.points.mean(axis=0)).max() < 0.02
    assert set(np.unique(scene.colours)) <= {127, 128}


def refuse(root: Path, change: dict, *parts: str) -> None:
    data = json.loads((root / "transforms.json").read_text())
    (root / "transforms.json").write_text(json.dumps({**data, **change}))
    with pytest.raises(UserError) as caught:
        load_scene(root)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"camera_model": "OPENCV_FISHEYE"}, ("OPENCV_FISHEYE", "undistort the photos")),
        ({"is_fisheye": True}, ("fisheye", "undistort the photos")),
        ({"k3": 0.1}, ("k3", "undistort the photos")),
        ({"fl_x": "wide"}, ("fl_x = 'wide'", "calibrate")),
        ({"fl_x": -5.0}, ("no camera has", "calibrate")),
        ({"frames": []}, ("no list 'frames'", "export it again")),
        ({"frames": [{"transform_matrix": POSE}]}, ("frame 0", "no file_path", "add it")),
        ({"frames": [{"file_path": "images/a.png"}]}, ("frame 0 (images/a.png)", "4x4", "export")),
        (
            {"frames": [{"file_path": "images/a.png", "transform_matrix": [[math.nan] * 4] * 4}]},
            ("not finite", "solve it again"),
        ),
        (
            {
                "frames": [
                    {
                        "file_path": "images/a.png",
                        "transform_matrix": [[2.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.0, 0], [0, 0, 0, 1.0]],
                    }
                ]
            },
            ("no rotation", "again"),
        ),
        (
            {"frames": [{"file_path": "images/none.png", "transform_matrix": POSE}]},
            ("none.png", "put the photos there"),
        ),
        ({"ply_file_path": "nowhere.ply"}, ("nowhere.ply", "does not exist")),
        ({"w": 48, "h": 64}, ("64x48", "48x64", "another shape")),
    ],
)
def test_a_transforms_file_that_cannot_be_used(studio, change, parts):
    refuse(studio, change, *parts)


def test_a_cut_transforms_file(studio):
    path = studio / "transforms.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match=r"transforms\.json is cut off or not JSON .*export it again"):
        load_scene(studio)


def test_no_field_of_view(synthetic):
    write_transforms(
        synthetic, {}, [{"file_path": "./train/r_0", "transform_matrix": POSE}], "transforms_train.json"
    )
    with pytest.raises(UserError, match=r"transforms_train\.json has camera_angle_x = None.*radians"):
        load_scene(synthetic)
