"""Moving between [N, k] arrays and k vectors [N] without the slow paths of XLA:CPU.

Arithmetic on rows is written per component, which vectorises. Plain slicing has a gradient of k padded sums, and a
concatenation fused with what it concatenates is evaluated element by element with a branch each; together they took
most of the time of a projection's gradient. Here the gradient of taking apart is putting together, and the
transpose that ends a putting together is an exact product with the identity, which nothing fuses into.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


@jax.custom_vjp
def columns(array: jax.Array) -> tuple[jax.Array, ...]:
    """The k columns [N] of ``array`` [N, k]."""
    rows = array.T
    return tuple(rows[i] for i in range(array.shape[1]))


def stack(parts: Sequence[jax.Array]) -> jax.Array:
    """[N, k] of k vectors [N]."""
    rows = jnp.zeros((len(parts), *parts[0].shape), jnp.result_type(*parts))
    for i, part in enumerate(parts):
        rows = rows.at[i].set(part)
    return jnp.einsum("kn,kj->nj", rows, jnp.eye(len(parts), dtype=rows.dtype), precision="highest")


columns.defvjp(lambda array: (columns(array), None), lambda _, cotangents: (stack(cotangents),))


@jax.custom_vjp
def from_columns(parts: tuple[jax.Array, ...]) -> jax.Array:
    """[N, k] of k vectors [N], with :func:`columns` as its gradient."""
    return stack(parts)


from_columns.defvjp(lambda parts: (stack(parts), None), lambda _, cotangent: (columns(cotangent),))
