"""DashGS: the resolution schedule against a slow twin, the budget, prune-then-grow, and the rate of the means."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from splat.density import DensityStats
from splat.errors import UserError
from splat.pipelines import frequency
from splat.pipelines.dash import Dash
from splat.pipelines.dash_config import DashConfig
from splat.schedule import log_linear


def photos(count, height, width, seed=0, blur=6):
    """Photos with most of their energy in low frequencies, none alike."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        y, x = np.mgrid[:height, :width] / (2 + blur * index / count)
        waves = np.sin(x[..., None] * rng.uniform(0.2, 1, 3) + y[..., None] * rng.uniform(0.2, 1, 3))
        found.append((127 + 60 * waves + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8))
    return found


def slow_window(magnitude, scale):
    """|F| of the frequencies within the window, one by one; ⌊n/2⌋ of n lie below 0 on each axis."""
    total = 0.0
    rows, columns = (int(size / scale) for size in magnitude.shape)
    for y in range(magnitude.shape[0]):
        for x in range(magnitude.shape[1]):
            fy, fx = y - magnitude.shape[0] // 2, x - magnitude.shape[1] // 2
            if -(rows // 2) <= fy < rows - rows // 2 and -(columns // 2) <= fx < columns - columns // 2:
                total += magnitude[y, x]
    return total


def slow_magnitude(photo):
    """Σ over channels of |Σ photo · e^(−2πi(fy·y/H + fx·x/W))|, frequency by frequency."""
    height, width, _ = photo.shape
    fy, fx = np.arange(height) - height // 2, np.arange(width) - width // 2
    along_y = np.exp(-2j * np.pi * np.outer(fy, np.arange(height)) / height)
    along_x = np.exp(-2j * np.pi * np.outer(np.arange(width), fx) / width)
    return sum(np.abs(along_y @ (photo[..., channel] / 255) @ along_x) for channel in range(3))


def test_windows_hold_what_a_slow_twin_counts():
    for photo in (photos(1, 17, 24)[0], photos(1, 16, 25, seed=1)[0]):
        slow = slow_magnitude(photo)
        np.testing.assert_allclose(frequency.magnitude_of(photo), slow, rtol=1e-6, atol=1e-6)
        spectrum = frequency.spectrum_of(slow)
        for scale in (1.0, 1.3, 2.0, 3.7, 8.0):
            assert spectrum.window(scale) == pytest.approx(slow_window(slow, scale), rel=1e-9)


def test_levels_hold_equal_steps_of_energy_and_start_when_their_logarithm_says():
    shots = [*photos(3, 48, 64), *photos(2, 40, 30, seed=3)]
    found = frequency.schedule_of(shots, 8, 0.25, 32)
    magnitudes = [slow_magnitude(shot) for shot in shots]

    def mean(scale):
        return sum(frequency.spectrum_of(magnitude).window(scale) for magnitude in magnitudes) / len(shots)

    for magnitude in magnitudes:
        spectrum = frequency.spectrum_of(magnitude)
        assert spectrum.window(found.scales[0]) >= 0.25 * spectrum.window(1) * (1 - 1e-9)
    for level, scale in enumerate(found.scales):
        wanted = mean(found.scales[0]) + (mean(1) - mean(found.scales[0])) * level / 31
        assert mean(scale) >= wanted * (1 - 1e-9)
        assert scale == found.scales[0] or mean(scale * 1.0001) < wanted * 1.0001
        reached = 27000 * np.log(wanted / mean(found.scales[0])) / np.log(mean(1) / mean(found.scales[0]))
        assert abs(found.starts(27000)[level] - reached) <= 1


GREY = np.full((16, 16, 3), 9, np.uint8)


@pytest.mark.parametrize("shots", [photos(4, 48, 64), photos(2, 64, 48, seed=5, blur=1), [GREY]])
def test_scales_never_rise_and_end_at_one(shots):
    found = frequency.schedule_of(shots, 8, 0.25, 32)
    scales = [found.scale(step, 1000) for step in range(1001)]
    assert scales == sorted(scales, reverse=True) and scales[-1] == 1
    assert found.scales[0] == scales[0] or len(set(found.energies)) == 1
    assert all(1 <= scale <= 8 for scale in scales)
    pipeline = Dash(DashConfig.for_iterations(2000), found)
    used = [pipeline.scale(step) for step in range(1, 2001)]
    powers = Dash(replace(pipeline.config, powers_of_two=True), found)
    coarse = [powers.scale(step) for step in range(1, 2001)]
    assert set(coarse) <= {1, 2, 4, 8} and all(few <= scale < 2 * few for few, scale in zip(coarse, used, strict=True))
    assert used == sorted(used, reverse=True) and used[-1] == 1 and len(set(used)) <= 8
    for step in range(1, 2000):
        assert ("resolution" in pipeline.events(step)) == (used[step] != used[step - 1])


def test_a_survey_survives_json_and_other_options_are_refused():
    pipeline = Dash(DashConfig())
    found = pipeline.survey(photos(2, 24, 32))
    assert pipeline.with_survey({**found, "scales": list(found["scales"])}).resolutions.scales == found["scales"]
    assert pipeline.resolutions.scales == (1.0,)
    with pytest.raises(UserError, match=r"--dash\.max-scale 4"):
        Dash(DashConfig(max_scale=4)).with_survey(found)


COARSE = frequency.Schedule((8.0, 4.0, 2.0, 1.5, 1.0), (1.0, 2.0, 3.0, 4.0, 5.0))


def start(config, rows=120, seed=0):
    rng = np.random.default_rng(seed)
    pipeline = Dash(config, COARSE)
    return pipeline, pipeline.init(rng.normal(size=(rows, 3)), rng.integers(0, 255, (rows, 3), np.uint8), 2.0, seed)


def seen(state, rng, some=0.5, faint=0.05):
    """The state with random statistics, in which some rows want to grow and some are faint."""
    size = len(state.alive)
    gradient = rng.uniform(0, 2e-4 / (1 - some), size).astype(np.float32)
    logits = np.where(rng.uniform(size=size) < faint, -8, 1).astype(np.float32)
    return replace(state, stats=DensityStats(jnp.asarray(gradient), jnp.ones(size, jnp.int32)),
                   gaussians=replace(state.gaussians, opacity_logits=jnp.asarray(logits)))


@pytest.mark.parametrize("changes", [{}, {"max_rows": 260}, {"growth_limit": 300}, {"cap": 250}])
def test_rows_never_exceed_the_budget_and_grow_by_a_fifth_at_most(changes):
    config = replace(DashConfig.for_iterations(2400), **changes)
    pipeline, state = start(config)
    rng, rows, grown = np.random.default_rng(1), 120, []
    for step in range(1, 2401):
        for event in pipeline.events(step):
            if event != "densify":
                continue
            state = seen(state, rng)
            target, budget = pipeline.target(state, step), pipeline.budget(state)
            kept = int(np.sum(np.asarray(state.alive & (state.gaussians.opacities >= 0.005))))
            wanting = int(np.sum(np.asarray(
                state.alive & (state.gaussians.opacities >= 0.005) & (state.stats.mean_gradient >= 2e-4))))
            momentum = int(state.momentum)
            state = pipeline.apply_event(state, event, step)
            after = int(np.sum(np.asarray(state.alive)))
            limit = min(target, config.rules.limit or target)
            assert after == min(max(limit, kept), kept + wanting)
            assert after <= target <= min(budget, int(1.2 * rows)) or rows == target
            assert int(state.momentum) == max(momentum, int(0.98 * momentum + wanting))
            rows = after
            grown.append(rows)
    assert max(grown) > 200 and max(grown) <= pipeline.budget(state)
    if changes:
        assert max(grown) <= next(iter(changes.values()))


def test_what_grows_are_the_rows_with_the_largest_gradients_after_pruning():
    pipeline, state = start(DashConfig())
    state = seen(state, np.random.default_rng(2), some=0.8)
    alive, gradient = np.asarray(state.alive), np.asarray(state.stats.mean_gradient)
    kept = alive & (np.asarray(state.gaussians.opacities) >= 0.005)
    choice = pipeline.choice(state, 26_000)
    room = min(int(alive.sum() * 1.2) - kept.sum(), kept.sum())
    best = np.argsort(np.where(kept, -gradient, np.inf), kind="stable")[:room]
    expected = np.isin(np.arange(len(alive)), best) & (gradient >= 2e-4)
    np.testing.assert_array_equal(np.asarray(choice.clone | choice.split), expected)
    np.testing.assert_array_equal(np.asarray(choice.prune), alive & ~kept)


def test_the_target_follows_the_scale_of_the_next_units():
    pipeline, state = start(DashConfig(most_growth=100.0))
    for step in (600, 9000, 20_000):
        scale = pipeline.scale(step + 1)
        wanted = 120 + (6 * 120 - 120) / scale ** (2 - step / 27_000)
        assert pipeline.target(state, step) in (int(wanted), int(wanted) - 1)
    assert pipeline.scale(601) > pipeline.scale(20_001)
    assert pipeline.target(state, 26_950) == 720


def test_the_rate_of_the_means_falls_only_once_photos_are_at_half_size_or_more():
    pipeline, _ = start(DashConfig())
    begin = COARSE.fine_from(27_000)
    assert begin == COARSE.starts(27_000)[3]
    rates = [float(pipeline.position_rate(jnp.int32(step))) for step in (1, begin, begin + 1, 28_000, 30_000)]
    assert rates[0] == rates[1] == pytest.approx(1.6e-4) and rates[1] > rates[2] > rates[3] > rates[4]
    assert rates[3] == pytest.approx(float(log_linear(1.6e-4, 1.6e-6, 30_000 - begin, jnp.int32(28_000 - begin))))
    assert rates[4] == pytest.approx(1.6e-6)
