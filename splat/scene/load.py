"""One entrance for every kind of capture."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from splat.errors import UserError
from splat.scene.assemble import LoadOptions, assemble, keep_points
from splat.scene.blender import is_blender, read_blender
from splat.scene.colmap import find_models, read_colmap
from splat.scene.matrixcity import is_matrixcity, read_matrixcity
from splat.scene.nerfstudio import is_transforms, read_transforms
from splat.scene.npz import load_npz, save_npz
from splat.scene.types import AlphaMode, Scene

__all__ = ["load_scene", "save_npz"]


def load_scene(path: str | Path, *, downscale: float = 1, test_every: int = 8, seed: int = 0,
               max_points: int | None = None, background: tuple[float, float, float] = (0.0, 0.0, 0.0),
               alpha: AlphaMode | None = None, images: str | None = None) -> Scene:
    """Load a capture; its kind is recognised from the files in ``path``. No photo is decoded.

    Args:
        path: a folder with a COLMAP model (``sparse/*``, ``sparse`` or the folder itself), a folder or file
            ``transforms.json`` (nerfstudio, instant-ngp), a folder with ``transforms_train.json`` (Blender, or
            MatrixCity where there is a PLY of points or focal lengths), a folder of such folders ``block_*``, or
            an ``.npz`` saved by ``save_npz``.
        downscale: photo side over training side; intrinsics follow exactly, per axis.
        test_every: every n-th photo by name is a test view, 0: none (COLMAP: those in the model's test.txt,
            if any). Blender and MatrixCity scenes bring their own split, .npz files that, ``alpha`` and
            ``background`` too.
        seed: of the random start and of the choice of ``max_points``.
        max_points: keep at most this many points.
        background: colour in 0..1 behind photos whose alpha is composited.
        alpha: whether an alpha channel is a loss mask or is composited over ``background``; None: composited
            for Blender scenes, a mask elsewhere.
        images: folder of a COLMAP scene's photos, in ``path``; None: ``images``, ``input`` or ``path``.

    Returns:
        The scene, photos sorted by name; ``Scene.warnings`` holds what was skipped or chosen.

    Raises:
        UserError: one line with file and remedy for any input that cannot be used; an argument is named as
                the option of the command line.
    """
    path = Path(path)
    if not (math.isfinite(downscale) and downscale > 0):
        raise UserError(f"--downscale {downscale:g} is not a positive number; use 1, 2, 4 or 8")
    if max_points is not None and max_points < 1:
        raise UserError(f"--max-points {max_points} is not positive; leave it out to keep all points")
    if len(background) != 3 or not all(0 <= value <= 1 for value in background):
        raise UserError(f"background={background} is not three numbers in 0..1; use e.g. (1, 1, 1) for white")
    if alpha not in (None, "mask", "background"):
        raise UserError(f"--alpha {alpha} is unknown; use mask or background")
    if not path.exists():
        raise UserError(f"scene {path} does not exist; check the path")
    options = LoadOptions(downscale, test_every, seed, background, alpha or "mask")
    scene = _recognised(path, images, options, alpha)
    return scene if max_points is None else keep_points(scene, max_points, seed)


def _recognised(path: Path, images: str | None, options: LoadOptions, alpha: AlphaMode | None) -> Scene:
    if path.suffix == ".npz":
        return load_npz(path, downscale=options.downscale)
    if find_models(path):
        return assemble(read_colmap(path, images, options.test_every), path, options)
    if is_matrixcity(path):
        return assemble(read_matrixcity(path), path, options)
    if is_blender(path):
        return assemble(read_blender(path), path, replace(options, alpha=alpha or "background"))
    if is_transforms(path):
        return assemble(read_transforms(path), path, options)
    raise UserError(f"{path} holds no COLMAP model (sparse/*/cameras.bin or .txt), transforms.json, "
                    "transforms_train.json (here or in block_*) or .npz; give the folder of a capture")
