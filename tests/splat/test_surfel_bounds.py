"""Scopes of surfels are conservative: nothing that a pending step can do escapes them, and they are tight."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat import Gaussians
from splat.gaussians import GEOMETRY_FIELDS
from tests.splat import bounds_cases as cases
from tests.splat.bounds_cases import SURFELS
from tests.splat.test_bounds import SEEDS, adversarial_step, escaped, random_moments, trained_step
from tests.splat.test_bounds import scene as solid


def flat(rows: Gaussians) -> Gaussians:
    """The rows with two of their scales."""
    return dataclasses.replace(rows, log_scales=rows.log_scales[:, :2])


def scene(seed, away=None):
    rng, camera, gaussians, alive = solid(seed, away)
    return rng, camera, flat(gaussians), alive


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_no_row_that_moves_within_its_drift_escapes(seed):
    rng, camera, gaussians, alive = scene(seed)
    drift = flat(cases.random_drift(rng))
    kept = cases.scope(SURFELS)(gaussians, drift, camera, alive)
    assert escaped(rng, camera, gaussians, alive, drift, SURFELS, kept) == 0
    assert not np.any(kept & ~np.asarray(alive))


@pytest.mark.parametrize("field", GEOMETRY_FIELDS)
def test_a_scope_that_forgets_the_drift_of_one_field_lets_rows_escape(field):
    """The property above can fail: each field is needed."""
    found = 0
    for seed in range(10):
        rng, camera, gaussians, alive = scene(seed)
        drift = flat(cases.random_drift(rng))
        smaller = dataclasses.replace(drift, **{field: jnp.zeros_like(getattr(drift, field))})
        kept = cases.scope(SURFELS)(gaussians, smaller, camera, alive)
        found += escaped(rng, camera, gaussians, alive, drift, SURFELS, kept)
    assert found > 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["gaussians", "drift"])
def test_rows_that_are_not_finite_are_kept_and_change_no_other(where, value):
    rng, camera, gaussians, _ = scene(3, away=1.0)
    drift, alive = flat(cases.random_drift(rng)), jnp.ones(cases.ROWS, bool)
    inputs = {"gaussians": gaussians, "drift": drift}
    clean = cases.scope(SURFELS)(gaussians, drift, camera, alive)
    for row, field in zip(np.flatnonzero(clean), GEOMETRY_FIELDS, strict=False):
        array = getattr(inputs[where], field)
        bad = dataclasses.replace(inputs[where], **{field: array.at[(row,) + (0,) * (array.ndim - 1)].set(value)})
        np.testing.assert_array_equal(cases.scope(SURFELS)(*(inputs | {where: bad}).values(), camera, alive), clean)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, count=st.sampled_from([0, 1, 9, 30_000]))
def test_what_the_renderer_touches_after_any_step_was_in_the_scope_before(seed, count):
    rng, camera, gaussians, _ = scene(seed)
    state = random_moments(rng, gaussians, count)
    for _ in range(3):
        gaussians, state = adversarial_step(rng, camera, gaussians, state, (True, 1), SURFELS)


def test_the_scope_of_a_trained_scenes_step_is_little_more_than_what_is_touched():
    now, kept = trained_step(SURFELS, 2, 5e-2)
    assert np.all(kept[now])
    assert 0.1 * now.size < np.sum(now) < 0.4 * now.size
    assert np.sum(kept) <= 1.06 * np.sum(now), np.sum(kept) / np.sum(now)
