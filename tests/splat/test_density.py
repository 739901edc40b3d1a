"""Density control against a plain re-implementation in the released code's order: clone, split, prune."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from scipy.stats import norm

from splat import density
from splat.density import DensityRules
from splat.gaussians import FIELDS, Gaussians
from splat.pipelines.gs3d import Gs3d, Gs3dConfig

CAPACITY = 64
EXTENT = 2.0
SEED, VERSION = 7, 3


def rules(cap: int | None = None) -> DensityRules:
    return DensityRules(grad_threshold=2e-4, split_share=0.01, prune_opacity=0.005, prune_share=0.1, cap=cap)


def random_scene(seed: int, capacity: int = CAPACITY, share: float = 0.6):
    """(rows, alive, mean gradient) with every combination of small or large, faint or solid, calm or not."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0.004, 0.018, 0.05, 0.19, 0.25, 0.4], capacity) * rng.uniform(0.95, 1.04, capacity)
    shape = np.exp(-rng.uniform(0.1, 2, (capacity, 3)))
    shape[np.arange(capacity), rng.integers(0, 3, capacity)] = 1
    rows = Gaussians(
        means=rng.normal(size=(capacity, 3)),
        log_scales=np.log(sizes[:, None] * shape),
        quats=rng.normal(size=(capacity, 4)),
        opacity_logits=rng.choice([-6.0, -5.0, 0.0, 2.0], capacity) + rng.uniform(-0.1, 0.1, capacity),
        sh_dc=rng.normal(size=(capacity, 3)),
        sh_rest=rng.normal(size=(capacity, 15, 3)),
    )
    rows = jax.tree.map(lambda field: jnp.asarray(field, jnp.float32), rows)
    gradient = rng.choice([0, 1e-4, 2e-4, 3e-4, 1e-3], capacity) * rng.uniform(1, 1.001, capacity)
    return rows, jnp.asarray(rng.uniform(size=capacity) < share), jnp.asarray(gradient, jnp.float32)


def released_order(rows: Gaussians, alive, gradient, size_prune: bool):
    """[M, 59] rows and [M] bool newborn, as lists grow in the released code; float64."""
    ids = np.flatnonzero(alive)
    fields = {name: np.asarray(getattr(rows, name), np.float64)[ids] for name in FIELDS}
    gradient, old = np.asarray(gradient)[ids], len(ids)
    largest = np.exp(fields["log_scales"]).max(1)
    clone = (gradient >= np.float32(2e-4)) & (largest <= 0.01 * EXTENT)
    fields = {name: np.concatenate([field, field[clone]]) for name, field in fields.items()}
    born = np.arange(len(fields["means"])) >= old
    padded = np.concatenate([gradient, np.zeros(clone.sum())])
    split = (padded >= np.float32(2e-4)) & (np.exp(fields["log_scales"]).max(1) > 0.01 * EXTENT)
    children = {name: np.repeat(field[split], 2, axis=0) for name, field in fields.items()}
    stream = np.random.Philox(np.random.SeedSequence([SEED, density.SPLIT_NOISE, VERSION]))
    uniform = np.random.Generator(stream).random((rows.count, 2, 3))
    noise = norm.ppf(uniform[ids[split[:old]]]).reshape(-1, 3)
    turned = Rotation.from_quat(children["quats"], scalar_first=True).as_matrix() if len(noise) else np.zeros((0, 3, 3))
    children["means"] = children["means"] + np.einsum("nij,nj->ni", turned, noise * np.exp(children["log_scales"]))
    children["log_scales"] = np.log(np.exp(children["log_scales"]) / 1.6)
    fields = {name: np.concatenate([field[~split], children[name]]) for name, field in fields.items()}
    born = np.concatenate([born[~split], np.ones(2 * split.sum(), bool)])
    prune = 1 / (1 + np.exp(-fields["opacity_logits"])) < 0.005
    if size_prune:
        prune |= np.exp(fields["log_scales"]).max(1) > 0.1 * EXTENT
    return table(fields.values())[~prune], born[~prune]


def event(rows: Gaussians, alive, choice: density.Choice):
    """(rows, alive, newborn) after an event that fits the capacity."""
    arrangement = density.arrange(choice, alive, rows.count, SEED, VERSION)
    return density.grow(rows, arrangement), arrangement.alive, arrangement.newborn


def table(fields) -> np.ndarray:
    return np.concatenate([np.asarray(field, np.float64).reshape(len(field), -1) for field in fields], axis=1)


def in_order(rows: np.ndarray, born: np.ndarray) -> np.ndarray:
    """Rows sorted by parent (its colour is unique), survivors first, then by position."""
    return np.lexsort((rows[:, 0], born, rows[:, 11]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size_prune=st.booleans())
def test_it_leaves_the_rows_that_the_released_code_leaves(seed, size_prune):
    rows, alive, gradient = random_scene(seed, share=0.4)
    choice = density.choose(rows, alive, gradient, jnp.float32(EXTENT), jnp.asarray(size_prune), rules())
    after, alive_after, born = event(rows, alive, choice)
    expected, expected_born = released_order(rows, alive, gradient, size_prune)
    assert int(choice.rows) == len(expected) == int(alive_after.sum())
    kept = np.flatnonzero(alive_after)
    ours, ours_born = table(getattr(after, name) for name in FIELDS)[kept], np.asarray(born)[kept]
    ours, expected = ours[in_order(ours, ours_born)], expected[in_order(expected, expected_born)]
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    assert ours_born.sum() == expected_born.sum()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_survivors_stay_where_they_are_bit_for_bit(seed):
    rows, alive, gradient = random_scene(seed, share=0.4)
    choice = density.choose(rows, alive, gradient, jnp.float32(EXTENT), jnp.asarray(True), rules())
    after, alive_after, born = event(rows, alive, choice)
    stay = np.asarray(alive & ~choice.prune & ~choice.split)
    assert np.all(np.asarray(alive_after)[stay]) and not np.any(np.asarray(born)[stay])
    assert not np.any(np.asarray(choice.clone & choice.split | choice.prune & (choice.clone | choice.split)))
    for name in FIELDS:
        assert np.asarray(getattr(after, name))[stay].tobytes() == np.asarray(getattr(rows, name))[stay].tobytes()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    cap=st.sampled_from([3, 20, 45, 70]),
    size_prune=st.booleans(),
    share=st.floats(0, 1),
)
def test_the_cap_holds_on_any_state(seed, cap, size_prune, share):
    rows, alive, gradient = random_scene(seed, share=share)
    choice = density.choose(rows, alive, gradient, jnp.float32(EXTENT), jnp.asarray(size_prune), rules(cap))
    assert int(choice.rows) <= cap
    if int(choice.rows) <= CAPACITY:
        _, alive_after, _ = event(rows, alive, choice)
        assert int(alive_after.sum()) == int(choice.rows)


def test_where_room_is_short_the_largest_gradients_grow():
    rows, alive, gradient = random_scene(3, share=0.5)
    arguments = (rows, alive, gradient, jnp.float32(EXTENT), jnp.asarray(False))
    free = density.choose(*arguments, rules())
    candidates = np.flatnonzero(free.clone | free.split)
    room = 4
    assert len(candidates) > room
    capped = density.choose(*arguments, rules(cap=int((alive & ~free.prune).sum()) + room))
    expected = sorted(candidates, key=lambda row: (-float(gradient[row]), row))[:room]
    assert sorted(np.flatnonzero(capped.clone | capped.split)) == sorted(expected)


def test_rows_beyond_the_cap_go_the_faintest_first():
    rows, alive, _ = random_scene(4, share=1.0)
    choice = density.choose(rows, alive, jnp.zeros(CAPACITY), jnp.float32(EXTENT), jnp.asarray(False), rules(cap=10))
    kept = np.asarray(alive & ~choice.prune)
    assert kept.sum() == 10
    assert np.min(rows.opacities[kept]) >= np.max(rows.opacities[~kept])


def test_children_are_drawn_from_their_parent():
    count = 4000
    one = jax.tree.map(lambda field: jnp.repeat(field[:1], count, axis=0), random_scene(5)[0])
    solid = Gaussians(
        one.means,
        jnp.log(jnp.tile(jnp.asarray([0.5, 0.2, 0.1]), (count, 1))),
        one.quats,
        jnp.zeros(count),
        one.sh_dc,
        one.sh_rest,
    )
    wide = density.widen(solid, 2 * count)
    alive = jnp.arange(2 * count) < count
    choice = density.choose(wide, alive, jnp.ones(2 * count), jnp.float32(EXTENT), jnp.asarray(False), rules())
    after, alive_after, _ = event(wide, alive, choice)
    assert int(alive_after.sum()) == 2 * count
    turn = Rotation.from_quat(np.asarray(one.quats[0]), scalar_first=True).as_matrix()
    covariance = turn @ np.diag([0.25, 0.04, 0.01]) @ turn.T
    np.testing.assert_allclose(np.mean(after.means, 0), one.means[0], atol=0.03)
    np.testing.assert_allclose(np.cov(np.asarray(after.means).T), covariance, atol=0.015)
    assert abs(np.corrcoef(np.asarray(after.means)[:count, 0], np.asarray(after.means)[count:, 0])[0, 1]) < 0.06


def test_capacities_are_few_and_suffice():
    sizes = {density.bucket(rows, 1.5) for rows in range(1, 200_000, 37)}
    assert len(sizes) < 16
    for rows in (1, 1024, 1025, 5000, 123_456):
        size = density.bucket(rows, 1.5)
        assert rows <= size <= max(1024, 1.5 * rows + 2 * density.ROW_MULTIPLE)
        assert density.bucket(size, 1.5) == size


def test_room_is_inert_and_rows_keep_their_place_when_widened():
    rows, _, _ = random_scene(6)
    wide = density.widen(rows, 100)
    np.testing.assert_array_equal(wide.means[:CAPACITY], rows.means)
    np.testing.assert_array_equal(wide.quats[CAPACITY:], np.tile([1.0, 0, 0, 0], (100 - CAPACITY, 1)))
    assert not np.any(density.pad_rows(jnp.ones(CAPACITY, bool), 100)[CAPACITY:])


def test_reset_lowers_and_never_raises():
    rows, _, _ = random_scene(8)
    after = density.reset_opacity(rows, 0.01)
    np.testing.assert_allclose(after.opacities, np.minimum(rows.opacities, 0.01), rtol=1e-5)


def test_mean_gradient_of_unseen_rows_is_zero():
    stats = density.DensityStats(jnp.asarray([0.0, 3.0]), jnp.asarray([0, 2]))
    np.testing.assert_array_equal(stats.mean_gradient, [0, 1.5])


@pytest.mark.parametrize("cap", [None, 40])
def test_an_event_in_the_pipeline_grows_capacity_and_keeps_moments(cap):
    pipeline = Gs3d(Gs3dConfig(cap=cap))
    points = np.random.default_rng(0).normal(size=(30, 3))
    state = pipeline.init(points, np.zeros((30, 3), np.uint8), EXTENT, seed=1)
    rows, alive, gradient = random_scene(11, share=0.9)
    rows = rows.replace(opacity_logits=jnp.maximum(rows.opacity_logits, 0))
    moments = state.optimizer._replace(mu=random_scene(12)[0], nu=random_scene(13)[0])
    state = state.replace(
        gaussians=rows,
        alive=alive,
        optimizer=moments,
        stats=density.DensityStats(gradient * 3, jnp.full(CAPACITY, 3, jnp.int32)),
    )
    choice = density.choose(
        rows, alive, state.stats.mean_gradient, state.extent, jnp.asarray(False), pipeline.config.rules
    )
    after = pipeline.apply_event(state, "densify", 600)
    assert int(after.alive.sum()) == int(choice.rows) and int(after.structural_version) == 1
    assert after.gaussians.count >= CAPACITY and (cap is not None or after.gaussians.count > CAPACITY)
    stay = np.flatnonzero(alive & ~choice.prune & ~choice.split)
    others = np.setdiff1d(np.arange(after.gaussians.count), stay)
    for old, new in ((moments.mu, after.optimizer.mu), (moments.nu, after.optimizer.nu)):
        for name in FIELDS:
            assert np.asarray(getattr(new, name))[stay].tobytes() == np.asarray(getattr(old, name))[stay].tobytes()
            assert not np.any(np.asarray(getattr(new, name))[others])
    assert not np.any(after.stats.grad_accum) and not np.any(after.stats.denom)
    again = pipeline.apply_event(state, "densify", 600)
    later = pipeline.apply_event(state.replace(structural_version=jnp.int32(5)), "densify", 600)
    assert np.asarray(again.gaussians.means).tobytes() == np.asarray(after.gaussians.means).tobytes()
    differs = np.asarray(later.gaussians.means).tobytes() != np.asarray(after.gaussians.means).tobytes()
    assert differs == bool(np.any(choice.split)) and (differs or cap is not None)
