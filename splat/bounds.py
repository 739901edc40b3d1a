"""Which rows a view can touch after parameters that are about to change have changed (design §6; paper §4.3).

A later unit looks at the published rows while an earlier unit's update is still on its way. What it may read has to be
known now and to hold afterwards, so the renderer's own test (``splat.tiles.touched``) is made here on intervals: each
geometry field may end anywhere within ± ``drift`` of its published value, and a row is left out only where no such end
is ever touched. Primes mark values after the change, w₀, w₁, w₂ are the rows of the view rotation W and
σ = x/z the slope of a centre:

* depth: z′ ≥ z⁻ = z − Σⱼ|w₂ⱼ|δpⱼ. A row that may lie on either side of the near plane is kept.
* centre, horizontally: u = f·σ + c. From x′ − σz′ = (w₀ − σ·w₂)·(p′ − p) follows
  |σ′ − σ| ≤ Σⱼ|w₀ⱼ − σ·w₂ⱼ|δpⱼ / z⁻.
* Jacobian row j = (f/z)(w₀ − κ·w₂) with the clamped slope κ: j′ = (z/z′)·j − (f/z′)(κ′ − κ)·w₂. Clamping never
  widens a difference, and the clamped ends of σ's interval bound |κ′ − κ|.
* rotation: with the angle φ between q and q′, sin φ ≤ |δq|/|q| and ‖R′ − R‖ = 2·sin φ. A column of R has length ≤ 1.
* extent: the covariance of a footprint along x is Σᵢ(sᵢ·Rᵢ·j)² with column Rᵢ, and term by term
  |s′ᵢ·R′ᵢ·j′| ≤ sᵢ·exp(δsᵢ)·[(z/z⁻)·min(|Rᵢ·j| + ‖R′ − R‖·‖j‖, ‖j‖) + (f/z⁻)·|κ′ − κ|·‖w₂‖].
* response: opacity′ ≤ sigmoid(logit + δ), as the antialiasing compensation only lowers it; the footprint ends where
  dᵀ·conic·d = 2·ln(255·opacity′).

Rounding is counted as drift, with a pixel on top. Numbers that are not finite fail every comparison that would leave a
row out, so such rows are kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat import quat
from splat.cameras import Camera
from splat.columns import columns
from splat.gaussians import Gaussians
from splat.options import RenderOptions
from splat.projection import CLAMP_MARGIN, MIN_ALPHA
from splat.tiles import SLACK

PIXEL = 1.0  # added to every side of a footprint
ROUNDINGS = 8  # float spacings that two sums of products may be off together, of the sum of their terms
RELATIVE = 1e-5  # by which rounding may change an extent; also added to the level, which is of the size of one
SPIN_ROUNDING = 1e-6  # the same for the entries of a rotation
SURE_SPIN = 0.5  # largest |δq|/|q| for which the angle is bounded; beyond, any rotation is possible
SURE_SQUARES = (1e-16, 1e36)  # |q|² within which normalising a quaternion is exact but for rounding


class Depths(NamedTuple):
    """Depths [N] of centres, world units: before the change, the least after it, and the error of a coordinate."""

    z: jax.Array
    least: jax.Array
    rounding: jax.Array


class Axis(NamedTuple):
    """One image axis: where centres are, and the Jacobian row, [N] each."""

    slope: jax.Array
    shift: jax.Array  # most that the slope changes
    jacobian: tuple[jax.Array, ...]  # 3 components, pixels per world unit
    length: jax.Array  # of the Jacobian row
    sway: jax.Array  # length of what a change of the clamped slope adds to the row


def may_touch(gaussians: Gaussians, drift: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
              log_opacity: jax.Array | None = None, options: RenderOptions | None = None) -> jax.Array:
    """[N] bool: true in every row that a render of ``camera`` could touch after any change within ± ``drift``.

    ``drift`` holds the largest change ≥ 0 of each element of the geometry fields (``splat.optim.worst_step``); its
    colour fields are not looked at and may be None. With zero drift these are the rows of ``count_pairs``, with one
    pixel to spare. "Touch" is ``RenderOutput.visible`` and the rows of ``count_pairs`` (design §6). ``log_opacity`` [N]
    is the logarithm of the largest opacity within ± ``drift``; None: opacities are the sigmoid of the logits.
    """
    options = options or RenderOptions()
    position, moves = columns(gaussians.means), columns(drift.means)
    depth, never, straddles = depths(position, moves, camera, options.near)
    fx, fy, cx, cy = camera.intrinsics
    across = image_axis(0, fx, cx, camera.width, position, moves, camera.view, depth)
    down = image_axis(1, fy, cy, camera.height, position, moves, camera.view, depth)
    xx, yy = (raw + options.low_pass for raw in extents(gaussians, drift, depth, across, down))
    if log_opacity is None:
        log_opacity = jax.nn.log_sigmoid(gaussians.opacity_logits + drift.opacity_logits)
    level = 2 * (log_opacity - math.log(MIN_ALPHA)) + RELATIVE
    outside = (misses(fx, cx, camera.width, across, level * xx)
               | misses(fy, cy, camera.height, down, level * yy)) & ~straddles
    if options.antialias:
        outside &= ~_compensation_unsure(xx, yy, options.low_pass)
    kept = ~(never | outside | (level < 0))
    return kept if alive is None else kept & alive


def depths(position: tuple[jax.Array, ...], moves: tuple[jax.Array, ...], camera: Camera,
           near: float) -> tuple[Depths, jax.Array, jax.Array]:
    """Depths, and [N] bool: rows that are never in front; rows that may end on either side of the near plane."""
    v, (px, py, pz) = camera.view, position
    spacing = ROUNDINGS * float(jnp.finfo(px.dtype).eps)
    size = jnp.max(jnp.abs(v[:3, :3])) * (jnp.abs(px) + jnp.abs(py) + jnp.abs(pz)) + jnp.max(jnp.abs(v[:3, 3]))
    rounding = spacing * size
    z = v[2, 0] * px + v[2, 1] * py + v[2, 2] * pz + v[2, 3]
    change = sum(jnp.abs(v[2, j]) * moves[j] for j in range(3)) + rounding
    least = z - change
    return Depths(z, least, rounding), z + change <= near, ~(least > near)


def image_axis(row: int, focal: jax.Array, middle: jax.Array, size: int, position: tuple[jax.Array, ...],
               moves: tuple[jax.Array, ...], view: jax.Array, depth: Depths, clamp: float = CLAMP_MARGIN) -> Axis:
    """``row`` 0 is horizontal, 1 vertical; ``middle`` and ``size`` in pixels.

    The slope in the Jacobian is clamped ``clamp`` times tan(fov/2) beyond the image; infinity: not at all.
    """
    px, py, pz = position
    slope = (view[row, 0] * px + view[row, 1] * py + view[row, 2] * pz + view[row, 3]) / depth.z
    moved = sum(jnp.abs(view[row, j] - slope * view[2, j]) * moves[j] for j in range(3))
    spacing = ROUNDINGS * float(jnp.finfo(px.dtype).eps)
    shift = (moved + depth.rounding * (1 + jnp.abs(slope))) / depth.least + spacing * jnp.abs(slope)
    margin = clamp * size / (2 * focal)
    low, high = -middle / focal - margin, (size - middle) / focal + margin
    clamped = jnp.clip(slope, low, high)
    turn = jnp.maximum(jnp.clip(slope + shift, low, high) - clamped, clamped - jnp.clip(slope - shift, low, high))
    jacobian = tuple((view[row, j] - clamped * view[2, j]) * (focal / depth.z) for j in range(3))
    toward = jnp.sqrt(jnp.sum(view[2, :3] * view[2, :3]))
    return Axis(slope, shift, jacobian, _norm(jacobian), turn * (focal * toward) / depth.least)


def extents(gaussians: Gaussians, drift: Gaussians, depth: Depths, across: Axis,
            down: Axis) -> tuple[jax.Array, jax.Array]:
    """Most that xx and yy [N] of the projected covariance, not blurred, can be, pixels²; of as many axes as there are
    log-scales."""
    quats = columns(gaussians.quats)
    rot, spin, to_x, to_y = jax.lax.optimization_barrier(
        (quat.rotation(*quats), spins(quats, columns(drift.quats)), across.jacobian, down.jacobian))
    sides = [jnp.exp(s + ds) for s, ds in zip(columns(gaussians.log_scales), columns(drift.log_scales), strict=True)]
    closer = depth.z / depth.least

    def extent(axis: Axis, jacobian: tuple[jax.Array, ...]) -> jax.Array:
        total = jnp.zeros_like(spin)
        for i, side in enumerate(sides):
            along = jnp.abs(sum(jacobian[j] * rot[j][i] for j in range(3))) + spin * axis.length
            along = closer * jnp.minimum(along, axis.length * (1 + SPIN_ROUNDING)) + axis.sway
            total = total + jnp.square(side * along)
        return total

    return extent(across, to_x), extent(down, to_y)


def spins(quats: tuple[jax.Array, ...], moves: tuple[jax.Array, ...]) -> jax.Array:
    """Most that a unit vector's image changes from R to R′, [N]; 2 where the new rotation may be any."""
    squares = sum(q * q for q in quats)
    least, most = SURE_SQUARES
    share = _norm(moves) * jax.lax.rsqrt(squares)
    sure = (share < SURE_SPIN) & (squares > least) & (squares < most)
    return jnp.where(sure, 2 * share, 2) + SPIN_ROUNDING


def misses(focal: jax.Array, middle: jax.Array, size: int, axis: Axis, squares: jax.Array) -> jax.Array:
    """[N] bool: no pixel centre of the axis lies within the root of ``squares`` of any place of the centre."""
    room = jnp.sqrt(jnp.maximum(squares, 0)) * (1 + RELATIVE) + focal * axis.shift + (SLACK + PIXEL)
    centre = focal * axis.slope + middle
    return (centre + room < 0.5) | (centre - room > size - 0.5)


def _compensation_unsure(xx: jax.Array, yy: jax.Array, low_pass: float) -> jax.Array:
    """[N] bool: rounding may put the compensation of antialiasing above one.

    It is the root of N/D with N = rₓr_y − xy² and D = N + low_pass·(rₓ + r_y) + low_pass². Where a compiler fuses the
    multiplications and subtractions of N and D differently, rounding changes them by at most 9/2 spacings of xx·yy
    together. That is less than what D has over N while the smaller of xx and yy is below the limit.
    """
    return ~(jnp.minimum(xx, yy) < low_pass / (10 * float(jnp.finfo(xx.dtype).eps)))


def _norm(parts: tuple[jax.Array, ...]) -> jax.Array:
    return jnp.sqrt(sum(part * part for part in parts))
