"""Report arrays of the wrong shape or kind before they are rendered; shapes are known under every transformation."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import FIELDS, Gaussians

ROW_SHAPES = {"means": (3,), "log_scales": (3,), "quats": (4,), "opacity_logits": (), "sh_dc": (3,), "sh_rest": (15, 3)}


def check_inputs(gaussians: Gaussians, camera: Camera, alive: Any, background: Any, sh_degree: Any,
                 probe: Any, scales: int = 3) -> None:
    """Raise UserError, naming the argument, unless all have the shapes that ``splat.render`` states.

    A row has three ``scales``, or two where surfels are rendered. Fields are floating point of one dtype. A batch of
    cameras goes through ``jax.vmap``.
    """
    if not (isinstance(gaussians, Gaussians) and isinstance(camera, Camera)):
        raise UserError(f"render takes a splat.Gaussians and a splat.Camera, not {type(gaussians).__name__} and "
                        f"{type(camera).__name__}")
    count = _shape("means", gaussians.means)[:1]
    for name in FIELDS:
        wanted = (scales,) if name == "log_scales" else ROW_SHAPES[name]
        _check(name, getattr(gaussians, name), (*count, *wanted))
    dtypes = {np.dtype(getattr(gaussians, name).dtype) for name in FIELDS}
    if len(dtypes) > 1 or not jax.numpy.issubdtype(next(iter(dtypes)), jax.numpy.floating):
        raise UserError(f"the fields of the Gaussians are of {', '.join(sorted(map(str, dtypes)))}: all must be of one "
                        "floating-point dtype, e.g. float32")
    _check("camera.view", camera.view, (4, 4), "; use jax.vmap over a batch of cameras")
    _check("camera.intrinsics", camera.intrinsics, (4,), ": fx, fy, cx, cy")
    for name in ("width", "height"):
        if not isinstance(getattr(camera, name), int | np.integer):
            raise UserError(f"camera.{name} is {getattr(camera, name)!r}: it must be a whole number of pixels")
    if alive is not None:
        _check("alive", alive, count)
    if background is not None:
        _check("background", background, (3,))
    if probe is not None:
        _check("probe", probe, (*count, 2))
    if isinstance(sh_degree, int | np.integer) and not 0 <= sh_degree <= 3:
        raise UserError(f"sh_degree={sh_degree}: must be 0, 1, 2 or 3")


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise UserError(f"{name} is a {type(value).__name__}: it must be an array")
    return tuple(value.shape)


def _check(name: str, value: Any, wanted: tuple[int, ...], hint: str = "") -> None:
    found = _shape(name, value)
    if found != wanted:
        raise UserError(f"{name} has the shape {found}: it must be {wanted}{hint}")
