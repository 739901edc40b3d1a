"""The 3DGS pipeline: start, schedule, gradient of a unit, order of events, and that it learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import FIELDS
from splat.pipelines.gs3d import Gs3d, Gs3dConfig
from splat.pipelines.protocol import View

ROOM = 3200  # tile-row pairs
POINTS = 300
CAP = 500  # rows


def points(seed: int = 0, count: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    where = rng.uniform(-1, 1, (count, 3)) + np.asarray([0, 0, 4])
    return where, rng.integers(0, 256, (count, 3), dtype=np.uint8)


def view(seed: int, width: int = 48, height: int = 32, masked: bool = False) -> View:
    """A smooth random photo from a camera near the origin."""
    rng = np.random.default_rng(seed)
    pose = np.eye(4, dtype=np.float32)
    pose[:2, 3] = rng.uniform(-0.3, 0.3, 2)
    y, x = np.mgrid[:height, :width] / 10
    photo = 127 + 120 * np.sin(y[..., None] + x[..., None] * rng.uniform(0.5, 1.5, 3))
    mask = np.where(x < 3, 255, 0).astype(np.uint8) if masked else None
    camera = Camera(pose, np.asarray([50, 50, width / 2, height / 2], np.float32), width, height)
    return View(camera, photo.astype(np.uint8), mask, np.zeros(3, np.float32))


class Compiled:
    """A pipeline with the two programs the trainer makes of it."""

    def __init__(self, pipeline, room=ROOM):
        self.pipeline, self.room = pipeline, room
        self.loss_and_grad = jax.jit(self.pipeline.loss_and_grad, static_argnums=3)
        self.update = jax.jit(self.pipeline.update)

    def start(self, seed: int = 0):
        return self.pipeline.init(*points(), extent=1.0, seed=seed)

    def step(self, state, views, step):
        grads, evidence = self.loss_and_grad(state, views, jnp.int32(step), self.room)
        assert not bool(evidence.overflow), int(evidence.pairs[0])
        state = self.update(state, grads, evidence, jnp.int32(step))
        for event in self.pipeline.events(step):
            state = self.pipeline.apply_event(state, event, step)
        return state, evidence


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """One pipeline for most tests: its cap gives it one capacity, so that one program serves them all."""
    return Compiled(Gs3d(Gs3dConfig.for_iterations(
        1000, densify_from=10, densify_every=20, densify_until=90, reset_every=50, sh_every=25, position_lr_start=1e-3,
        cap=CAP)))


def same(first, second) -> bool:
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


# ---- start ----


def test_it_starts_from_the_points_as_published():
    where, colours = points(1, 40)
    state = Gs3d(Gs3dConfig()).init(where, colours, extent=3.0, seed=0)
    rows = state.gaussians
    assert rows.count == 1024 and int(state.alive.sum()) == 40 and np.all(state.alive[:40])
    distances = np.sort(np.linalg.norm(where[:, None] - where[None], axis=-1), axis=1)[:, 1:4]
    np.testing.assert_allclose(rows.scales[:40], np.sqrt(np.mean(distances**2, 1))[:, None] * np.ones(3), rtol=1e-4)
    np.testing.assert_allclose(rows.means[:40], where, rtol=1e-6)
    np.testing.assert_allclose(rows.opacities[:40], 0.1, rtol=1e-5)
    np.testing.assert_allclose(rows.sh_dc[:40] * 0.28209479177387814 + 0.5, colours / 255, atol=1e-6)
    np.testing.assert_array_equal(rows.quats, np.tile([1.0, 0, 0, 0], (1024, 1)))
    assert not np.any(rows.sh_rest) and float(state.extent) == 3


def test_start_with_few_points_coinciding_points_none_or_more_than_the_cap():
    pipeline = Gs3d(Gs3dConfig(cap=10))
    grey = np.full((50, 3), 128, np.uint8)
    for count in (1, 2, 3):
        rows = pipeline.init(points(2, count)[0], grey[:count], 1.0, 0).gaussians
        assert np.all(np.isfinite(rows.log_scales)) and np.all(rows.scales[:count] > 1e-4)
    together = pipeline.init(np.zeros((5, 3)), grey[:5], 1.0, 0).gaussians
    np.testing.assert_allclose(together.scales[:5], np.sqrt(1e-7), rtol=1e-4)
    where, colours = points(3, 50)
    capped = pipeline.init(where, colours, 1.0, seed=4)
    assert int(capped.alive.sum()) == 10
    assert {tuple(row) for row in np.asarray(capped.gaussians.means[:10])} <= {
        tuple(row) for row in where.astype(np.float32)
    }
    assert same(capped, pipeline.init(where, colours, 1.0, seed=4))
    assert not same(capped.gaussians, pipeline.init(where, colours, 1.0, seed=5).gaussians)
    with pytest.raises(UserError, match="no points"):
        pipeline.init(np.zeros((0, 3)), grey[:0], 1.0, 0)


# ---- schedule ----


def test_published_events_and_rates():
    pipeline = Gs3d(Gs3dConfig())
    events = [(step, event) for step in range(1, 30_001) for event in pipeline.events(step)]
    densify = [step for step, event in events if event == "densify"]
    assert densify == list(range(600, 15_000, 100))
    assert [step for step, event in events if event == "reset"] == [3000, 6000, 9000, 12_000]
    assert [step for step, event in events if event == "sh_degree"] == [999, 1999, 2999]
    assert pipeline.events(3000) == ("densify", "reset")
    rates = [pipeline.learning_rates(jnp.int32(step), jnp.float32(2)) for step in (0, 15_000, 30_000, 40_000)]
    np.testing.assert_allclose([float(r.means) for r in rates], [3.2e-4, 3.2e-5, 3.2e-6, 3.2e-6], rtol=1e-4)
    for field, rate in (
        ("log_scales", 5e-3),
        ("quats", 1e-3),
        ("opacity_logits", 0.025),
        ("sh_dc", 2.5e-3),
        ("sh_rest", 1.25e-4),
    ):
        assert float(getattr(rates[0], field)) == pytest.approx(rate)


def test_white_background_adds_a_reset():
    assert Gs3d(Gs3dConfig(white_background=True)).events(500) == ("reset",)
    assert Gs3d(Gs3dConfig()).events(500) == ()


def test_a_field_is_stepped_unless_the_released_code_has_no_gradient_for_it():
    pipeline = Gs3d(Gs3dConfig())
    stepped = {
        step: {f for f in FIELDS if bool(getattr(pipeline.stepped(jnp.int32(step)), f))}
        for step in (1, 600, 599, 3000, 15_000, 30_000)
    }
    assert stepped[1] == stepped[599] == stepped[15_000] == set(FIELDS)
    assert stepped[600] == stepped[3000] == stepped[30_000] == set()
    alone = Gs3d(Gs3dConfig(reset_every=3050))
    assert {f for f in FIELDS if bool(getattr(alone.stepped(jnp.int32(3050)), f))} == set(FIELDS) - {"opacity_logits"}


def test_square_root_rule_scales_the_rates_only_where_wanted():
    rates = [
        Gs3d(Gs3dConfig(batch=4, batch_rule=rule)).learning_rates(jnp.int32(7), jnp.float32(2))
        for rule in ("none", "sqrt")
    ]
    for field in FIELDS:
        assert float(getattr(rates[1], field)) == pytest.approx(2 * float(getattr(rates[0], field)))


@pytest.mark.parametrize("iterations", [1, 10, 300, 2000, 7000, 29_999, 30_000, 60_000])
def test_a_short_schedule_is_complete_and_a_long_one_published(iterations):
    config = Gs3dConfig.for_iterations(iterations, cap=5)
    assert config.iterations == iterations and config.cap == 5
    assert config.position_lr_steps == min(iterations, 30_000)
    if iterations >= 30_000:
        assert config == Gs3dConfig(iterations=iterations, cap=5)
    else:
        assert config.densify_every >= 50 and config.sh_every * 3 <= max(iterations, 3)
    if iterations >= 2000:
        pipeline = Gs3d(config)
        events = {event for step in range(1, iterations + 1) for event in pipeline.events(step)}
        assert {"densify", "sh_degree"} <= events


def test_fitting_keeps_what_was_chosen():
    chosen = Gs3dConfig(densify_every=77, antialias=True).fitted(2000)
    assert chosen == Gs3dConfig.for_iterations(2000, densify_every=77, antialias=True)
    assert Gs3dConfig().fitted(2000) == Gs3dConfig.for_iterations(2000)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("densify_every", 0, "--gs3d.densify-every 0: must be at least 1"),
        ("sh_every", 0, "--gs3d.sh-every 0"),
        ("start_opacity", 1, "between 0 and 1"),
        ("capacity_growth", float("nan"), "must be a finite number"),
        ("capacity_growth", 1, "must be more than 1"),
        ("position_lr_end", 0, "must be more than 0"),
        ("opacity_lr", -0.1, "must be at least 0"),
        ("optimizer", "sgd", "choose adam or sparse_adam"),
    ],
)
def test_a_constant_that_cannot_work_is_named_as_its_option(name, value, words):
    with pytest.raises(UserError, match=words):
        Gs3d(Gs3dConfig(**{name: value}))


# ---- gradient of a unit ----


def test_a_unit_is_the_mean_of_its_views_whatever_their_size(compiled):
    """What a unit holds beyond two views known alone is the third view's, whichever the two are."""
    state, third = compiled.start(), view(9, width=40, height=30, masked=True)
    alone = [compiled.loss_and_grad(state, (view(seed),), jnp.int32(60), ROOM) for seed in range(4)]
    units = [compiled.loss_and_grad(state, (view(seed), view(seed + 1), third), jnp.int32(60), ROOM) for seed in (0, 2)]

    def of_third(read, views):
        """The third view's part, seen from both units; ``views`` turns a unit's number into a sum over views."""
        sums = [np.asarray(read(unit), np.float64) * views for unit in units]
        two = [np.asarray(read(one), np.float64) + np.asarray(read(other)) for one, other in (alone[:2], alone[2:])]
        assert np.abs(two[0] - two[1]).max() > 0 and np.abs(sums[0] - two[0]).max() > 0
        return sums[0] - two[0], sums[1] - two[1], 1e-5 * np.abs(two[0]).max()

    for field in FIELDS:
        first, second, tolerance = of_third(lambda out, field=field: getattr(out[0], field), 3)
        np.testing.assert_allclose(first, second, atol=tolerance)
    for name, views in (("magnitude", 1), ("loss", 3), ("mse", 3)):
        first, second, tolerance = of_third(lambda out, name=name: getattr(out[1], name), views)
        np.testing.assert_allclose(first, second, atol=tolerance)
    evidence = units[0][1]
    assert [int(pairs) for pairs in evidence.pairs[:2]] == [int(one[1].pairs[0]) for one in alone[:2]]
    assert int(jnp.max(evidence.visible_count)) == 3 and not bool(evidence.overflow)
    np.testing.assert_array_equal(evidence.active[:2], np.concatenate([one[1].active for one in alone[:2]]))
    assert not np.any(np.asarray(evidence.active) & ~(np.asarray(evidence.visible_count) > 0))


def test_only_rows_in_scope_get_gradients(compiled):
    state = compiled.start()
    state = state.replace(
        gaussians=state.gaussians.replace(means=state.gaussians.means.at[:100].add(jnp.asarray([0, 0, -20.0])))
    )
    grads, evidence = compiled.loss_and_grad(state, (view(0),), jnp.int32(60), ROOM)
    scope, pairs = compiled.pipeline.scope(state, view(0).camera)
    active = np.asarray(evidence.active)[0]
    assert np.all(np.asarray(scope)[active]) and not np.any(active[:100]) and active[100:POINTS].mean() > 0.5
    assert not np.any(active[POINTS:]) and int(pairs) == int(evidence.pairs[0])
    for field in FIELDS:
        values = np.asarray(getattr(grads, field))
        assert np.all(np.isfinite(values)) and not np.any(values[~active])
    assert np.all(np.asarray(evidence.magnitude)[~active] == 0)


def test_the_probe_gradient_is_in_ndc_units(compiled):
    """Moving a centre by δ NDC moves the camera-space x by δ·z·W/(2 fx)."""
    state = compiled.start()
    state = state.replace(alive=state.alive & (jnp.arange(state.alive.size) == 5))
    grads, evidence = compiled.loss_and_grad(state, (view(0),), jnp.int32(1), ROOM)
    depth, camera = float(state.gaussians.means[5, 2]), view(0).camera
    half = np.asarray([camera.width, camera.height]) / 2 / 50 * depth
    along = np.linalg.norm(np.asarray(grads.means)[5, :2] * half)
    assert float(evidence.magnitude[5]) == pytest.approx(along, rel=0.05)


def test_degree_follows_the_step(compiled):
    state = compiled.start()
    early = compiled.loss_and_grad(state, (view(0),), jnp.int32(24), ROOM)[0]
    late = compiled.loss_and_grad(state, (view(0),), jnp.int32(25), ROOM)[0]
    full = compiled.loss_and_grad(state, (view(0),), jnp.int32(75), ROOM)[0]
    assert not np.any(early.sh_rest)
    assert np.any(late.sh_rest[:, :3]) and not np.any(late.sh_rest[:, 3:]) and np.any(full.sh_rest[:, 8:])


def test_too_little_room_is_reported(compiled):
    state = compiled.start()
    large = state.replace(gaussians=state.gaussians.replace(log_scales=state.gaussians.log_scales + 3))
    _, evidence = compiled.loss_and_grad(large, (view(0),), jnp.int32(1), ROOM)
    assert bool(evidence.overflow) and int(evidence.pairs[0]) > ROOM


# ---- order of a step ----


def test_a_densification_takes_no_optimizer_step_but_counts_the_view(compiled):
    state, _ = compiled.step(compiled.start(), (view(0),), 1)
    grads, evidence = compiled.loss_and_grad(state, (view(1),), jnp.int32(20), ROOM)
    assert compiled.pipeline.events(20) == ("densify",)
    after = compiled.update(state, grads, evidence, jnp.int32(20))
    assert same(after.gaussians, state.gaussians) and same(after.optimizer, state.optimizer)
    np.testing.assert_array_equal(after.stats.denom, state.stats.denom + evidence.visible_count)
    np.testing.assert_array_equal(after.stats.grad_accum, state.stats.grad_accum + evidence.magnitude)


def test_a_reset_leaves_opacities_without_step_and_moments_and_steps_the_rest(compiled):
    state, _ = compiled.step(compiled.start(), (view(0),), 1)
    grads, evidence = compiled.loss_and_grad(state, (view(1),), jnp.int32(50), ROOM)
    assert compiled.pipeline.events(50) == ("reset",)
    after = compiled.update(state, grads, evidence, jnp.int32(50))
    assert same(after.gaussians.opacity_logits, state.gaussians.opacity_logits)
    assert not same(after.gaussians.means, state.gaussians.means)
    reset = compiled.pipeline.apply_event(after, "reset", 50)
    assert float(jnp.max(reset.gaussians.opacities)) <= 0.01 * (1 + 1e-5)
    assert not np.any(reset.optimizer.mu.opacity_logits) and not np.any(reset.optimizer.nu.opacity_logits)
    assert same(reset.optimizer.mu.means, after.optimizer.mu.means) and int(reset.structural_version) == 1


def test_statistics_end_where_densification_ends(compiled):
    state = compiled.start()
    grads, evidence = compiled.loss_and_grad(state, (view(0),), jnp.int32(89), ROOM)
    assert np.any(compiled.update(state, grads, evidence, jnp.int32(89)).stats.denom)
    assert not np.any(compiled.update(state, grads, evidence, jnp.int32(90)).stats.denom)


def test_an_unknown_event_is_refused(compiled):
    with pytest.raises(ValueError, match="no event"):
        compiled.pipeline.apply_event(compiled.start(), "dance", 1)


# ---- training ----


def test_it_learns_grows_under_the_cap_and_repeats_itself_bit_for_bit(compiled):
    def trained():
        state, losses = compiled.start(seed=3), []
        for step in range(1, 111):
            state, evidence = compiled.step(state, (view(step % 3),), step)
            losses.append(float(evidence.loss))
            assert int(state.alive.sum()) <= CAP
        return state, losses

    first, losses = trained()
    assert np.mean(losses[-6:]) < 0.85 * np.mean(losses[:6])
    assert int(first.alive.sum()) > POINTS and int(first.structural_version) == 4 + 1 + 3
    assert same(first, trained()[0])


def test_sparse_adam_leaves_rows_alone_that_no_view_saw(compiled):
    sparse = Gs3d(Gs3dConfig(optimizer="sparse_adam"))
    update = jax.jit(sparse.update)
    state = compiled.start()
    behind = state.gaussians.means.at[:100].add(jnp.asarray([0, 0, -20.0]))
    state = state.replace(gaussians=state.gaussians.replace(means=behind))
    after = state
    for step in (1, 2, 3):
        after = update(after, *compiled.loss_and_grad(after, (view(step),), jnp.int32(step), ROOM), jnp.int32(step))
    for field in FIELDS:
        assert same(getattr(after.gaussians, field)[:100], getattr(state.gaussians, field)[:100])
    assert not same(after.gaussians.means[100:], state.gaussians.means[100:])
