"""Adam for Gaussians, dense and sparse, as optax transformations.

Every operation is element-wise over rows and fields, so publishing a step in parts (rows × fields, design
§7) gives the same numbers as publishing it whole. What differs between steps comes in as traced extra
arguments:

* ``learning_rates``: a ``Gaussians`` of scalars, one rate per field;
* ``stepped``: a ``Gaussians`` of boolean scalars; a field that is not stepped keeps its rows and moments
  bit for bit;
* ``visible`` [N] bool: the rows that took part (used by the sparse form only);
* ``count`` [] int32 and ``corrections`` [2] float, where an update is made in parts: the count after the step, and
  ``bias_corrections`` of it (used by the dense form only). Left out, the count is the state's own plus one if any field
  is stepped. They are computed once for all parts: in the program of a part, XLA would divide by such a number or
  multiply with its reciprocal, depending on how many fields use it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from splat.columns import per_row
from splat.gaussians import COLOUR_FIELDS, GEOMETRY_FIELDS, Gaussians

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-15
ROUNDING = 1e-5  # share added to the bound of a step, far above what float32 loses in the dozen operations of one


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
        count: jax.Array | None = None,
        corrections: jax.Array | None = None,
        **_: object,
    ) -> tuple[Gaussians, AdamState]:
        count = next_count(state.count, stepped) if count is None else count
        if corrections is None:
            corrections = bias_corrections(count, batch, jax.tree.leaves(updates)[0].dtype)
        correction1, correction2 = corrections

        def field(g: jax.Array, mu: jax.Array, nu: jax.Array, rate: jax.Array, on: jax.Array):
            mu_new, nu_new = _moments(g, mu, nu, beta1, beta2)
            delta = -(rate * correction1) * mu_new / (jnp.sqrt(nu_new * correction2) + epsilon)
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
        count: jax.Array | None = None,
        **_: object,
    ) -> tuple[Gaussians, AdamState]:
        count = next_count(state.count, stepped) if count is None else count

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


def next_count(count: jax.Array, stepped: Gaussians) -> jax.Array:
    """[] int32 steps taken after a step of the fields ``stepped``: one more if there is any."""
    return count + jnp.any(jnp.stack(jax.tree.leaves(stepped))).astype(jnp.int32)


def bias_corrections(count: jax.Array | int, batch: int = 1, dtype: Any = jnp.float32) -> jax.Array:
    """[2] factors 1/(1 − β^count) of both moments, 0 steps taken as 1; ``batch`` as in ``dense_adam``."""
    exponent = jnp.maximum(count, 1).astype(dtype)
    return jnp.stack([-1 / jnp.expm1(exponent * (batch * math.log(beta))) for beta in (BETA1, BETA2)])


def worst_step(
    state: AdamState,
    count: jax.Array | int,
    learning_rates: Gaussians,
    stepped: Gaussians,
    *,
    batch: int = 1,
    bias_corrected: bool,
) -> Gaussians:
    """Most that each element of the geometry fields can change in the step that ``count`` (1-based) numbers,
    whatever the gradient is, if finite (design §6). The colour fields of the result are None.

    ``state`` holds the moments (m, v) before that step, so ``count`` is ``state.count + 1`` where the step is
    the next one. ``bias_corrected`` is true for ``dense_adam``; for ``sparse_adam`` c₁ = c₂ = 1.
    ``learning_rates``, ``stepped`` and ``batch`` as there. Fields that are not stepped have zero.

    Let a = β₁m and b = (1−β₁)g, so m′ = a + b, and let D = √(v′/c₂) + ε be the divisor. Then D² ≥ v′/c₂ + ε² =
    P + Q with P = β₂v/c₂ + ε² and Q = (1−β₂)g²/c₂ = b²/w, w = c₂(1−β₁)²/(1−β₂). By Cauchy–Schwarz
    |a + b| = |(a/√P)·√P + √w·(b/√w)| ≤ √(a²/P + w)·√(P + Q), hence |m′|/D ≤ √(a²/P + w), reached at
    b = wP/a where ε is negligible. ε² in P keeps this finite for v = 0, where m is 0 too or so small that g² was
    lost to underflow. Where Q is lost so now, |m′|/D ≤ |a|/√P + (1−β₁)|g|/ε, with g at most where (1−β₂)g² is
    the least normal number; the larger bound counts. Rounding is covered by ``ROUNDING``. An m that is not
    finite gives no finite bound.
    """
    beta1, beta2, epsilon = BETA1**batch, BETA2**batch, EPSILON / batch**0.5
    dtype = state.mu.means.dtype
    c1, c2 = 1 / bias_corrections(count, batch, dtype) if bias_corrected else jnp.ones(2, dtype)
    new = c2 * ((1 - beta1) ** 2 / (1 - beta2))
    lost = (1 - beta1) / epsilon * math.sqrt(float(jnp.finfo(dtype).tiny) / (1 - beta2))

    def field(name: str) -> jax.Array:
        mu, nu = getattr(state.mu, name), getattr(state.nu, name)
        old = beta1 * jnp.abs(mu) / jnp.sqrt(nu * (beta2 / c2) + epsilon**2)
        longest = jnp.maximum(jnp.sqrt(old * old + new), old + lost)
        bound = longest * ((1 + ROUNDING) / c1 * getattr(learning_rates, name))
        return jnp.where(getattr(stepped, name), bound, jnp.zeros_like(bound))

    unbounded: Any = dict.fromkeys(COLOUR_FIELDS)
    return Gaussians(**{name: field(name) for name in GEOMETRY_FIELDS}, **unbounded)


def _init(params: Any) -> AdamState:
    mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return AdamState(jnp.zeros((), jnp.int32), mu, nu)


def _moments(
    g: jax.Array, mu: jax.Array, nu: jax.Array, beta1: float, beta2: float
) -> tuple[jax.Array, jax.Array]:
    return beta1 * mu + (1 - beta1) * g, beta2 * nu + (1 - beta2) * g * g


def _where(rows: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
    """``jnp.where`` with a condition per row ([N]) or for all ([])."""
    return jnp.where(per_row(rows, yes) if rows.ndim else rows, yes, no)


def _apply(field, count: jax.Array, *trees) -> tuple[Gaussians, AdamState]:
    grads, state, learning_rates, stepped = trees
    triples = jax.tree.map(field, grads, state.mu, state.nu, learning_rates, stepped)
    updates, mu, nu = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0, 0)), triples)
    return updates, AdamState(count, mu, nu)
