"""Triangle meshes as PLY files, which every mesh viewer reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from plyfile import PlyData, PlyElement

from splat.fusion import Mesh
from splat.io.files import atomic_write


def write_mesh(mesh: Mesh, path: str | Path) -> None:
    """Write a binary little-endian PLY with vertices (x, y, z, red, green, blue) and faces, atomically.

    Raises UserError when the folder cannot be written to.
    """
    vertices = np.empty(len(mesh.vertices), [(name, "<f4") for name in "xyz"]
                        + [(name, "u1") for name in ("red", "green", "blue")])
    for i, name in enumerate("xyz"):
        vertices[name] = mesh.vertices[:, i]
    for i, name in enumerate(("red", "green", "blue")):
        vertices[name] = mesh.colours[:, i]
    faces = np.empty(len(mesh.faces), [("vertex_indices", "<i4", (3,))])
    faces["vertex_indices"] = mesh.faces
    with atomic_write(Path(path)) as file:
        PlyData([PlyElement.describe(vertices, "vertex"), PlyElement.describe(faces, "face")],
                byte_order="<").write(file)
