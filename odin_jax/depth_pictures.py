"""Pictures of where the surface of a trained scene lies and how it faces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import colormaps

from odin_jax.evaluate import Drawer, Painter, to_8_bit
from odin_jax.loaded import LoadedRun
from splat.cameras import Camera
from splat.errors import UserError
from splat.surfel.losses import surface_normals

Drawn = Literal["colour", "depth", "normal"]
RANGE = (2, 98)  # percentiles of the inverse depths of a view between which the colours change


def painter_of(run: LoadedRun, show: Drawn) -> Callable[[Camera], np.ndarray]:
    """Camera → [H, W, 3] uint8 of what is shown.

    Raises UserError for depth or normals where the run's pipeline renders no depth.
    """
    if show == "colour":
        return Painter(run.pipeline, run.gaussians, run.backdrop())
    drawer, paint = surface_drawer(run), depth_picture if show == "depth" else normal_picture
    return lambda camera: paint(drawer(camera)[1], camera)


def surface_drawer(run: LoadedRun) -> Drawer:
    """Camera → image and depth of the run's rows. Raises UserError where its pipeline renders no depth."""
    surface = getattr(run.pipeline, "surface", None)
    if surface is None:
        raise UserError(f"{run.folder.path}: the pipeline {run.config.pipeline} renders no depth")
    return Drawer(surface, run.gaussians, run.backdrop())


def depth_picture(depth: jax.Array, camera: Camera) -> np.ndarray:
    """[H, W, 3] uint8: inverse depth from blue (far) to red (near); black where there is no surface."""
    far = np.asarray(depth)
    seen = far > 0
    inverse = 1 / np.where(seen, far, 1)
    low, high = np.percentile(inverse[seen], RANGE) if seen.any() else (0.0, 1.0)
    share = np.clip((inverse - low) / max(high - low, 1e-12), 0, 1)
    return to_8_bit(colormaps["turbo"](share)[..., :3] * seen[..., None])


def normal_picture(depth: jax.Array, camera: Camera) -> np.ndarray:
    """[H, W, 3] uint8: red to the right, green up, blue towards the camera; black where there is no surface."""
    normals = np.asarray(surface_normals(jnp.asarray(depth), camera))
    seen = np.any(normals != 0, -1, keepdims=True) & (np.asarray(depth) > 0)[..., None]
    return to_8_bit((0.5 + 0.5 * normals * np.array([1, -1, -1])) * seen)
