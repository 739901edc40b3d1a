"""Keep a part of a program apart from what surrounds it, so that it is compiled alike wherever it stands.

XLA fuses element-wise work into its producers and consumers, and what is fused may be contracted otherwise (one ulp) or
computed again for every consumer. An optimization barrier prevents that on GPU and TPU. XLA:CPU drops barriers before
it fuses, but does not fuse across a branch: there the part is put behind a condition that always holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def apart(function: Callable[..., Any], holds: jax.Array, *args: Any) -> Any:
    """``function(*args)`` for pytrees of arrays, neither fused with what makes ``args`` nor with what uses the result.

    ``holds`` [] bool must be true for every input, in a way that no compiler can see: from an argument of the program.
    """

    def behind_a_branch(holds: jax.Array, *args: Any) -> Any:
        return lax.cond(holds, function, lambda *inner: _never(jax.eval_shape(function, *inner)), *args)

    def behind_barriers(holds: jax.Array, *args: Any) -> Any:
        return lax.optimization_barrier(function(*lax.optimization_barrier(args)))

    return lax.platform_dependent(holds, *args, cpu=behind_a_branch, default=behind_barriers)


def _never(shapes: Any) -> Any:
    def filled(shape: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.full(shape.shape, jnp.nan if jnp.issubdtype(shape.dtype, jnp.inexact) else 0, shape.dtype)

    return jax.tree.map(filled, shapes)
