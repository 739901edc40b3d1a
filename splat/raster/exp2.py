"""2**x for the blending loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from splat.backend import backend

# Minimax fit of 2**f on [-1/2, 1/2], relative error 2e-9, 1e-7 with float32 rounding.
_COEFFICIENTS = (0.00015345810471, 0.0013399931205, 0.0096184889630, 0.055503287770, 0.24022646891, 0.69314720574,
                 1.0000000005542)
_LOWEST = -126.0  # 2**-126 is the smallest normal float32; a response this small is never blended


def exp2(x: jax.Array) -> jax.Array:
    """2**x for x ≤ 126. In float32 about twice as fast as XLA:CPU's own; other types and backends use XLA's."""
    if x.dtype != jnp.float32 or backend() != "cpu":
        return jnp.exp2(x)
    x = jnp.maximum(x, _LOWEST)
    whole = jnp.round(x)
    part = x - whole
    value = jnp.full_like(part, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        value = value * part + coefficient
    exponent = whole.astype(jnp.int32) << 23
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(value, jnp.int32) + exponent, jnp.float32)
