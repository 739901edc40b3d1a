"""Budget, draw and score of TamingGS, each against what the spec says or a slow twin."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageFilter
from render_cases import random_inputs
from test_gs3d import view

from splat import tiles
from splat.loss import photometric
from splat.options import RenderOptions
from splat.pipelines.taming_config import TamingConfig
from splat.projection import project
from splat.raster.contributions import contributions
from splat.raster.reference import contributions_ref, raster_ref
from splat.taming.budget import Growth, budget_of
from splat.taming.choice import Candidates, choose, draw, keys, quotas
from splat.taming.score import by_median, edges, view_score

BIG = Growth(100_000, 2_000_000, 500, 15_000, 100)
SMALL = Growth(100_000, 2_000_000, 500, 15_000, 500)


# ---- budget ----


def test_the_curve_is_the_published_one_and_ends_at_the_budget():
    assert (BIG.count, SMALL.count) == (145, 29)
    for growth in (BIG, SMALL):
        steps = [step for step in range(501, 15_000) if step % growth.densify_every == 0]
        assert [growth.number(step) for step in steps] == list(range(len(steps)))
        for k, step in enumerate(steps[:-1]):
            u = (k + 1) / growth.count
            assert abs(growth.target(step) - (100_000 + 1_900_000 * (2 * u - u * u))) <= 1
        assert growth.target(steps[-1]) == 2_000_000 and growth.is_last(steps[-1]) and not growth.is_last(steps[-2])
        targets = [growth.target(step) for step in steps]
        assert targets == sorted(targets)
    assert len([step for step in range(501, 15_000) if step % 500 == 0]) == 28
    assert SMALL.value(28) / 2_000_000 == pytest.approx(0.9989, abs=1e-4)
    assert BIG.value(0) == 100_000 and BIG.value(145) == 2_000_000


def test_the_budget_counts_points_or_rows():
    assert budget_of("multiplier", 15, 1000, None, None) == 15_000
    assert budget_of("final_count", 5_987_095, 1000, None, None) == 5_987_095
    assert budget_of("multiplier", 20, 5000, 40_000, None) == 40_000  # a short run trains no more
    assert budget_of("multiplier", 20, 50_000, 40_000, None) == 50_000  # and takes no points away
    assert budget_of("final_count", 90_000, 5000, 40_000, None) == 90_000  # what is asked for in rows holds
    assert budget_of("final_count", 90_000, 5000, 40_000, 30_000) == 30_000


# ---- draw ----


def random_candidates(rng: np.random.Generator, rows: int) -> Candidates:
    alive = rng.random(rows) < 0.8
    wanting, large = rng.random(rows) < 0.4, rng.random(rows) < 0.5
    return Candidates(alive, wanting & ~large, wanting & large, rng.random(rows) < 0.3)


@pytest.mark.parametrize("seed", range(12))
def test_rows_afterwards_are_the_target_to_the_row_and_never_more(seed):
    rng = np.random.default_rng(seed)
    rows = random_candidates(rng, 400)
    before = int(rows.alive.sum())
    score = np.where(rng.random(400) < 0.2, 0, rng.exponential(size=400))
    for target in (0, before, before + 7, before + 40, before + 41, 10_000):
        for prunes in (True, False):
            chosen = choose(rows, score, target, prunes, seed, 3)
            clone, split, prune = (np.asarray(mask) for mask in (chosen.clone, chosen.split, chosen.prune))
            assert not (clone & split).any() and not ((clone | split) & prune).any()
            assert (clone <= rows.clone & rows.alive).all() and (split <= rows.split & rows.alive).all()
            assert (prune <= rows.prune & rows.alive).all() and (prunes or not prune.any())
            assert prune.sum() <= 0.5 * (rows.prune & rows.alive).sum()
            after = before - prune.sum() + clone.sum() + split.sum()
            assert after == int(chosen.rows)
            wanting = int(((rows.clone | rows.split) & rows.alive & ~prune).sum())
            left = before - prune.sum()
            assert after == (min(target, left + wanting) if target > left else left)


def test_clones_and_splits_share_the_room_in_proportion():
    assert quotas(30, 10, 100) == (30, 10)
    assert quotas(30, 10, 20) == (15, 5)
    assert quotas(30, 11, 20) == (14, 6)
    assert quotas(0, 11, 5) == (0, 5) and quotas(11, 0, 5) == (5, 0) and quotas(0, 0, 5) == (0, 0)


def test_a_row_is_drawn_in_proportion_to_its_weight_and_without_one_last():
    weights = np.array([0.0, 1.0, 2.0, 4.0, 0.0, 3.0])
    rows = np.array([True, True, True, True, True, False])
    first = np.array([draw(rows, weights, 1, keys(6, 5, 2, version)) for version in range(4000)]).mean(axis=0)
    np.testing.assert_allclose(first, weights * rows / 7, atol=0.03)
    three = draw(rows, weights, 3, keys(6, 5, 2, 0))
    assert three.tolist() == [False, True, True, True, False, False]
    assert draw(rows, weights, 9, keys(6, 5, 2, 0)).sum() == 5


def test_random_numbers_follow_from_seed_purpose_version_and_row_alone():
    np.testing.assert_array_equal(keys(10, 1, 2, 3), keys(1000, 1, 2, 3)[:10])
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(keys(10, 1, 2, 3), keys(10, *other))


def test_pruning_spares_rows_of_high_score():
    rows = Candidates(*(np.full(1000, value) for value in (True, False, False, True)))
    score = np.where(np.arange(1000) < 500, 0.01, 100.0)
    prune = np.asarray(choose(rows, score, 0, True, 0, 0).prune)
    assert prune.sum() == 500 and prune[:500].sum() > 490


# ---- score ----


def test_edges_are_those_of_pillow():
    photo = np.random.default_rng(1).integers(0, 256, (23, 31, 3), dtype=np.uint8)
    expected = Image.fromarray(photo).convert("L").filter(ImageFilter.FIND_EDGES)
    np.testing.assert_array_equal(np.rint(edges(jnp.asarray(photo)) * 255), np.asarray(expected))


def test_values_are_divided_by_the_median_of_the_positive_ones():
    found = by_median(jnp.asarray([0.0, 4.0, -3.0, 2.0, jnp.nan, 8.0, 6.0]))
    np.testing.assert_allclose(found, [0, 1, 0, 0.5, 0, 2, 1.5])
    assert not by_median(jnp.zeros(4)).any()


@jax.jit
def twin_of(gaussians, camera, weights, alive):
    return contributions_ref(gaussians, camera, weights, alive=alive)


@pytest.fixture(scope="module")
def scored():
    """A scene in a view with a mask, the sums of both passes, and the weights of pixels."""
    inputs, _ = random_inputs(11, jnp.float32, rows=300, width=40, height=28, max_logit=4.0)
    gaussians, camera = inputs.gaussians, view(4, 40, 28).camera
    alive = jnp.arange(300) % 7 != 0
    weights = jnp.asarray(np.random.default_rng(3).random((28, 40)), jnp.float32)

    @jax.jit
    def sums(gaussians):
        proj = project(gaussians, camera, alive=alive, sh_degree=0, probe=None, options=RenderOptions())
        lists = tiles.build(proj, 40, 28, 4096, 8)
        return contributions(proj.geometry, lists, weights), lists.overflow

    found, overflow = sums(gaussians)
    assert not bool(overflow)
    return gaussians, camera, alive, weights, found


def test_contributions_are_those_of_the_slow_twin(scored):
    gaussians, camera, alive, weights, sums = scored
    twin = np.asarray(twin_of(gaussians, camera, weights, alive))
    assert (twin[1] > 0).sum() > 100 and (twin[1] == 0).sum() > 40
    for found, expected in zip((sums.weight, sums.count, sums.blend, sums.distance), twin, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-3)


def test_the_score_is_the_published_sum_of_normalised_components(scored):
    gaussians, _, alive, _, _ = scored
    sample, config = view(4, 40, 28), TamingConfig()
    gradient = jnp.asarray(np.random.default_rng(5).exponential(size=300), jnp.float32)
    options = RenderOptions()
    found = view_score(gaussians, alive, gradient, jnp.int32(3), sample, options, config.weights)

    camera, photo = sample.camera, jnp.asarray(sample.photo, jnp.float32) / 255
    proj = jax.jit(lambda rows: project(rows, camera, alive=alive, sh_degree=0, probe=None, options=options))(gaussians)
    seen = np.asarray(tiles.touched(proj, 40, 28))
    image = jax.jit(raster_ref)(gaussians, camera, alive=alive).image
    grey = np.asarray(Image.fromarray(sample.photo).convert("L").filter(ImageFilter.FIND_EDGES), np.float32)
    omega = sum(50 * (part - part.min()) / (part.max() - part.min())
                for part in (np.abs(np.asarray(image - photo)).mean(-1), grey))
    loss, count, blend, distance = np.asarray(twin_of(gaussians, camera, jnp.asarray(omega), alive))
    xx, xy, yy = map(np.asarray, proj.covariance)
    largest = np.array([np.linalg.eigvalsh([[a, b], [b, c]])[1] for a, b, c in zip(xx, xy, yy, strict=True)])
    larger = np.maximum(largest, (xx + yy) / 2 + np.sqrt(0.1))
    lives = np.asarray(alive)

    def norm(values, counts=lives):
        values = np.where(counts, values, 0)
        positive = np.sort(values[values > 0])
        return np.where(values > 0, values / positive[(len(positive) - 1) // 2], 0)

    total = (25 * norm(gradient) + 100 * norm(gaussians.opacities) + 5 * norm(proj.features[:, -1], seen)
             + 10 * norm(np.ceil(3 * np.sqrt(larger)), seen) + 25 * norm(np.prod(gaussians.scales, axis=-1))
             + 50 * norm(distance) + 10 * norm(loss) + 0.1 * norm(count) + 50 * norm(blend))
    expected = np.where(seen, 50 * float(photometric(image, photo)) * total, 0)
    assert 50 < seen.sum() < 300
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def test_a_row_is_scored_where_it_stands(scored):
    gaussians, _, alive, _, _ = scored
    gradient, order = jnp.ones(300), np.random.default_rng(2).permutation(300)
    sample, config = view(4, 40, 28), TamingConfig()

    def score(rows):
        return view_score(gaussians.take(rows), alive[rows], gradient, jnp.int32(3), sample, RenderOptions(),
                          config.weights)

    straight, mixed = score(jnp.arange(300)), score(jnp.asarray(order))
    np.testing.assert_allclose(mixed, np.asarray(straight)[order], rtol=1e-3, atol=1e-2)
