"""Perspective projection of 3D Gaussians to 2D footprints (spec §1.1; EWA splatting).

Everything is written per component over [N] vectors: XLA fuses that into a few passes, while batched 3×3 products
become slow library calls on CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from splat import quat, sh
from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.options import RenderOptions

MIN_ALPHA = 1.0 / 255.0  # a response below this is not blended; also what bounds a footprint (spec §1.3)
CLAMP_MARGIN = 0.3  # the Jacobian's x/z is clamped this many tan(fov/2) beyond the image (spec §1.1 step 3)
COMPENSATION_FLOOR = 2.5e-5  # smallest det ratio of the antialiasing compensation (spec §1.1 step 5)


@struct.dataclass
class Projected:
    """Footprints of N rows in one view."""

    means: jax.Array  # [N, 2] centre in pixels
    covariances: jax.Array  # [N, 3] xx, xy, yy of the blurred 2D covariance, pixels²
    conics: jax.Array  # [N, 3] xx, xy, yy of its inverse, 1/pixels²
    opacities: jax.Array  # [N] after compensation
    depths: jax.Array  # [N] camera z, world units
    colours: jax.Array  # [N, 3] seen from the camera, ≥ 0
    valid: jax.Array  # [N] bool: alive, in front, finite, not degenerate and opaque enough to reach 1/255


def project(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None, sh_degree: int | jax.Array,
            probe: jax.Array | None, options: RenderOptions) -> Projected:
    """Project all rows (spec §1.1). ``probe`` [N, 2] is added to the centres in NDC units (spec §1.4)."""
    x, y, z = _to_camera(gaussians.means, camera)
    in_front = z > options.near
    depth = jnp.where(in_front, z, 1.0)
    means = _pixel_centres(x, y, depth, camera, probe)
    raw = _covariance(gaussians, x, y, depth, camera)
    xx, xy, yy = raw[0] + options.low_pass, raw[1], raw[2] + options.low_pass
    det = xx * yy - xy * xy
    opacities = gaussians.opacities
    if options.antialias:
        ratio = (raw[0] * raw[2] - raw[1] * raw[1]) / det
        opacities = opacities * jnp.sqrt(jnp.maximum(ratio, COMPENSATION_FLOOR))
    shown = sh.colours(gaussians.sh_dc, gaussians.sh_rest, gaussians.means - camera.centre, sh_degree)
    finite = jnp.isfinite(xx + yy + det) & jnp.isfinite(means[:, 0] + means[:, 1])
    valid = in_front & finite & (det > 0) & (opacities >= MIN_ALPHA)
    if alive is not None:
        valid = valid & alive
    safe_det = jnp.where(valid, det, 1.0)
    conics = jnp.stack([yy / safe_det, -xy / safe_det, xx / safe_det], -1)
    return Projected(means, jnp.stack([xx, xy, yy], -1), conics, opacities, depth, shown, valid)


def _to_camera(means: jax.Array, camera: Camera) -> tuple[jax.Array, jax.Array, jax.Array]:
    v = camera.view
    px, py, pz = means[:, 0], means[:, 1], means[:, 2]
    x, y, z = (v[i, 0] * px + v[i, 1] * py + v[i, 2] * pz + v[i, 3] for i in range(3))
    return x, y, z


def _pixel_centres(x: jax.Array, y: jax.Array, z: jax.Array, camera: Camera, probe: jax.Array | None) -> jax.Array:
    fx, fy, cx, cy = camera.intrinsics
    means = jnp.stack([fx * x / z + cx, fy * y / z + cy], -1)
    if probe is None:
        return means
    return means + probe * jnp.asarray([camera.width / 2, camera.height / 2], means.dtype)


def _covariance(gaussians: Gaussians, x: jax.Array, y: jax.Array, z: jax.Array,
                camera: Camera) -> tuple[jax.Array, jax.Array, jax.Array]:
    """xx, xy, yy of J W Σ Wᵀ Jᵀ as the Gram matrix of the two rows of J W R diag(s)."""
    fx, fy, cx, cy = camera.intrinsics
    margin_x, margin_y = CLAMP_MARGIN * camera.width / (2 * fx), CLAMP_MARGIN * camera.height / (2 * fy)
    slope_x = jnp.clip(x / z, -cx / fx - margin_x, (camera.width - cx) / fx + margin_x)
    slope_y = jnp.clip(y / z, -cy / fy - margin_y, (camera.height - cy) / fy + margin_y)
    rot, v, s = quat.rotation(gaussians.quats), camera.view, gaussians.scales
    rows = ([], [])
    for axis in range(3):
        turned = [sum(v[i, j] * rot[:, j, axis] for j in range(3)) for i in range(3)]
        rows[0].append((fx / z) * (turned[0] - slope_x * turned[2]) * s[:, axis])
        rows[1].append((fy / z) * (turned[1] - slope_y * turned[2]) * s[:, axis])
    xx, xy, yy = (sum(a * b for a, b in zip(p, q, strict=True))
                  for p, q in ((rows[0], rows[0]), (rows[0], rows[1]), (rows[1], rows[1])))
    return xx, xy, yy  # pyright: ignore[reportReturnType]
