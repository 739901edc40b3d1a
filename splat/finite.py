"""Report numbers that are not finite before they are rendered."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import FIELDS, Gaussians


def is_concrete(tree: Any) -> bool:
    """Whether all leaves hold numbers, that is, none is being traced by a transformation."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def check_numbers(gaussians: Gaussians, camera: Camera, alive: jax.Array | None, what: str) -> None:
    """Raise UserError without rows (called ``what``) or pixels, and where a number that is concrete is not finite."""
    if gaussians.count == 0:
        raise UserError(f"there are no {what} to render: pass at least one row, which may be one that is not alive")
    if is_concrete((gaussians, alive)):
        check_finite(gaussians, alive)
    check_size(camera)
    if is_concrete(camera):
        check_camera(camera)


def check_finite(gaussians: Gaussians, alive: jax.Array | None = None) -> None:
    """Raise UserError, naming field and row, if a row that is alive holds a number that is not finite.

    Needs concrete inputs. ``alive`` [N] bool: rows that are only capacity may hold anything.
    """
    with jax.ensure_compile_time_eval():
        if bool(_all_finite(gaussians, alive)):
            return
    used = np.ones(gaussians.count, bool) if alive is None else np.asarray(alive)
    for name in FIELDS:
        field = np.asarray(getattr(gaussians, name))
        bad = ~np.isfinite(field).reshape(len(field), -1).all(1) & used
        if bad.any():
            row = int(np.argmax(bad))
            value = next(v for v in field[row].ravel() if not np.isfinite(v))
            rows = f"{int(bad.sum())} of {int(used.sum())} rows"
            raise UserError(f"{name}, row {row}, holds {value} ({rows} are not finite in this field): "
                            "remove or repair them before rendering")


def check_camera(camera: Camera) -> None:
    """Raise UserError, naming the field, if a concrete ``camera`` has no pixels or a number that is not finite."""
    check_size(camera)
    for name in ("view", "intrinsics"):
        if not np.all(np.isfinite(np.asarray(getattr(camera, name)))):
            raise UserError(f"{name} of the camera is not finite: check the pose and intrinsics it is made from")


def check_size(camera: Camera) -> None:
    """Raise UserError if ``camera`` has no pixels; its size is known under every transformation."""
    if camera.width < 1 or camera.height < 1:
        raise UserError(f"the camera has {camera.width}x{camera.height} pixels: width and height must be at least 1")


@jax.jit
def _all_finite(gaussians: Gaussians, alive: jax.Array | None) -> jax.Array:
    def bad(field: jax.Array) -> jax.Array:
        rows = ~jnp.all(jnp.isfinite(field.reshape(field.shape[0], -1)), 1)
        return jnp.any(rows if alive is None else rows & alive)

    return ~jnp.any(jnp.stack([bad(getattr(gaussians, name)) for name in FIELDS]))
