"""Which rows a view of surfels can touch after parameters that are about to change have changed (design §6).

The bounds of centre, depth and rotation are those of ``splat.bounds``, where the symbols are explained; here they are
put together to the outline of ``splat.surfel.geometry``. With α and β as there, a the length of a row of α, b that of
β, ℓ = r² the level that the opacity gives, q = ℓb² and k = 1/(1 − q):

* the projected disk reaches at most kra from its middle, whose distance from m is at most kℓab;
* the low-pass centre, with the squared cutoff c² for ℓ, lies at most c²ab/(1 − c²b²) from m, in the same direction;
* the outline is no wider than the root of the sum of the squares of kra and of √(ℓ/2) plus the distance between the
  two, in each axis, as an ellipse whose axes are raised to a least length is no wider than with that added in squares.

All of it grows with a, b and ℓ. Rows that may come so close that q or c²b² is not clearly below one are kept.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from splat import quat
from splat.bounds import RELATIVE, SPIN_ROUNDING, Axis, depths, extents, image_axis, misses, spins
from splat.cameras import Camera
from splat.columns import columns
from splat.gaussians import Gaussians
from splat.projection import MIN_ALPHA
from splat.surfel.geometry import LOW_PASS
from splat.surfel.options import SurfelOptions

CLEAR = 0.9  # share of 1 up to which q and c²b² count as clearly below; SURE_INSIDE of the renderer is above


def may_touch_surfels(gaussians: Gaussians, drift: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
                      options: SurfelOptions | None = None) -> jax.Array:
    """[N] bool: true in every row that a render of ``camera`` could touch after any change within ± ``drift``.

    ``drift`` as in ``splat.bounds.may_touch``. "Touch" is ``SurfelOutput.visible`` and the rows of
    ``count_surfel_pairs``.
    """
    options = options or SurfelOptions()
    position, moves = columns(gaussians.means), columns(drift.means)
    depth, never, straddles = depths(position, moves, camera, options.near)
    fx, fy, cx, cy = camera.intrinsics
    across = image_axis(0, fx, cx, camera.width, position, moves, camera.view, depth, math.inf)
    down = image_axis(1, fy, cy, camera.height, position, moves, camera.view, depth, math.inf)
    squares = extents(gaussians, drift, depth, across, down)
    tilt = _tilt(gaussians, drift, camera) / jnp.square(depth.least)
    logits = gaussians.opacity_logits + drift.opacity_logits
    level = 2 * (jax.nn.log_sigmoid(logits) - math.log(MIN_ALPHA)) + RELATIVE
    cutoff = options.centre_cutoff**2
    clear = (level * tilt < CLEAR) & (cutoff * tilt < CLEAR) & ~straddles
    reach = jnp.maximum(level, 0)
    k, k_low_pass = 1 / (1 - reach * tilt), 1 / (1 - cutoff * tilt)
    lean = tuple(jnp.sqrt(square * tilt) for square in squares)
    to_disk, to_low_pass = k * reach, k_low_pass * cutoff
    apart = jnp.maximum(to_disk, to_low_pass) * jnp.sqrt(jnp.square(lean[0]) + jnp.square(lean[1]))
    around = jnp.sqrt(reach / LOW_PASS) + apart

    def outside(focal: jax.Array, middle: jax.Array, size: int, axis: Axis, place: int) -> jax.Array:
        half = jnp.sqrt(jnp.square(k) * reach * squares[place] + jnp.square(around)) + to_disk * lean[place]
        return misses(focal, middle, size, axis, jnp.square(half))

    out = (outside(fx, cx, camera.width, across, 0) | outside(fy, cy, camera.height, down, 1)) & clear
    kept = ~(never | out | (level < 0))
    return kept if alive is None else kept & alive


def _tilt(gaussians: Gaussians, drift: Gaussians, camera: Camera) -> jax.Array:
    """Most that the squared length of the depth's derivatives along the two tangents, z²·b², can be, [N]."""
    quats = columns(gaussians.quats)
    rot, spin = quat.rotation(*quats), spins(quats, columns(drift.quats))
    toward = camera.view[2, :3]
    length = jnp.sqrt(jnp.sum(toward * toward))
    total = jnp.zeros_like(spin)
    for i, (size, more) in enumerate(zip(columns(gaussians.log_scales), columns(drift.log_scales), strict=True)):
        along = jnp.abs(sum(toward[j] * rot[j][i] for j in range(3))) + spin * length
        along = jnp.minimum(along, length * (1 + SPIN_ROUNDING))
        total = total + jnp.square(jnp.exp(size + more) * along)
    return total * (1 + RELATIVE)
