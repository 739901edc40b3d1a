"""Moving between [N, k] arrays and k vectors [N] without the slow paths of XLA:CPU.

Arithmetic on rows is written per component, which vectorises. Plain slicing has a gradient of k padded sums, and a
concatenation fused with what it concatenates evaluates that element by element; together they took most of the time
of a projection's gradient. Here the gradient of taking apart is putting together, which nothing is fused into.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from splat.apart import apart


@jax.custom_vjp
def columns(array: jax.Array) -> tuple[jax.Array, ...]:
    """The k columns [N] of ``array`` [N, k]."""
    rows = array.T
    return tuple(rows[i] for i in range(array.shape[1]))


def stack(parts: Sequence[jax.Array]) -> jax.Array:
    """[N, k] of k vectors [N]."""
    return apart(lambda *parts: jnp.stack(parts, -1), always(parts[0]), *parts)


columns.defvjp(lambda array: (columns(array), None), lambda _, cotangents: (stack(cotangents),))


@jax.custom_vjp
def from_columns(parts: tuple[jax.Array, ...]) -> jax.Array:
    """[N, k] of k vectors [N], with :func:`columns` as its gradient."""
    return stack(parts)


from_columns.defvjp(lambda parts: (stack(parts), None), lambda _, cotangent: (columns(cotangent),))


@jax.custom_vjp
def shared(parts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """``parts`` themselves, with their cotangents evaluated once and not again for every use that XLA:CPU fuses."""
    return parts


def _shared_bwd(_: None, cotangents: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...]]:
    return (apart(lambda *parts: parts, always(cotangents[0]), *cotangents),)


shared.defvjp(lambda parts: (parts, None), _shared_bwd)


def always(array: jax.Array) -> jax.Array:
    """[] bool that holds for whatever ``array`` holds, NaN too, and that no compiler knows to hold."""
    value = array[(0,) * array.ndim]
    return (value <= 0) | ~(value < 0)


def per_row(values: jax.Array, like: jax.Array) -> jax.Array:
    """``values`` [N], one per row, shaped to broadcast against ``like`` [N, ...]."""
    return values.reshape(values.shape + (1,) * (like.ndim - 1))
