"""Adam for Gaussians, dense and sparse, as optax transformations.

Every operation is element-wise over rows and fields, so publishing a step in parts (rows × fields, design
§7) gives the same numbers as publishing it whole. What differs between steps comes in as traced extra
arguments:

* ``learning_rates``: a ``Gaussians`` of scalars, one rate per field;
* ``stepped``: a ``Gaussians`` of boolean scalars; a field that is not stepped keeps its rows and moments
  bit for bit;
* ``visible`` [N] bool: the rows that took part (used by the sparse form only).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from splat.gaussians import Gaussians

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-15


class AdamState(NamedTuple):
    """Moments as rows like the primitives', and one count for all rows and fields."""

    count: jax.Array  # [] int32 steps taken
    mu: Gaussians  # first moments
    nu: Gaussians  # second moments


def dense_adam(batch: int = 1) -> optax.GradientTransformationExtraArgs:
    """Adam with one step count for all rows, so that new rows start without a bias correction of their own
    (spec §0.4).

    ``batch`` > 1 is the √B rule for a mean gradient over that many views: β ← β^B, ε ← ε/√B, and the
    learning rates, which come from outside, × √B (spec §6.3). ``update(grads, state, params, *,
    learning_rates, stepped)``.
    """
    beta1, beta2, epsilon = BETA1**batch, BETA2**batch, EPSILON / batch**0.5

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        learning_rates: Gaussians,
        stepped: Gaussians,
        **_: object,
    ) -> tuple[Gaussians, AdamState]:
        count = state.count + jnp.any(jnp.stack(jax.tree.leaves(stepped))).astype(jnp.int32)
        exponent = jnp.maximum(count, 1).astype(updates.means.dtype)
        correction1, correction2 = (-jnp.expm1(exponent * math.log(beta)) for beta in (beta1, beta2))

        def field(g: jax.Array, mu: jax.Array, nu: jax.Array, rate: jax.Array, on: jax.Array):
            mu_new, nu_new = _moments(g, mu, nu, beta1, beta2)
            delta = -(rate / correction1) * mu_new / (jnp.sqrt(nu_new) / jnp.sqrt(correction2) + epsilon)
            return _where(on, delta, jnp.zeros_like(delta)), _where(on, mu_new, mu), _where(on, nu_new, nu)

        return _apply(field, count, updates, state, learning_rates, stepped)

    return optax.GradientTransformationExtraArgs(cast(Any, _init), cast(Any, update))


def sparse_adam(batch: int = 1) -> optax.GradientTransformationExtraArgs:
    """Adam on the visible rows only, without bias correction; invisible rows keep their moments (spec §1.6).

    ``batch`` as in ``dense_adam``. ``update(grads, state, params, *, learning_rates, stepped, visible)``.
    """
    beta1, beta2, epsilon = BETA1**batch, BETA2**batch, EPSILON / batch**0.5

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        learning_rates: Gaussians,
        stepped: Gaussians,
        visible: jax.Array,
        **_: object,
    ) -> tuple[Gaussians, AdamState]:
        count = state.count + jnp.any(jnp.stack(jax.tree.leaves(stepped))).astype(jnp.int32)

        def field(g: jax.Array, mu: jax.Array, nu: jax.Array, rate: jax.Array, on: jax.Array):
            rows = visible & on
            mu_new, nu_new = _moments(g, mu, nu, beta1, beta2)
            delta = -rate * mu_new / (jnp.sqrt(nu_new) + epsilon)
            return (
                _where(rows, delta, jnp.zeros_like(delta)),
                _where(rows, mu_new, mu),
                _where(rows, nu_new, nu),
            )

        return _apply(field, count, updates, state, learning_rates, stepped)

    return optax.GradientTransformationExtraArgs(cast(Any, _init), cast(Any, update))


def _init(params: Any) -> AdamState:
    mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return AdamState(jnp.zeros((), jnp.int32), mu, nu)


def _moments(
    g: jax.Array, mu: jax.Array, nu: jax.Array, beta1: float, beta2: float
) -> tuple[jax.Array, jax.Array]:
    return beta1 * mu + (1 - beta1) * g, beta2 * nu + (1 - beta2) * g * g


def _where(rows: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
    """``jnp.where`` with a condition per row ([N]) or for all ([])."""
    return jnp.where(rows.reshape(rows.shape + (1,) * (yes.ndim - 1)) if rows.ndim else rows, yes, no)


def _apply(field, count: jax.Array, *trees) -> tuple[Gaussians, AdamState]:
    grads, state, learning_rates, stepped = trees
    triples = jax.tree.map(field, grads, state.mu, state.nu, learning_rates, stepped)
    updates, mu, nu = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0, 0)), triples)
    return updates, AdamState(count, mu, nu)
