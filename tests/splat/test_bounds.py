"""Scopes are conservative by proof (design §6): nothing that a pending step can do escapes them, and they are tight."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat import Gaussians, RenderOptions
from splat.gaussians import FIELDS, GEOMETRY_FIELDS
from splat.optim import BETA1, BETA2, EPSILON, AdamState, dense_adam, sparse_adam, worst_step
from tests.splat import bounds_cases as cases
from tests.splat.bounds_cases import PLAIN
from tests.splat.render_cases import QUICK

BOTH = pytest.mark.parametrize("options", [PLAIN, RenderOptions(antialias=True)], ids=["plain", "antialiased"])
SEEDS = st.integers(0, 2**32 - 1)
STEPPED = Gaussians(*[jnp.asarray(True)] * 6)
OPTIMIZERS = {(True, 1): dense_adam(1), (True, 4): dense_adam(4),
              (False, 1): sparse_adam(1), (False, 4): sparse_adam(4)}
UPDATES = {key: jax.jit(optimizer.update, compiler_options=QUICK) for key, optimizer in OPTIMIZERS.items()}
WORST = {(corrected, batch): jax.jit(lambda state, count, rates, stepped, corrected=corrected, batch=batch: worst_step(
    state, count, rates, stepped, batch=batch, bias_corrected=corrected), compiler_options=QUICK)
    for corrected, batch in OPTIMIZERS}


def scene(seed, away=None):
    rng = np.random.default_rng(seed)
    camera = cases.random_camera(rng, away=rng.choice([1.0, 1.0, 300.0, 3e4]) if away is None else away)
    gaussians = cases.random_rows(rng, camera)
    return rng, camera, gaussians, jnp.asarray(rng.random(cases.ROWS) < 0.9)


def escaped(rng, camera, gaussians, alive, drift, options, kept):
    """How many times a row that is not in ``kept`` is touched at an end of the drift."""
    return sum(int(np.sum(cases.touched(options)(end, camera, alive) & ~kept))
               for end in cases.ends(rng, gaussians, drift, camera, options))


@BOTH
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_no_row_that_moves_within_its_drift_escapes(options, seed):
    rng, camera, gaussians, alive = scene(seed)
    drift = cases.random_drift(rng)
    kept = cases.scope(options)(gaussians, drift, camera, alive)
    assert escaped(rng, camera, gaussians, alive, drift, options, kept) == 0
    assert not np.any(kept & ~np.asarray(alive))


@pytest.mark.parametrize("way", ["closer", "sway", "both"])
def test_no_row_escapes_by_one_way_alone(way):
    rng = np.random.default_rng(0)
    camera = dataclasses.replace(cases.random_camera(rng), view=jnp.eye(4),
                                 intrinsics=jnp.asarray([60.0, 60.0, -9.0, 24.0]))
    gaussians, drift = cases.aimed_rows(rng, camera, way)
    alive = jnp.ones(cases.ROWS, bool)
    kept = cases.scope(PLAIN)(gaussians, drift, camera, alive)
    now = cases.touched(PLAIN)(gaussians, camera, alive)
    then = np.any([cases.touched(PLAIN)(end, camera, alive)
                   for end in cases.ends(rng, gaussians, drift, camera, PLAIN)], axis=0)
    assert np.sum(then) > np.sum(now) + 20
    assert not np.any(then & ~kept)
    assert np.sum(kept) < cases.ROWS


@pytest.mark.parametrize("field", GEOMETRY_FIELDS)
def test_a_scope_that_forgets_the_drift_of_one_field_lets_rows_escape(field):
    """The property above can fail: each field is needed."""
    found = 0
    for seed in range(10):
        rng, camera, gaussians, alive = scene(seed)
        drift = cases.random_drift(rng)
        smaller = dataclasses.replace(drift, **{field: jnp.zeros_like(getattr(drift, field))})
        kept = cases.scope(PLAIN)(gaussians, smaller, camera, alive)
        found += escaped(rng, camera, gaussians, alive, drift, PLAIN, kept)
    assert found > 0


def boxes(gaussians, camera):
    """(centre x, centre y, half width, half height) [N] of {response ≥ 1/255} in float64, by matrices; NaN: none."""
    view, (fx, fy, cx, cy) = np.asarray(camera.view, np.float64), np.asarray(camera.intrinsics, np.float64)
    means, logs, quats, logits = (np.asarray(getattr(gaussians, name), np.float64) for name in GEOMETRY_FIELDS)
    x, y, z = (means @ view[:3, :3].T + view[:3, 3]).T
    z[(z <= PLAIN.near) | (logits < cases.BORDER_LOGIT)] = np.nan
    reach = np.sqrt(np.maximum(2 * np.log(255 / (1 + np.exp(-logits))), 0))
    w, *vector = (quats / np.sqrt(np.sum(quats**2, 1, keepdims=True) + 1e-24)).T
    vector = np.stack(vector, 1)
    crossed = np.cross(vector[:, None], np.eye(3)).transpose(0, 2, 1)
    rotation = np.eye(3) + 2 * (w[:, None, None] * crossed + crossed @ crossed)
    axes = view[:3, :3] @ (rotation * np.exp(logs)[:, None])
    found = []
    for part, focal, middle, size in ((x, fx, cx, camera.width), (y, fy, cy, camera.height)):
        margin = 0.15 * size / focal
        slope = np.clip(part / z, -middle / focal - margin, (size - middle) / focal + margin)
        along = (axes[:, len(found)] - slope[:, None] * axes[:, 2]) * (focal / z)[:, None]
        found.append((focal * part / z + middle, reach * np.sqrt(np.sum(along**2, 1) + PLAIN.low_pass)))
    (u, half_x), (v, half_y) = found
    return u, v, half_x, half_y


def test_without_drift_it_is_the_footprints_box_and_a_pixel():
    for seed in range(10):
        _, camera, gaussians, _ = scene(seed, away=1.0)
        alive = jnp.ones(cases.ROWS, bool)
        rotated = jnp.sum(gaussians.quats**2, 1, keepdims=True) > 1e-12  # others may take any rotation
        gaussians = dataclasses.replace(gaussians, quats=jnp.where(rotated, gaussians.quats, jnp.eye(4)[0]))
        none = jax.tree.map(jnp.zeros_like, dataclasses.replace(gaussians, sh_dc=None, sh_rest=None))
        kept = cases.scope(PLAIN)(gaussians, none, camera, alive)
        u, v, half_x, half_y = boxes(gaussians, camera)

        def meets(pixels, relative, u=u, v=v, half_x=half_x, half_y=half_y):
            x, y = half_x * (1 + relative) + pixels, half_y * (1 + relative) + pixels
            return (u + x > 0.5) & (u - x < cases.WIDTH - 0.5) & (v + y > 0.5) & (v - y < cases.HEIGHT - 0.5)

        assert np.all(kept[meets(0.99, -1e-4)])
        assert np.all(meets(1.01, 1e-4)[kept])
        assert 0 < np.sum(kept) < cases.ROWS


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["gaussians", "drift"])
def test_rows_that_are_not_finite_are_kept_and_change_no_other(where, value, options):
    rng, camera, gaussians, _ = scene(3, away=1.0)
    drift, alive = cases.random_drift(rng), jnp.ones(cases.ROWS, bool)
    inputs = {"gaussians": gaussians, "drift": drift}
    clean = cases.scope(options)(gaussians, drift, camera, alive)
    for row, field in zip(np.flatnonzero(clean), GEOMETRY_FIELDS, strict=False):
        array = getattr(inputs[where], field)
        bad = dataclasses.replace(inputs[where], **{field: array.at[(row,) + (0,) * (array.ndim - 1)].set(value)})
        kept = cases.scope(options)(*(inputs | {where: bad}).values(), camera, alive)
        np.testing.assert_array_equal(kept, clean)


def random_moments(rng, like, count):
    """Any moments: of all sizes, in any ratio, without a first, without both, with a second lost to underflow."""
    def field(array):
        shape = array.shape
        mu = rng.standard_normal(shape) * 10 ** rng.uniform(-12, 3, shape)
        nu = mu * mu * 10 ** rng.uniform(-3, 3, shape)
        kind = rng.integers(8, size=shape)
        mu = np.select([kind == 0, kind == 1, kind == 2], [0, 0, 1e-26], mu) * (count > 0)
        nu = np.select([kind == 1, kind == 2], [0, 0], nu) * (count > 0)
        return jnp.asarray(mu, jnp.float32), jnp.asarray(nu, jnp.float32)

    pairs = [field(getattr(like, name)) for name in FIELDS]
    return AdamState(jnp.int32(count), *(Gaussians(*(pair[i] for pair in pairs)) for i in (0, 1)))


def worst_gradient(state, signs, corrected, batch):
    """The gradient whose step is the longest in the direction of ``signs``, which reaches the bound where the first
    moment points there already; elsewhere one so large that the moments do not matter."""
    beta1, beta2, epsilon = BETA1**batch, BETA2**batch, EPSILON / batch**0.5
    c2 = 1 - beta2 ** (int(state.count) + 1) if corrected else 1

    def field(mu, nu, sign):
        mu, nu, sign = (np.asarray(array, np.float64) for array in (mu, nu, sign))
        pull = np.where(mu == 0, 1e-30 * -sign, beta1 * mu)
        aligned = c2 * (1 - beta1) / (1 - beta2) * (beta2 * nu / c2 + epsilon**2) / pull
        against = -sign * 1e6 * (np.sqrt(nu) + np.abs(mu) + 1e-6)
        return jnp.asarray(np.clip(np.where(np.sign(mu) == -sign, aligned, against), -1e18, 1e18), jnp.float32)

    return jax.tree.map(field, state.mu, state.nu, signs)


def other_gradient(rng, like):
    """Gradients of all sizes, zeros, and single elements so large or small that squares leave float32."""
    def field(array):
        shape = array.shape
        g = rng.standard_normal(shape) * 10 ** rng.uniform(-6, 6, shape)
        kind = rng.integers(8, size=shape)
        g = np.select([kind == 0, kind == 1, kind == 2], [0, 1e25 * np.sign(g), 1e-21 * g], g)
        return jnp.asarray(g, jnp.float32)

    return jax.tree.map(field, like)


def adversarial_step(rng, camera, gaussians, state, kind, options=PLAIN):
    """(rows, state) after one step of the optimizer ``kind``; asserts that the bound and the scope hold."""
    corrected, batch = kind
    rates = Gaussians(*(jnp.float32(most * 10 ** rng.uniform(-3, 0)) for most in (0.05, 0.2, 0.05, 0.3, 0.01, 0.01)))
    stepped = Gaussians(*(jnp.asarray(rng.random() < 0.9) for _ in FIELDS))
    visible = jnp.asarray(rng.random(cases.ROWS) < 0.9)
    alive = jnp.ones(cases.ROWS, bool)
    bound = WORST[kind](state, state.count + jnp.any(jnp.stack(jax.tree.leaves(stepped))), rates, stepped)
    kept = cases.scope(options)(gaussians, bound, camera, alive)
    signs = cases.signs_toward_image(rng, gaussians, camera, options)
    worst, other = worst_gradient(state, signs, corrected, batch), other_gradient(rng, gaussians)
    grads = jax.tree.map(lambda a, b: jnp.where(jnp.asarray(rng.random(a.shape) < 0.8), a, b), worst, other)
    updates, state = UPDATES[kind](grads, state, gaussians, learning_rates=rates, stepped=stepped, visible=visible)
    for name in GEOMETRY_FIELDS:
        assert np.all(np.abs(getattr(updates, name)) <= getattr(bound, name)), name
    after = jax.tree.map(jnp.add, gaussians, updates)
    assert not np.any(cases.touched(options)(after, camera, alive) & ~kept)
    return after, state


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: f"{'dense' if kind[0] else 'sparse'}-{kind[1]}")
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, count=st.sampled_from([0, 0, 1, 9, 500, 30_000]))
def test_what_the_renderer_touches_after_any_step_was_in_the_scope_before(kind, seed, count):
    rng, camera, gaussians, _ = scene(seed)
    state = random_moments(rng, gaussians, count)
    for _ in range(3):
        gaussians, state = adversarial_step(rng, camera, gaussians, state, kind)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: f"{'dense' if kind[0] else 'sparse'}-{kind[1]}")
@pytest.mark.parametrize("count", [0, 1, 40, 30_000])
def test_the_bound_of_a_step_is_reached_so_a_smaller_one_would_be_wrong(kind, count):
    rng, _, gaussians, _ = scene(0)
    mu = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape) * (count > 0), jnp.float32), gaussians)
    nu = jax.tree.map(lambda m: m * m * jnp.asarray(rng.uniform(0.02, 20, m.shape), jnp.float32), mu)
    state = AdamState(jnp.int32(count), mu, nu)
    signs = jax.tree.map(lambda m: jnp.where(m == 0, 1.0, -jnp.sign(m)), mu)
    rates = Gaussians(*map(jnp.float32, (1e-3, 5e-3, 1e-3, 5e-2, 1e-3, 1e-3)))
    bound = WORST[kind](state, state.count + 1, rates, STEPPED)
    updates, _ = UPDATES[kind](worst_gradient(state, signs, *kind), state, gaussians, learning_rates=rates,
                               stepped=STEPPED, visible=jnp.ones(cases.ROWS, bool))
    for name in GEOMETRY_FIELDS:
        share = np.abs(getattr(updates, name)) / np.asarray(getattr(bound, name))
        assert np.all((share > 0.998) & (share <= 1)), (name, share.min(), share.max())


def test_fields_that_are_not_stepped_do_not_move_and_colours_have_no_bound():
    _, _, gaussians, _ = scene(0)
    state = random_moments(np.random.default_rng(0), gaussians, 5)
    only = dataclasses.replace(STEPPED, means=jnp.asarray(False))
    bound = WORST[True, 1](state, state.count + 1, Gaussians(*[jnp.float32(0.1)] * 6), only)
    assert not np.any(bound.means)
    assert np.all(np.asarray(bound.quats) > 0)
    assert bound.sh_dc is None and bound.sh_rest is None


def trained_step(options, scales, opacity_rate):
    """(rows touched, rows in the scope of a pending step), bool, of rows with so many ``scales``.

    Sizes, rates and moments as in the middle of a training, extent 4; 20 % of the rows are in the image.
    """
    rng, rows = np.random.default_rng(0), 20_000
    means = rng.standard_normal((rows, 3)) * [4, 3, 3] + [0, 0, 4]
    fields = (means, rng.normal(-4, 0.7, (rows, scales)), rng.standard_normal((rows, 4)), rng.uniform(-5, 4, rows))
    gaussians = Gaussians(*(jnp.asarray(field, jnp.float32) for field in fields), jnp.zeros((rows, 3)),
                          jnp.zeros((rows, 15, 3)))
    camera = dataclasses.replace(cases.random_camera(rng, 640, 480), view=jnp.eye(4), intrinsics=jnp.asarray(
        [500.0, 500.0, 320.0, 240.0]))
    mu = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.float32), gaussians)
    nu = jax.tree.map(lambda m: jnp.asarray(rng.uniform(5, 50, m.shape), jnp.float32), mu)
    rates = Gaussians(*map(jnp.float32, (4 * 1.6e-4, 5e-3, 1e-3, opacity_rate, 2.5e-3, 1.25e-4)))
    bound = WORST[True, 1](AdamState(jnp.int32(1000), mu, nu), 1001, rates, STEPPED)
    alive = jnp.ones(rows, bool)
    return cases.touched(options)(gaussians, camera, alive), cases.scope(options)(gaussians, bound, camera, alive)


def test_the_scope_of_a_trained_scenes_step_is_little_more_than_what_is_touched():
    now, kept = trained_step(PLAIN, 3, 2.5e-2)
    assert np.all(kept[now])
    assert 0.1 * now.size < np.sum(now) < 0.4 * now.size
    assert np.sum(kept) <= 1.05 * np.sum(now), np.sum(kept) / np.sum(now)
