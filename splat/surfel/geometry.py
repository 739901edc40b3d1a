"""Projection of surfels: Gaussian disks that are intersected by the ray of each pixel (spec §2.2 to §2.4).

With camera z of the centre z, projected centre m, and αᵢ [2] and βᵢ the derivatives along tangent i (scale times axis)
of the projection and of the depth, both over z, a point u, v of the disk lies at depth z(1 + β·(u,v)) and is seen at
m + α(u,v)/(1 + β·(u,v)). Solved for a pixel at d from m this is (u,v) = A·d/(1 + g·d) with A = α⁻¹ and g = −βA, and
the depth is z/(1 + g·d): the reciprocal of depth is linear in the image. All of it is of the size of the footprint, so
nothing cancels in float32, as it does in the homogeneous matrix of the spec, whose numbers are these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from splat import quat, sh
from splat.cameras import Camera
from splat.columns import columns, from_columns, shared
from splat.gaussians import Gaussians
from splat.projection import MIN_ALPHA, Projected
from splat.surfel.options import SurfelOptions

LOW_PASS = 2.0  # the filter's response falls as exp(−½·2·d²): σ = √½ pixel (spec §2.3)
SURE_INSIDE = 0.98  # share of 1 up to which r²|β|² leaves the disk clear of the camera plane, so that it is an ellipse
STEEPEST = 1e12  # largest |A|, 1/pixels; a disk beyond it is seen exactly from its edge
LEAST_LEVEL = 1e-6  # so that outlines can be divided by the level
N_GEOMETRY = 12  # columns of ``Surfels.geometry``
N_FEATURES = 6  # columns of ``Surfels.features``


@struct.dataclass
class Surfels:
    """N surfels in one view. ``geometry`` and ``features`` are zero in rows that are not valid."""

    geometry: jax.Array  # [N, 12] m (2), A (4, row-major), g (2), low-pass centre (2), z, log2 opacity; pixels
    features: jax.Array  # [N, 6] colour seen from the camera (≥ 0), normal in camera axes towards the camera
    outline: Projected  # ellipse around all that a row shows, as the footprint of a Gaussian


class _Disk(NamedTuple):
    """Where the disks are in the image, [N] each; see the module's text."""

    mean: tuple[jax.Array, jax.Array]  # m, pixels
    across: tuple[jax.Array, jax.Array]  # x components of α, pixels
    down: tuple[jax.Array, jax.Array]  # y components of α, pixels
    tilt: tuple[jax.Array, jax.Array]  # β


def project(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None, sh_degree: int | jax.Array,
            probe: jax.Array | None, options: SurfelOptions) -> Surfels:
    """Project all rows (scales [N, 2]).

    ``probe`` [N, 2], in NDC units, moves the third entries of T_u and T_v divided by that of T_w, without the low-pass
    centre: its gradient is the number that density control goes by (spec §2.7).
    """
    position, view = columns(gaussians.means), camera.view
    x, y, z = shared(tuple(view[i, 0] * position[0] + view[i, 1] * position[1] + view[i, 2] * position[2] + view[i, 3]
                           for i in range(3)))
    in_front = z > options.near
    z = jnp.where(in_front, z, 1.0)
    axes = _axes(gaussians, camera)
    plain = _disk(gaussians, camera, (x, y, z), axes)
    low_pass = tuple(m + s for m, s in zip(plain.mean, _shift(plain, options.centre_cutoff**2)[0], strict=True))
    disk = plain if probe is None else _probed(plain, columns(probe), camera)
    det = disk.across[0] * disk.down[1] - disk.across[1] * disk.down[0]
    face = axes[2][0] * x + axes[2][1] * y + axes[2][2] * z
    centre = camera.centre
    shown = columns(sh.colours(gaussians.sh_dc, gaussians.sh_rest,
                               tuple(p - centre[i] for i, p in enumerate(position)), sh_degree))
    opacity = gaussians.opacities
    steepness = sum(jnp.abs(part) for part in (*disk.across, *disk.down))
    finite = jnp.isfinite(sum((*disk.mean, *low_pass, *disk.tilt, det, gaussians.opacity_logits, *shown)))
    valid = in_front & finite & (steepness < STEEPEST * jnp.abs(det)) & (face != 0) & (opacity >= MIN_ALPHA)
    if alive is not None:
        valid = valid & alive
    inverse = 1 / jnp.where(valid, det, 1.0)
    a = (disk.down[1] * inverse, -disk.across[1] * inverse, -disk.down[0] * inverse, disk.across[0] * inverse)
    g = (-disk.tilt[0] * a[0] - disk.tilt[1] * a[2], -disk.tilt[0] * a[1] - disk.tilt[1] * a[3])
    log2_opacity = jnp.log2(jnp.where(valid, opacity, 1.0))
    normal = tuple(jnp.where(face > 0, -part, part) for part in axes[2])
    outline = _outline((disk, low_pass, z, opacity), valid, camera, options)
    return Surfels(from_columns(_kept(valid, (*disk.mean, *a, *g, *low_pass, z, log2_opacity))),
                   from_columns(_kept(valid, (*shown, *normal))), outline)


def _kept(valid: jax.Array, parts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.where(valid, part, 0) for part in parts)


def _axes(gaussians: Gaussians, camera: Camera) -> list[tuple[jax.Array, ...]]:
    """The disks' two axes and normals in camera axes, three components [N] each."""
    v = camera.view
    rot: Any = jax.lax.optimization_barrier(quat.rotation(*columns(gaussians.quats)))
    return [tuple(v[i, 0] * rot[0][k] + v[i, 1] * rot[1][k] + v[i, 2] * rot[2][k] for i in range(3)) for k in range(3)]


def _disk(gaussians: Gaussians, camera: Camera, eye: tuple[jax.Array, ...], axes: list[tuple[jax.Array, ...]]) -> _Disk:
    (fx, fy, cx, cy), (x, y, z) = camera.intrinsics, eye
    slope_x, slope_y = x / z, y / z
    over_z = [jnp.exp(s) / z for s in columns(gaussians.log_scales)]
    tangents = [tuple(part * size for part in axis) for axis, size in zip(axes[:2], over_z, strict=True)]
    across, down = (fx * (t[0] - slope_x * t[2]) for t in tangents), (fy * (t[1] - slope_y * t[2]) for t in tangents)
    mean = fx * slope_x + cx, fy * slope_y + cy
    return _Disk(mean, (*across,), (*down,), (tangents[0][2], tangents[1][2]))  # type: ignore[arg-type]


def _probed(disk: _Disk, probe: tuple[jax.Array, ...], camera: Camera) -> _Disk:
    """The disk with T_u[2] and T_v[2] moved by ``probe`` × T_w[2] (NDC units), all else of T as it is."""
    x, y = probe[0] * (camera.width / 2), probe[1] * (camera.height / 2)
    across, down = (tuple(part - move * tilt for part, tilt in zip(parts, disk.tilt, strict=True))
                    for parts, move in ((disk.across, x), (disk.down, y)))
    return _Disk((disk.mean[0] + x, disk.mean[1] + y), across, down, disk.tilt)  # type: ignore[arg-type]


def _shift(disk: _Disk, level: jax.Array | float) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """From m to the middle of the box around the projected disk u² + v² ≤ ``level``, pixels (spec §2.4), and the
    factor 1/(1 − level·|β|²), negative where the disk reaches behind the camera plane."""
    factor = 1 / (1 - level * _dot(disk.tilt, disk.tilt))
    step = -level * factor
    return (step * _dot(disk.across, disk.tilt), step * _dot(disk.down, disk.tilt)), factor


def _outline(parts: tuple[_Disk, tuple[jax.Array, ...], jax.Array, jax.Array], valid: jax.Array, camera: Camera,
             options: SurfelOptions) -> Projected:
    """An ellipse around the pixels whose response can reach 1/255.

    These are the projected disk u² + v² ≤ level and a circle around the low-pass centre. Where the disk is clear of
    the camera plane it is seen as an ellipse; elsewhere its hits beyond ``near`` lie within r·|α|·z/near of m.
    """
    disk, low_pass, z, opacity = parts
    level = jnp.maximum(2 * jnp.log(jnp.maximum(opacity, MIN_ALPHA) / MIN_ALPHA), LEAST_LEVEL)
    near_rows = level * _dot(disk.tilt, disk.tilt) > SURE_INSIDE
    upright = (jnp.where(near_rows, 0, disk.tilt[0]), jnp.where(near_rows, 0, disk.tilt[1]))
    clear = _Disk(disk.mean, disk.across, disk.down, upright)
    (sx, sy), factor = _shift(clear, level)
    size = (camera.width, camera.height)
    wide, high = (2 * _square(jnp.minimum(jnp.sqrt(level * _dot(a, a)) * z / options.near, jnp.abs(m) + s))
                  for a, m, s in zip((disk.across, disk.down), disk.mean, size, strict=True))
    spread = level * factor
    xx = jnp.where(near_rows, wide, spread * _dot(disk.across, disk.across) + sx * sx)
    yy = jnp.where(near_rows, high, spread * _dot(disk.down, disk.down) + sy * sy)
    xy = jnp.where(near_rows, 0, spread * _dot(disk.across, disk.down) + sx * sy)
    sx, sy = jnp.where(near_rows, 0, sx), jnp.where(near_rows, 0, sy)
    centre = disk.mean[0] + sx, disk.mean[1] + sy
    apart = jnp.sqrt(_square(low_pass[0] - centre[0]) + _square(low_pass[1] - centre[1]))
    xx, xy, yy = _at_least(_square(jnp.sqrt(level / LOW_PASS) + apart), xx, xy, yy)
    covariance = tuple(jnp.where(valid, part / level, 1) for part in (xx, xy, yy))
    geometry, depth = from_columns(_kept(valid, centre)), jnp.where(valid, z, 0)[:, None]
    return Projected(geometry, depth, covariance, opacity, valid)  # type: ignore[arg-type]


def _at_least(least: jax.Array, xx: jax.Array, xy: jax.Array, yy: jax.Array) -> tuple[jax.Array, ...]:
    """The smallest ellipse of the same axes that holds the given one and the circle of squared radius ``least``."""
    middle, half = (xx + yy) / 2, jnp.sqrt(_square((xx - yy) / 2) + xy * xy)
    large, small = jnp.maximum(middle + half, least), jnp.maximum(middle - half, least)
    safe = jnp.where(half > 0, half, 1.0)
    cos, sin = jnp.where(half > 0, (xx - yy) / (2 * safe), 1.0), jnp.where(half > 0, xy / safe, 0.0)
    mean, stretch = (large + small) / 2, (large - small) / 2
    return mean + stretch * cos, stretch * sin, mean - stretch * cos


def _dot(p: tuple[jax.Array, ...], q: tuple[jax.Array, ...]) -> jax.Array:
    return p[0] * q[0] + p[1] * q[1]


def _square(x: jax.Array) -> jax.Array:
    return x * x
