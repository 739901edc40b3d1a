"""Adam, dense and sparse, against the plain formulas."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat.apart import apart
from splat.gaussians import FIELDS, Gaussians
from splat.optim import bias_corrections, dense_adam, sparse_adam
from splat.pipelines.rows import only

ROWS = 12
RATES = Gaussians(*map(jnp.float32, (0.01, 0.02, 0.03, 0.04, 0.05, 0.06)))
ALL = Gaussians(*[jnp.asarray(True)] * 6)


def random_rows(seed: int, rows: int = ROWS) -> Gaussians:
    rng = np.random.default_rng(seed)
    shapes = ((rows, 3), (rows, 3), (rows, 4), (rows,), (rows, 3), (rows, 15, 3))
    return Gaussians(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes))


def run(transformation, steps, stepped=ALL, rows=ROWS):
    """Rows and state after the steps; each entry of ``steps`` is (seed of the gradient, visible)."""
    params = random_rows(0, rows)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    for seed, visible in steps:
        updates, state = update(
            random_rows(seed, rows),
            state,
            params,
            learning_rates=RATES,
            stepped=stepped,
            visible=jnp.asarray(visible),
        )
        params = jax.tree.map(jnp.add, params, updates)
    return params, state


def plain_adam(batch, gradients, corrected, start, rate):
    """The formulas in float64, for one array."""
    beta1, beta2, epsilon = 0.9**batch, 0.999**batch, 1e-15 / batch**0.5
    p, m, v = np.asarray(start, np.float64), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        g = np.asarray(g, np.float64)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        c1, c2 = (1 - beta1**t, 1 - beta2**t) if corrected else (1, 1)
        p = p - rate * (m / c1) / (np.sqrt(v / c2) + epsilon)
    return p


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("make", "corrected"), [(dense_adam, True), (sparse_adam, False)])
def test_it_is_the_published_formula_with_the_batch_rule(make, corrected, batch):
    params, state = run(make(batch), [(seed, np.ones(ROWS, bool)) for seed in (1, 2, 3)])
    for field in FIELDS:
        gradients = [getattr(random_rows(seed), field) for seed in (1, 2, 3)]
        expected = plain_adam(batch, gradients, corrected, getattr(random_rows(0), field), getattr(RATES, field))
        np.testing.assert_allclose(getattr(params, field), expected, rtol=2e-5, atol=1e-6)
    assert int(state.count) == 3


def test_the_first_dense_step_is_the_learning_rate_however_small_the_gradient():
    transformation, params = dense_adam(), random_rows(0)
    tiny = jax.tree.map(lambda g: g * 1e-6, random_rows(1))
    updates, _ = transformation.update(tiny, transformation.init(params), params, learning_rates=RATES, stepped=ALL)
    np.testing.assert_allclose(np.abs(updates.means), 0.01, rtol=1e-4)


def test_sparse_rows_that_no_view_saw_are_frozen_bit_for_bit():
    seen = np.arange(ROWS) % 3 == 0
    before, state_before = run(sparse_adam(), [(1, np.ones(ROWS, bool))])
    after, state_after = run(sparse_adam(), [(1, np.ones(ROWS, bool)), (2, seen)])
    for old, new in ((before, after), (state_before.mu, state_after.mu), (state_before.nu, state_after.nu)):
        for field in FIELDS:
            was, now = np.asarray(getattr(old, field)), np.asarray(getattr(new, field))
            assert was[~seen].tobytes() == now[~seen].tobytes()
            assert np.all(was[seen] != now[seen])


def test_dense_rows_without_gradient_still_drift():
    transformation, params = dense_adam(), random_rows(0)
    rates = {"learning_rates": RATES, "stepped": ALL}
    _, state = transformation.update(random_rows(1), transformation.init(params), params, **rates)
    updates, later = transformation.update(jax.tree.map(jnp.zeros_like, params), state, params, **rates)
    assert np.all(np.asarray(updates.means) != 0)
    np.testing.assert_allclose(later.mu.means, 0.9 * state.mu.means, rtol=1e-6)


@pytest.mark.parametrize("make", [dense_adam, sparse_adam])
def test_a_field_that_is_not_stepped_keeps_rows_and_moments(make):
    every = np.ones(ROWS, bool)
    only = dataclasses.replace(ALL, opacity_logits=jnp.asarray(False))
    params, state = run(make(), [(1, every)], only)
    whole, whole_state = run(make(), [(1, every)])
    np.testing.assert_array_equal(params.opacity_logits, random_rows(0).opacity_logits)
    assert not np.any(state.mu.opacity_logits) and not np.any(state.nu.opacity_logits)
    np.testing.assert_array_equal(params.means, whole.means)
    none = Gaussians(*[jnp.asarray(False)] * 6)
    still, still_state = run(make(), [(1, every)], none)
    np.testing.assert_array_equal(still.means, random_rows(0).means)
    assert int(still_state.count) == 0 and int(whole_state.count) == 1


@pytest.mark.parametrize("make", [dense_adam, sparse_adam])
def test_publishing_rows_in_parts_gives_the_same_bits(make):
    transformation, params, grads = make(), random_rows(0), random_rows(1)
    state = transformation.init(params)._replace(mu=random_rows(2), nu=jax.tree.map(jnp.square, random_rows(3)))
    update = jax.jit(transformation.update)
    extra = {"learning_rates": RATES, "stepped": ALL}
    whole, _ = update(grads, state, params, visible=jnp.ones(ROWS, bool), **extra)
    part = slice(3, 8)
    mu, nu, some = (jax.tree.map(lambda array: array[part], tree) for tree in (state.mu, state.nu, grads))
    piece, _ = update(some, state._replace(mu=mu, nu=nu), visible=jnp.ones(5, bool), **extra)
    for field in FIELDS:
        assert np.asarray(getattr(whole, field)[part]).tobytes() == np.asarray(getattr(piece, field)).tobytes()


@pytest.mark.parametrize("make", [dense_adam, sparse_adam])
def test_a_field_alone_is_stepped_to_the_same_bits_as_among_others(make):
    """With numbers so small that one bit of a step shows in the sum."""
    params, grads, moments = (jax.tree.map(lambda x, scale=scale: x * scale, random_rows(seed, 512))
                              for seed, scale in ((0, 1e-3), (1, 1e-7), (2, 1e-7)))
    transformation, count = make(), jnp.int32(7)
    corrections = bias_corrections(count)

    def step(grads, params, mu, nu):
        state = transformation.init(params)._replace(mu=mu, nu=nu)
        extra = {name: only(values, names) for name, values in (("learning_rates", RATES), ("stepped", ALL))}
        updates, after = transformation.update(grads, state, params, visible=jnp.ones(512, bool), count=count,
                                               corrections=corrections, **extra)
        return jax.tree.map(jnp.add, params, updates), after.mu, after.nu

    results = []
    for names in (FIELDS, ("sh_dc",), ("means", "quats")):
        rows = [only(tree, names) for tree in (grads, params, moments, jax.tree.map(jnp.square, moments))]
        results.append(jax.jit(lambda holds, *rows: apart(step, holds, *rows))(jnp.asarray(True), *rows))
    for part, names in zip(results[1:], (("sh_dc",), ("means", "quats")), strict=True):
        for tree, whole in zip(part, results[0], strict=True):
            for name in names:
                assert np.asarray(getattr(tree, name)).tobytes() == np.asarray(getattr(whole, name)).tobytes(), name
