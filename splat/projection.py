"""Perspective projection of 3D Gaussians to 2D footprints (spec §1.1; EWA splatting).

Everything is written per component over [N] vectors, which XLA fuses into a few vectorised passes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from splat import quat, sh
from splat.cameras import Camera
from splat.columns import columns, from_columns, shared
from splat.gaussians import Gaussians
from splat.options import RenderOptions

MIN_ALPHA = 1.0 / 255.0  # a response below this is not blended; also what bounds a footprint (spec §1.3)
CLAMP_MARGIN = 0.3  # the Jacobian's x/z is clamped this many tan(fov/2) beyond the image (spec §1.1 step 3)
COMPENSATION_FLOOR = 2.5e-5  # smallest det ratio of the antialiasing compensation (spec §1.1 step 5)
LOG2_E = math.log2(math.e)


@struct.dataclass
class Projected:
    """Footprints of N rows in one view. ``geometry`` and ``features`` are zero in rows that are not valid."""

    geometry: jax.Array  # [N, 6] centre x, y (pixels), conic xx, xy, yy (1/pixels²), log2 opacity
    features: jax.Array  # [N, 4] colour seen from the camera (≥ 0), camera z (world units)
    covariance: tuple[jax.Array, jax.Array, jax.Array]  # xx, xy, yy [N] of the blurred 2D covariance, pixels²
    opacity: jax.Array  # [N] after compensation
    valid: jax.Array  # [N] bool: alive, in front, finite, not degenerate and opaque enough to reach 1/255


class _Eye(NamedTuple):
    """Positions [N] in camera axes; z is 1 where a row is not in front."""

    x: jax.Array
    y: jax.Array
    z: jax.Array


def project(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None, sh_degree: int | jax.Array,
            probe: jax.Array | None, options: RenderOptions, opacities: jax.Array | None = None) -> Projected:
    """Project all rows (spec §1.1). ``probe`` [N, 2] is added to the centres in NDC units (spec §1.4).

    ``opacities`` [N] ≥ 0 stand in for the sigmoid of the logits and may be above 1.
    """
    position = columns(gaussians.means)
    x, y, z = shared(_to_camera(position, camera))
    in_front = z > options.near
    eye = _Eye(x, y, jnp.where(in_front, z, 1.0))
    mean_x, mean_y = _pixel_centres(eye, camera, probe)
    raw_xx, xy, raw_yy = _covariance(gaussians, eye, camera)
    xx, yy = raw_xx + options.low_pass, raw_yy + options.low_pass
    det = xx * yy - xy * xy
    opacity = gaussians.opacities if opacities is None else opacities
    if options.antialias:
        ratio = (raw_xx * raw_yy - xy * xy) / det
        opacity = opacity * jnp.sqrt(jnp.maximum(ratio, COMPENSATION_FLOOR))
    centre = camera.centre
    shown = sh.colours(gaussians.sh_dc, gaussians.sh_rest,
                       (position[0] - centre[0], position[1] - centre[1], position[2] - centre[2]), sh_degree)
    numbers = (det, mean_x, mean_y, gaussians.opacity_logits, *columns(gaussians.log_scales), *columns(shown))
    valid = in_front & jnp.isfinite(sum(numbers)) & (det > 0) & (opacity >= MIN_ALPHA)
    if alive is not None:
        valid = valid & alive
    safe_det = jnp.where(valid, det, 1.0)
    log2_opacity = jnp.log(jnp.where(valid, opacity, 1.0)) * LOG2_E
    geometry = (mean_x, mean_y, yy / safe_det, -xy / safe_det, xx / safe_det, log2_opacity)
    return Projected(from_columns(_kept(valid, geometry)), from_columns(_kept(valid, (*columns(shown), eye.z))),
                     (xx, xy, yy), opacity, valid)


def _kept(valid: jax.Array, parts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.where(valid, part, 0) for part in parts)


def _to_camera(position: tuple[jax.Array, ...], camera: Camera) -> tuple[jax.Array, ...]:
    v, (px, py, pz) = camera.view, position
    return tuple(v[i, 0] * px + v[i, 1] * py + v[i, 2] * pz + v[i, 3] for i in range(3))


def _pixel_centres(eye: _Eye, camera: Camera, probe: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    fx, fy, cx, cy = camera.intrinsics
    mean_x, mean_y = fx * eye.x / eye.z + cx, fy * eye.y / eye.z + cy
    if probe is None:
        return mean_x, mean_y
    probe_x, probe_y = columns(probe)
    return mean_x + probe_x * (camera.width / 2), mean_y + probe_y * (camera.height / 2)


def _covariance(gaussians: Gaussians, eye: _Eye, camera: Camera) -> tuple[jax.Array, jax.Array, jax.Array]:
    """xx, xy, yy [N] of J W Σ Wᵀ Jᵀ as the Gram matrix of the two rows of J W R diag(s)."""
    fx, fy, cx, cy = camera.intrinsics
    margin_x, margin_y = CLAMP_MARGIN * camera.width / (2 * fx), CLAMP_MARGIN * camera.height / (2 * fy)
    slope_x = jnp.clip(eye.x / eye.z, -cx / fx - margin_x, (camera.width - cx) / fx + margin_x)
    slope_y = jnp.clip(eye.y / eye.z, -cy / fy - margin_y, (camera.height - cy) / fy + margin_y)
    v, scale_x, scale_y = camera.view, fx / eye.z, fy / eye.z
    to_x = [(v[0, j] - slope_x * v[2, j]) * scale_x for j in range(3)]
    to_y = [(v[1, j] - slope_y * v[2, j]) * scale_y for j in range(3)]
    rot = quat.rotation(*columns(gaussians.quats))
    # Without this XLA:CPU evaluates the rotation and the Jacobian again for each of the many entries that use them.
    rot, to_x, to_y = jax.lax.optimization_barrier((rot, to_x, to_y))
    sides = [jnp.exp(s) for s in columns(gaussians.log_scales)]
    along_x = [sum(to_x[j] * rot[j][i] for j in range(3)) * sides[i] for i in range(3)]
    along_y = [sum(to_y[j] * rot[j][i] for j in range(3)) * sides[i] for i in range(3)]
    return _dot(along_x, along_x), _dot(along_x, along_y), _dot(along_y, along_y)


def _dot(p: list[jax.Array], q: list[jax.Array]) -> jax.Array:
    return p[0] * q[0] + p[1] * q[1] + p[2] * q[2]
