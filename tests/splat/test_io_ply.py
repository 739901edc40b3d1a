from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from plyfile import PlyData

from splat.errors import UserError
from splat.gaussians import FIELDS, Gaussians
from splat.io.files import atomic_write
from splat.io.ply import read_ply, read_points, write_ply


def gaussians(count: int = 7, scales: int = 3) -> Gaussians:
    rng = np.random.default_rng(0)

    def draw(*shape: int):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return Gaussians(
        draw(count, 3), draw(count, scales), draw(count, 4), draw(count), draw(count, 3), draw(count, 15, 3)
    )


def same(a: Gaussians, b: Gaussians) -> None:
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


@pytest.mark.parametrize("scales", [3, 2])
def test_what_is_written_is_read_bit_for_bit(tmp_path, scales):
    rows = gaussians(scales=scales)
    write_ply(rows, tmp_path / "new" / "point_cloud.ply")
    same(read_ply(tmp_path / "new" / "point_cloud.ply"), rows)


def test_only_alive_rows_are_written(tmp_path):
    rows = gaussians()
    alive = np.asarray([1, 0, 1, 1, 0, 0, 1], bool)
    write_ply(rows, tmp_path / "a.ply", alive=alive)
    same(read_ply(tmp_path / "a.ply"), rows.take(alive))


def test_the_header_and_the_order_of_bytes_are_those_of_3dgs(tmp_path):
    rows = gaussians(2)
    write_ply(rows, tmp_path / "a.ply")
    header, body = (tmp_path / "a.ply").read_bytes().split(b"end_header\n")
    names = [
        "x",
        "y",
        "z",
        "nx",
        "ny",
        "nz",
        *[f"f_dc_{i}" for i in range(3)],
        *[f"f_rest_{i}" for i in range(45)],
        "opacity",
        *[f"scale_{i}" for i in range(3)],
        *[f"rot_{i}" for i in range(4)],
    ]
    assert header.decode().split("\n") == [
        "ply",
        "format binary_little_endian 1.0",
        "element vertex 2",
        *[f"property float {name}" for name in names],
        "",
    ]
    table = np.frombuffer(body, "<f4").reshape(2, 62)
    np.testing.assert_array_equal(table[:, :3], rows.means)
    assert not table[:, 3:6].any()
    # Channel-major: all 15 coefficients of red, then of green, then of blue.
    np.testing.assert_array_equal(table[:, 9:24], rows.sh_rest[:, :, 0])
    np.testing.assert_array_equal(table[:, 24:39], rows.sh_rest[:, :, 1])
    np.testing.assert_array_equal(table[:, 54], rows.opacity_logits)
    np.testing.assert_array_equal(table[:, 55:58], rows.log_scales)
    np.testing.assert_array_equal(table[:, 58:], rows.quats)


def shortened(path: Path, keep: int, names: list[str]) -> None:
    """A PLY with ``keep`` f_rest properties, and without the named ones."""
    vertices = PlyData.read(path)["vertex"].data
    gone = {f"f_rest_{i}" for i in range(keep, 45)} | set(names)
    kept = [name for name in vertices.dtype.names if name not in gone]
    body = np.stack([vertices[name] for name in kept], axis=1).astype("<f4").tobytes()
    head = (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {len(vertices)}\n"
        + "".join(f"property float {name}\n" for name in kept)
        + "end_header\n"
    )
    path.write_bytes(head.encode() + body)


@pytest.mark.parametrize(("rest", "coefficients"), [(0, 0), (9, 3), (24, 8)])
def test_lower_degrees_are_filled_up_with_zeros(tmp_path, rest, coefficients):
    rows = gaussians()
    write_ply(rows, tmp_path / "a.ply")
    table = (
        np.stack(
            [np.asarray(PlyData.read(tmp_path / "a.ply")["vertex"][f"f_rest_{i}"]) for i in range(rest)],
            axis=1,
        )
        if rest
        else np.zeros((7, 0))
    )
    shortened(tmp_path / "a.ply", rest, [])
    read = np.asarray(read_ply(tmp_path / "a.ply").sh_rest)
    np.testing.assert_array_equal(read[:, :coefficients], table.reshape(7, 3, -1).transpose(0, 2, 1))
    assert not read[:, coefficients:].any()


def refuse(path: Path, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        read_ply(path)
    assert "\n" not in str(caught.value)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_files_that_are_no_gaussians_are_refused_by_one_line(tmp_path):
    path = tmp_path / "a.ply"
    refuse(path, "does not exist", "check the path")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refuse(path, "Git LFS pointer", "git lfs pull")
    path.write_bytes(b"")
    refuse(path, "empty", "copy it again")
    path.write_bytes(b"\x89PNG something else")
    refuse(path, "no PLY", "copy it again")
    write_ply(gaussians(), path)
    path.write_bytes(path.read_bytes()[:-50])
    refuse(path, "cut off", "copy it again")
    write_ply(gaussians(), path)
    shortened(path, 45, ["opacity", "rot_2"])
    refuse(path, "no property opacity, rot_2", "trained point_cloud.ply")
    write_ply(gaussians(), path)
    shortened(path, 10, [])
    refuse(path, "f_rest_* of a whole degree")
    write_ply(gaussians(3), path, alive=np.zeros(3, bool))
    refuse(path, "has no row", "at least one Gaussian")


def test_a_row_that_is_not_finite_is_named(tmp_path):
    rows = gaussians()
    write_ply(rows.replace(log_scales=rows.log_scales.at[4, 1].set(jnp.inf)), tmp_path / "a.ply")
    refuse(tmp_path / "a.ply", "property scale_1 row 4", "not finite", "export the scene again")


def test_point_clouds_without_colour_are_grey(tmp_path):
    (tmp_path / "a.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
        "property float z\nend_header\n1 2 3\n"
    )
    points, colours = read_points(tmp_path / "a.ply")
    np.testing.assert_array_equal(points, [[1, 2, 3]])
    np.testing.assert_array_equal(colours, [[127, 127, 127]])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="midway"), atomic_write(path) as file:
        file.write(b"ne")
        raise RuntimeError("midway")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"cannot write .*file/a\.ply .*choose another folder"):
        write_ply(gaussians(), tmp_path / "file" / "a.ply")


def test_lists_in_place_of_numbers_are_refused(tmp_path):
    path = tmp_path / "list.ply"
    path.write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar float x\nend_header\n1 0\n")
    with pytest.raises(UserError, match=r"list\.ply has a list where property x"):
        read_ply(path)
