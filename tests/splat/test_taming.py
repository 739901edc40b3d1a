"""The TamingGS pipeline: colours stepped every few steps, the budget through events, opacities above one."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gs3d import POINTS, points, view

from splat.errors import UserError
from splat.gaussians import FIELDS
from splat.io.ply import read_ply, write_ply
from splat.pipelines.rows import only
from splat.pipelines.taming import Taming, TamingConfig
from splat.render import count_pairs, render

ROOM, BUDGET, SH_EVERY, SWITCH = 8192, 420, 4, 32


class Compiled:
    """A pipeline with the two programs that the trainer makes of it, and the views of its runs."""

    def __init__(self):
        config = TamingConfig.for_iterations(
            1000, mode="final_count", budget=BUDGET, grad_threshold=1e-7, densify_from=4, densify_every=6,
            densify_until=SWITCH, reset_every=1000, sh_every=2, sh_rest_every=SH_EVERY, score_views=2)
        self.views = [view(seed) for seed in range(5)]
        self.pipeline = Taming(config).with_survey({"views": len(self.views)})
        self.loss_and_grad = jax.jit(self.pipeline.loss_and_grad, static_argnums=3)
        self.update = jax.jit(self.pipeline.update)

    def start(self, seed: int = 0):
        return self.pipeline.init(*points(), extent=1.0, seed=seed)

    def gradient(self, state, step):
        grads, evidence = self.loss_and_grad(state, [self.views[step % 5]], jnp.int32(step), ROOM)
        assert not bool(evidence.overflow), int(evidence.pairs[0])
        return grads, evidence

    def step(self, state, step):
        grads, evidence = self.gradient(state, step)
        return self.events(self.update(state, grads, evidence, jnp.int32(step)), step)

    def events(self, state, step):
        for event in self.pipeline.events(step):
            views = [self.views[place] for place in self.pipeline.event_views(event, step, state)]
            state = self.pipeline.apply_event(state, event, step, *([views] if views else []))
        return state


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return Compiled()


def rows_of(state) -> int:
    return int(np.count_nonzero(state.alive))


def random_state(compiled, high: bool):
    """A start whose rows have all kinds of opacities, some of them above 1 where that can be."""
    state, rng = compiled.start(), np.random.default_rng(7)
    values = rng.uniform(-2.5, 2.5, len(state.alive)) if high else rng.uniform(-6, 6, len(state.alive))
    gaussians = replace(state.gaussians, opacity_logits=jnp.asarray(values, jnp.float32))
    return replace(state, gaussians=gaussians, high_opacity=jnp.asarray(high))


# ---- colours ----


def test_colours_are_stepped_with_the_sum_of_the_gradients_since_their_last_step(compiled):
    state = replace(compiled.start(), sh_count=jnp.int32(0))
    config, alone = compiled.pipeline.config, jnp.zeros_like(state.sh_sum)
    mu = nu = np.zeros(state.sh_sum.shape, np.float64)
    expected, total, count = np.asarray(state.gaussians.sh_rest, np.float64), 0.0, 0
    for step in range(101, 110):
        own = compiled.gradient(replace(state, sh_sum=alone), step)[0].sh_rest
        grads, evidence = compiled.gradient(state, step)
        total = total + np.asarray(own, np.float64)
        np.testing.assert_allclose(grads.sh_rest, total, rtol=1e-4, atol=1e-9)
        state = compiled.update(state, grads, evidence, jnp.int32(step))
        if step % SH_EVERY:
            assert not np.any(evidence.carried)
        else:
            np.testing.assert_array_equal(evidence.carried, np.any(np.asarray(grads.sh_rest) != 0, axis=(1, 2)))
            assert not np.any(state.sh_sum)
            count, gradient = count + 1, np.asarray(grads.sh_rest, np.float64)
            mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
            expected = expected - config.sh_rest_lr * mu / (1 - 0.9**count) / (
                np.sqrt(nu / (1 - 0.999**count)) + 1e-15)
            total = 0.0
        np.testing.assert_allclose(state.gaussians.sh_rest, expected, rtol=1e-4, atol=1e-7)
        assert int(state.sh_count) == count
    assert count == 2 and int(state.optimizer.count) == 9
    assert np.abs(expected).max() > 1e-4


def test_a_step_in_parts_is_the_step_as_a_whole(compiled):
    state = compiled.start()
    for step in (101, 102):
        grads, evidence = compiled.gradient(state, step)
        state = compiled.update(state, grads, evidence, jnp.int32(step))
    grads, evidence = compiled.gradient(state, 104)
    pipeline, visible = compiled.pipeline, evidence.visible_count > 0
    inputs = pipeline.step_inputs(state, jnp.int32(104))
    whole = pipeline.step_rows(pipeline.rows(state), grads, visible, inputs)
    for part in (("means", "opacity_logits"), ("sh_rest",), ("sh_dc", "sh_rest")):
        found = pipeline.step_rows(only(pipeline.rows(state), part), only(grads, part), visible, inputs)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(only(whole, part)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_fields_that_are_not_stepped_are_not_exchanged(compiled):
    pipeline = compiled.pipeline
    for step in range(1, 1001):
        stepped = jax.tree.map(bool, pipeline.stepped(np.int32(step)))
        changed = {name for name in FIELDS if getattr(stepped, name)}
        assert changed <= set(pipeline.exchanged_fields(step)), step
        assert changed == set(pipeline.exchanged_fields(step)) or pipeline.resets(step)
    published = Taming(TamingConfig())
    assert "sh_rest" in published.exchanged_fields(16) and "sh_rest" not in published.exchanged_fields(17)


# ---- budget ----


def test_the_budget_is_reached_to_the_row_and_the_curve_never_exceeded(compiled):
    state, rows = compiled.start(), []
    growth = compiled.pipeline.growth(state)
    for step in range(1, SWITCH + 2):
        state = compiled.step(state, step)
        if compiled.pipeline.densifies(step):
            rows.append(rows_of(state))
            assert rows[-1] == growth.target(step)
            assert compiled.pipeline.told(state, step) == {"budget": BUDGET, "target": rows[-1]}
            assert not np.any(state.sh_sum) and state.sh_sum.shape[0] == len(state.alive)
    assert growth.start == POINTS and rows == sorted(rows) and rows[-1] == BUDGET and len(rows) == 5
    assert bool(state.high_opacity)
    again = compiled.start()
    for step in range(1, SWITCH + 2):
        again = compiled.step(again, step)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_budget_below_the_points_takes_some_of_them():
    few = Taming(TamingConfig(mode="final_count", budget=100)).init(*points(), extent=1.0, seed=3)
    assert rows_of(few) == 100 == int(few.budget)
    many = Taming(TamingConfig(budget=2)).init(*points(), extent=1.0, seed=3)
    assert rows_of(many) == POINTS and int(many.budget) == 2 * POINTS
    capped = Taming(TamingConfig(budget=2, cap=400)).init(*points(), extent=1.0, seed=3)
    assert int(capped.budget) == 400


def test_scored_views_are_drawn_anew_for_each_densification(compiled):
    pipeline, state = compiled.pipeline, compiled.start()
    drawn = [tuple(pipeline.event_views("densify", step, state)) for step in (6, 12, 18, 24)]
    assert all(len(set(views)) == 2 and max(views) < 5 for views in drawn) and len(set(drawn)) > 1
    assert drawn[0] == tuple(pipeline.event_views("densify", 6, state))
    assert not pipeline.event_views("reset", 6, state)


# ---- opacities above one ----


def test_exported_opacities_are_the_trained_ones_as_logits(compiled, tmp_path):
    state = random_state(compiled, high=True)
    rows = state.exported.take(jnp.arange(POINTS))
    path = tmp_path / "rows.ply"
    write_ply(rows, path)
    raw = np.abs(np.asarray(state.gaussians.opacity_logits[:POINTS], np.float64))
    assert (raw > 1).sum() > 50 and (raw < 1).sum() > 50
    np.testing.assert_allclose(read_ply(path).opacities, np.clip(raw, 1e-6, 1 - 1e-6), rtol=1e-5, atol=1e-6)
    before = random_state(compiled, high=False)
    np.testing.assert_array_equal(before.exported.opacity_logits, before.gaussians.opacity_logits)


def test_the_switch_changes_no_opacity_and_no_pace(compiled):
    state, pipeline = random_state(compiled, high=False), compiled.pipeline
    rng = np.random.default_rng(1)
    mu, nu = (replace(part, opacity_logits=jnp.asarray(rng.uniform(0.1, 1, len(state.alive)), jnp.float32))
              for part in (state.optimizer.mu, state.optimizer.nu))
    state = replace(state, optimizer=state.optimizer._replace(mu=mu, nu=nu))
    high = pipeline.apply_event(state, "high_opacity", SWITCH)
    np.testing.assert_allclose(pipeline.opacities(high, high.gaussians), state.gaussians.opacities, rtol=1e-6)
    pace = [part.optimizer.mu.opacity_logits / np.sqrt(part.optimizer.nu.opacity_logits) for part in (state, high)]
    np.testing.assert_allclose(pace[1], pace[0], rtol=1e-4)
    slope = np.asarray(state.gaussians.opacities * (1 - state.gaussians.opacities))
    np.testing.assert_allclose(high.optimizer.mu.opacity_logits * slope, mu.opacity_logits, rtol=1e-4)
    before, after = (float(pipeline.learning_rates(jnp.int32(SWITCH + i), jnp.float32(1)).opacity_logits)
                     for i in range(2))
    assert after == pytest.approx(before / 4)


def test_opacities_above_one_are_trained(compiled):
    """Gradient by |x| is that by the opacity, and the response stays capped at 0.99."""
    state = random_state(compiled, high=True)
    grads, _ = compiled.gradient(state, SWITCH + 1)
    mirrored = replace(state.gaussians, opacity_logits=-state.gaussians.opacity_logits)
    others, _ = compiled.gradient(replace(state, gaussians=mirrored), SWITCH + 1)
    np.testing.assert_allclose(grads.opacity_logits, -others.opacity_logits, rtol=1e-4, atol=1e-9)
    above = np.abs(np.asarray(state.gaussians.opacity_logits)) > 1
    assert np.count_nonzero(np.asarray(grads.opacity_logits)[above]) > 10
    one = state.gaussians.take(jnp.arange(1))
    one = replace(one, means=jnp.asarray([[0.0, 0.0, 4.0]]), log_scales=jnp.zeros((1, 3)))
    drawn = [render(one, replace(compiled.views[0].camera, view=np.eye(4, dtype=np.float32)),
                    opacities=jnp.asarray([value])) for value in (0.99, 5.0)]
    alphas = [np.asarray(out.alpha) for out in drawn]
    assert alphas[1].max() == pytest.approx(0.99) and (alphas[1] > 0.98).sum() > 10 * (alphas[0] > 0.98).sum()


def test_whatever_the_step_a_row_that_is_drawn_was_in_the_scope(compiled):
    state, pipeline, rng = random_state(compiled, high=True), compiled.pipeline, np.random.default_rng(2)
    state = replace(state, gaussians=replace(state.gaussians, opacity_logits=state.gaussians.opacity_logits * 0.004))
    camera, step = compiled.views[1].camera, jnp.int32(SWITCH + 5)
    drift = jax.tree.map(lambda move: jnp.minimum(move, 0.02), pipeline.drift(state, step))
    reach = np.asarray(jax.jit(pipeline.reach)(state, camera, drift))
    drawn = jax.jit(lambda rows: count_pairs(rows, camera, alive=state.alive,
                                             opacities=pipeline.opacities(state, rows))[0])
    ever = np.zeros(reach.shape, bool)
    for _ in range(40):
        moved = {name: getattr(state.gaussians, name) + np.sign(rng.normal(size=getattr(drift, name).shape))
                 .astype(np.float32) * getattr(drift, name) for name in ("means", "log_scales", "quats",
                                                                         "opacity_logits")}
        ever |= np.asarray(drawn(replace(state.gaussians, **moved)))
    assert not (ever & ~reach).any() and ever.sum() > 50
    assert ever.sum() > np.asarray(drawn(state.gaussians)).sum()


def test_options_that_cannot_work_are_named():
    for changes, message in (({"high_opacity_from": 10}, "high-opacity-from 10"), ({"budget": 0}, "budget 0"),
                             ({"sh_rest_every": 0}, "sh-rest-every 0"), ({"mode": "rows"}, "mode rows")):
        with pytest.raises(UserError, match=message):
            Taming(TamingConfig(**changes))


def test_short_runs_scale_the_published_schedule():
    published, short = TamingConfig.for_iterations(30_000), TamingConfig.for_iterations(2000)
    assert (published.densify_every, published.switch, published.sh_rest_lr) == (500, 15_000, 2.5e-4)
    assert short.densify_every == 100 and short.switch == short.densify_until == 1373
    assert TamingConfig(high_opacity=False, iterations=900).switch == 900
