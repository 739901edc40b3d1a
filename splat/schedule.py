"""Numbers that follow from the step alone; steps count from 1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

MAX_SH_DEGREE = 3


def log_linear(start: float, end: float, steps: int, step: jax.Array) -> jax.Array:
    """[] float32 between ``start`` and ``end``, straight in the logarithm, reached at ``steps`` (spec
    §0.4).
    """
    done = jnp.clip(jnp.asarray(step, jnp.float32) / steps, 0.0, 1.0)
    return jnp.exp((1 - done) * jnp.log(jnp.float32(start)) + done * jnp.log(jnp.float32(end)))


def sh_degree(step: jax.Array | int, every: int) -> jax.Array:
    """[] int32 active degree of ``step``: 0 at first, one more at each multiple of ``every`` up to 3 (spec
    §0.2).
    """
    return jnp.minimum(jnp.asarray(step, jnp.int32) // every, MAX_SH_DEGREE)


def due(step: Any, every: int, after: int, before: int) -> Any:
    """Whether ``step``, an int or traced, is a multiple of ``every`` strictly between two steps."""
    return (step > after) & (step < before) & (step % every == 0)
