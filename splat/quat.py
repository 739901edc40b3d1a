"""Quaternions (w, x, y, z)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rotation(quats: jax.Array) -> jax.Array:
    """[..., 3, 3] rotation matrices of ``quats`` [..., 4], which need not be unit length."""
    unit = quats * jax.lax.rsqrt(jnp.sum(quats * quats, -1, keepdims=True) + 1e-30)
    w, x, y, z = unit[..., 0], unit[..., 1], unit[..., 2], unit[..., 3]
    return jnp.stack([
        jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], -1),
        jnp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], -1),
        jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], -1),
    ], -2)
