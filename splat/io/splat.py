"""The ``.splat`` format of the antimatter15 web viewer: 32 bytes per row, degree-0 colour only.

Row: position 3 × float32, axis lengths 3 × float32, red, green, blue, opacity 4 × uint8, rotation (w, x, y,
z) 4 × uint8 with 128 for 0; no header (antimatter15/splat, convert.py).
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.files import atomic_write, check_file
from splat.sh import C0

_ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])


def write_splat(gaussians: Gaussians, path: str | Path, *,
                alive: np.ndarray | jax.Array | None = None) -> None:
    """Write the alive rows as ``.splat``, atomically, the most visible (volume × opacity) first.

    Args:
        gaussians: N rows with three scales; SH beyond degree 0 has no place in the format.
        path: the file.
        alive: [N] bool, rows to write; None: all.

    Raises:
        UserError: surfels (two scales), or the folder cannot be written to.
    """
    if gaussians.log_scales.shape[1] != 3:
        raise UserError(f"{path}: the .splat format has no surfels; export a .ply instead")
    rows = slice(None) if alive is None else np.asarray(alive, bool)
    means, log_scales, quats, logits, colour = (
        np.asarray(field, np.float64)[rows] for field in
        (gaussians.means, gaussians.log_scales, gaussians.quats, gaussians.opacity_logits, gaussians.sh_dc))
    opacity = 0.5 * (1 + np.tanh(0.5 * logits))
    quats = quats / np.maximum(np.linalg.norm(quats, axis=1, keepdims=True), 1e-12)
    table = np.zeros(len(means), _ROW)
    table["mean"], table["scale"] = means, np.exp(log_scales)
    table["rgba"][:, :3] = _byte(255 * (0.5 + C0 * colour))
    table["rgba"][:, 3] = _byte(255 * opacity)
    table["quat"] = _byte(128 * quats + 128)
    order = np.argsort(-(log_scales.sum(axis=1) + np.log(np.maximum(opacity, 1e-30))), kind="stable")
    with atomic_write(Path(path)) as file:
        file.write(table[order].tobytes())


def read_splat(path: str | Path) -> Gaussians:
    """Read a ``.splat``; opacities of 0 and 255 become half a step from 0 and 1, SH beyond degree 0 is zero.

    Raises:
        UserError: missing, a Git LFS pointer, not a whole number of rows, or a row that is not finite.
    """
    path = Path(path)
    check_file(path, "splat file")
    data = path.read_bytes()
    if len(data) % _ROW.itemsize:
        raise UserError(f"splat file {path} has {len(data)} bytes, no multiple of {_ROW.itemsize}; "
                        "copy it again")
    table = np.frombuffer(data, _ROW)
    for name in ("mean", "scale"):
        bad = ~np.isfinite(table[name]).all(axis=1) | ((table[name] <= 0).any(axis=1) & (name == "scale"))
        if bad.any():
            raise UserError(f"splat file {path} field {name} row {int(np.argmax(bad))} is not finite or not "
                            "positive; export the scene again")
    opacity = np.clip(table["rgba"][:, 3].astype(np.float64), 0.5, 254.5) / 255
    quats = (table["quat"].astype(np.float32) - 128) / 128
    quats[~quats.any(axis=1)] = (1, 0, 0, 0)
    return Gaussians(
        means=jnp.asarray(table["mean"]), log_scales=jnp.asarray(np.log(table["scale"])),
        quats=jnp.asarray(quats),
        opacity_logits=jnp.asarray(np.log(opacity / (1 - opacity)), jnp.float32),
        sh_dc=jnp.asarray((table["rgba"][:, :3].astype(np.float32) / 255 - 0.5) / np.float32(C0)),
        sh_rest=jnp.zeros((len(table), 15, 3), jnp.float32))


def _byte(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
