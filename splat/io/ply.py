"""PLY files: trained Gaussians in the 3DGS layout that every viewer reads, and coloured point clouds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from plyfile import PlyData, PlyElement, PlyParseError

from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.files import atomic_write, check_file

_REST = 45  # coefficients of degrees 1 to 3 over three channels
_HEADER_LINES = 1000  # far more than any header has
_REST_BY_DEGREE = (0, 9, 24, 45)


def _names(scale_count: int) -> list[str]:
    return ["x", "y", "z", "nx", "ny", "nz", *(f"f_dc_{i}" for i in range(3)),
            *(f"f_rest_{i}" for i in range(_REST)), "opacity", *(f"scale_{i}" for i in range(scale_count)),
            *(f"rot_{i}" for i in range(4))]


def write_ply(gaussians: Gaussians, path: str | Path, *, alive: np.ndarray | jax.Array | None = None) -> None:
    """Write the alive rows as a binary little-endian PLY in the 3DGS layout, atomically (spec §0.1).

    Fields are float32, stored before activation: x y z, nx ny nz = 0, f_dc, f_rest channel-major (15 of red,
    then green, then blue), opacity logit, log-scales, rotation (w, x, y, z) not normalised.

    Args:
        gaussians: N rows.
        path: the file.
        alive: [N] bool, rows to write; None: all.

    Raises:
        UserError: the folder cannot be written to.
    """
    rows = slice(None) if alive is None else np.asarray(alive, bool)
    fields = {name: np.asarray(getattr(gaussians, name))[rows] for name in
              ("means", "sh_dc", "sh_rest", "opacity_logits", "log_scales", "quats")}
    count = len(fields["means"])
    rest = fields["sh_rest"].transpose(0, 2, 1).reshape(count, _REST)
    table = np.concatenate([fields["means"], np.zeros((count, 3)), fields["sh_dc"], rest,
                            fields["opacity_logits"][:, None], fields["log_scales"], fields["quats"]], axis=1)
    names = _names(fields["log_scales"].shape[1])
    vertices = np.ascontiguousarray(table, "<f4").view([(name, "<f4") for name in names]).reshape(count)
    with atomic_write(Path(path)) as file:
        PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(file)


def read_ply(path: str | Path) -> Gaussians:
    """The rows of ``read_rows`` on the default device. Raises UserError as that does."""
    return jax.tree.map(jnp.asarray, read_rows(path))


def read_rows(path: str | Path) -> Gaussians:
    """Read Gaussians from a PLY in the 3DGS layout into NumPy arrays; lower SH degrees are filled up with zeros.

    Surfels (two scales) keep their two columns.

    Raises:
        UserError: missing, truncated, a Git LFS pointer, a plain point cloud, no row, or a row that is not
            finite.
    """
    path = Path(path)
    vertices = _vertices(path)
    if not len(vertices):
        raise UserError(f"PLY {path} has no row; give a scene with at least one Gaussian")
    present = set(vertices.dtype.names or ())
    scale_names = [f"scale_{i}" for i in range(3) if f"scale_{i}" in present]
    rest_names = [f"f_rest_{i}" for i in range(_REST) if f"f_rest_{i}" in present]
    wanted = ["x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1",
              *(f"rot_{i}" for i in range(4))]
    lacking = [name for name in wanted if name not in present]
    if lacking or len(rest_names) not in _REST_BY_DEGREE:
        raise UserError(f"PLY {path} has no property {', '.join(lacking) or 'f_rest_* of a whole degree'}; "
                        "it is not a Gaussian scene in the 3DGS layout, give a trained point_cloud.ply")
    columns = {name: np.asarray(vertices[name], np.float32)
               for name in [*wanted, *scale_names, *rest_names]}
    for name, column in columns.items():
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise UserError(f"PLY {path} property {name} row {row} is not finite; export the scene again")

    def stack(*names: str) -> np.ndarray:
        return np.stack([columns[name] for name in names], axis=1)

    count = len(vertices)
    rest = np.zeros((count, 15, 3), np.float32)
    if rest_names:
        given = stack(*rest_names).reshape(count, 3, -1).transpose(0, 2, 1)
        rest[:, :given.shape[1]] = given
    fields: dict[str, Any] = {  # NumPy in place of JAX arrays
        "means": stack("x", "y", "z"), "log_scales": stack(*scale_names),
        "quats": stack("rot_0", "rot_1", "rot_2", "rot_3"), "opacity_logits": columns["opacity"],
        "sh_dc": stack("f_dc_0", "f_dc_1", "f_dc_2"), "sh_rest": rest}
    return Gaussians(**fields)


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """([P, 3] float64 positions, [P, 3] uint8 colours, grey where there are none) of a PLY point cloud.

    Raises:
        UserError: missing, truncated, a Git LFS pointer, or without x, y, z.
    """
    vertices = _vertices(path)
    present = set(vertices.dtype.names or ())
    if not {"x", "y", "z"} <= present:
        raise UserError(f"PLY {path} has no x, y, z; give a point cloud")
    points = np.stack([np.asarray(vertices[name], np.float64) for name in "xyz"], axis=1)
    if not {"red", "green", "blue"} <= present:
        return points, np.full((len(points), 3), 127, np.uint8)
    colours = np.stack([np.asarray(vertices[name]) for name in ("red", "green", "blue")], axis=1)
    if np.issubdtype(colours.dtype, np.floating):
        colours = np.rint(255 * np.clip(colours, 0, 1))
    return points, colours.astype(np.uint8)


def write_points(points: np.ndarray, colours: np.ndarray, path: str | Path) -> None:
    """Write [P, 3] positions as float32 and [P, 3] uint8 colours as a binary PLY, atomically.

    Raises:
        UserError: the folder cannot be written to.
    """
    names = [*((name, "<f4") for name in "xyz"), *((name, "u1") for name in ("red", "green", "blue"))]
    vertices = np.empty(len(points), names)
    for at in range(3):
        vertices["xyz"[at]] = points[:, at]
        vertices[names[3 + at][0]] = colours[:, at]
    with atomic_write(Path(path)) as file:
        PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(file)


def count_vertices(path: str | Path) -> int:
    """How many vertices a PLY's header announces; nothing behind the header is read.

    Raises:
        UserError: missing, a Git LFS pointer, or no PLY with vertices.
    """
    path = Path(path)
    check_file(path, "PLY")
    with path.open("rb") as file:
        for line in itertools.islice(file, _HEADER_LINES):
            words = line.split()
            if words[:2] == [b"element", b"vertex"] and len(words) == 3 and words[2].isdigit():
                return int(words[2])
            if words == [b"end_header"]:
                break
    raise UserError(f"PLY {path} is cut off or no PLY with vertices; copy it again")


def _vertices(path: Path) -> np.ndarray:
    check_file(path, "PLY")
    try:
        vertices = PlyData.read(str(path))["vertex"].data
    except (PlyParseError, KeyError, ValueError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"PLY {path} is cut off or no PLY with vertices ({reason}); copy it again") from error
    lists = [name for name in vertices.dtype.names or () if vertices.dtype[name].hasobject]
    if lists:
        raise UserError(f"PLY {path} has a list where property {lists[0]} must be one number; export the scene again")
    return vertices
