"""Write the surface of a trained scene as a triangle mesh, fused from the depth maps of its training views."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from odin_jax.depth_pictures import surface_drawer
from odin_jax.loaded import open_run
from splat.errors import UserError
from splat.fusion import empty_volume, integrate, surface
from splat.gaussians import Gaussians
from splat.io.mesh import write_mesh

SOLID = 0.5  # opacity from which rows count for the size of the box


@dataclass(frozen=True)
class MeshConfig:
    """Write the surface of a trained scene as a triangle mesh."""

    dir: Annotated[Path, tyro.conf.Positional]  # folder written by `odin train --out`
    file: Annotated[Path, tyro.conf.Positional]  # where to write, a .ply
    resolution: int = 256  # voxels along the longest side of the box
    share: float = 0.96  # share of the solid rows that lies in the box, along each axis
    keep: int = 50  # connected pieces of the surface kept, the largest ones


def main(config: MeshConfig) -> None:
    """Write the mesh and print its size. Raises UserError for options that cannot work or a scene without depth."""
    if config.file.suffix.lower() != ".ply":
        raise UserError(f"{config.file}: the mesh is written as PLY, so the file's ending must be .ply")
    if not 0 < config.share <= 1:
        raise UserError(f"--share {config.share}: must be above 0 and at most 1")
    if config.keep < 1:
        raise UserError(f"--keep {config.keep}: must be at least 1")
    run = open_run(config.dir)
    cameras = run.cameras("train")
    if not cameras:
        raise UserError(f"{run.folder.cameras} lists no training camera; train again")
    drawer = surface_drawer(run)
    volume = empty_volume(*box(run.gaussians, config.share), config.resolution)
    for _, camera in cameras:
        image, depth = drawer(camera)
        volume = integrate(volume, camera, depth, image)
    mesh = surface(volume, config.keep)
    write_mesh(mesh, config.file)
    print(f"{config.file}: {len(mesh.vertices):,} vertices, {len(mesh.faces):,} triangles, "
          f"voxels of {float(volume.voxel):.3g}")


def box(gaussians: Gaussians, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Corners [3] of the box that holds ``share`` of the solid rows' centres along each axis, a twentieth wider."""
    solid = np.asarray(gaussians.opacities) >= SOLID
    if solid.sum() < 2:
        raise UserError("no row is solid enough to make a mesh of; train longer")
    low, high = np.quantile(np.asarray(gaussians.means)[solid], [(1 - share) / 2, (1 + share) / 2], axis=0)
    margin = 0.025 * (high - low)
    return low - margin, high + margin


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["mesh", *sys.argv[1:]])
