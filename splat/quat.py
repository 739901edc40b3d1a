"""Quaternions (w, x, y, z)."""

from __future__ import annotations

import jax

TINY = 1e-24  # keeps the gradient of a zero quaternion, as capacity rows may hold, finite in float32

Rotation = tuple[tuple[jax.Array, jax.Array, jax.Array], ...]


def rotation(w: jax.Array, x: jax.Array, y: jax.Array, z: jax.Array) -> Rotation:
    """3×3 nested tuple of [N] entries of the rotations of N quaternions, which need not be unit length."""
    inverse = jax.lax.rsqrt(w * w + x * x + y * y + z * z + TINY)
    w, x, y, z = w * inverse, x * inverse, y * inverse, z * inverse
    return ((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)))
