"""The 2DGS pipeline: start, schedule, regularisers from their steps on, splits in the plane, that it learns."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat import density
from splat.errors import UserError
from splat.pipelines.gs2d import Gs2d
from splat.pipelines.gs2d_config import Gs2dConfig
from splat.pipelines.gs3d import Gs3d
from splat.pipelines.gs3d_config import Gs3dConfig
from splat.pipelines.rows import only
from tests.splat.test_gs3d import CAP, POINTS, Compiled, points, same, view

ROOM = 4000  # tile-row pairs
SHORT = {"densify_from": 10, "densify_every": 20, "densify_until": 90, "prune_opacity": 0.005, "reset_every": 50,
         "sh_every": 25, "position_lr_start": 1e-3, "cap": CAP, "normal_from": 30, "distortion_from": 20,
         "distortion_weight": 10.0}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return Compiled(Gs2d(Gs2dConfig.for_iterations(1000, **SHORT)), ROOM)


def test_it_starts_with_random_disks_where_3dgs_starts_with_spheres():
    where, colours = points(1, 40)
    disks = Gs2d(Gs2dConfig()).init(where, colours, extent=3.0, seed=0).gaussians
    spheres = Gs3d(Gs3dConfig()).init(where, colours, extent=3.0, seed=0).gaussians
    np.testing.assert_array_equal(disks.log_scales, spheres.log_scales[:, :2])
    for name in ("means", "opacity_logits", "sh_dc", "sh_rest"):
        np.testing.assert_array_equal(getattr(disks, name), getattr(spheres, name))
    quats = np.asarray(disks.quats[:40])
    assert quats.min() >= 0 and 0.8 < quats.max() < 1 and quats.std() > 0.2
    other = Gs2d(Gs2dConfig()).init(where, colours, extent=3.0, seed=1).gaussians
    assert not same(disks.quats, other.quats)


def test_published_choices_and_start_steps():
    config = Gs2dConfig.for_iterations(30_000)
    assert config == Gs2dConfig() and config.prune_opacity == 0.05 and config.opacity_lr == 0.05
    weights = {step: [float(w) for w in Gs2d(dataclasses.replace(config, distortion_weight=9.0)).regularisers(step)]
               for step in (3000, 3001, 7000, 7001)}
    assert weights[3000] == [0, 0] and weights[3001] == [0, 9] and weights[7000] == [0, 9]
    assert weights[7001] == pytest.approx([0.05, 9])
    short = Gs2dConfig.for_iterations(3000)
    assert (short.normal_from, short.distortion_from) == (700, 300)
    assert Gs2dConfig(normal_from=5).fitted(3000).normal_from == 5


@pytest.mark.parametrize("changes, message", [
    ({"depth_ratio": 2.0}, "--gs2d.depth-ratio 2.0"), ({"antialias": True}, "--gs2d.antialias"),
    ({"far": 0.1}, "--gs2d.far 0.1"), ({"centre_cutoff": 0.0}, "--gs2d.centre-cutoff 0.0"),
    ({"opacity_lr": -1.0}, "--gs2d.opacity-lr -1.0"),
])
def test_options_that_cannot_work_are_named(changes, message):
    with pytest.raises(UserError, match=message):
        Gs2d(Gs2dConfig(**changes))


def test_the_regularisers_change_the_gradient_only_after_their_steps(compiled):
    state, views = compiled.start(), (view(0),)
    results = {step: compiled.loss_and_grad(state, views, jnp.int32(step), ROOM) for step in (19, 20, 21, 24)}
    assert same(results[19], results[20])
    assert same(results[21], results[24])
    assert float(results[21][1].loss) > float(results[20][1].loss)
    assert not same(results[21][0].quats, results[20][0].quats)
    assert same(results[21][0].sh_rest, results[20][0].sh_rest)


def test_it_learns_through_structural_events(compiled):
    """Single units of three photos, clones, splits, prunings and resets; no number is lost."""
    state, photos = compiled.start(), [view(seed) for seed in range(3)]
    errors = []
    for step in range(1, 161):
        state, evidence = compiled.step(state, (photos[step % 3],), step)
        errors.append(float(evidence.mse))
    assert np.mean(errors[-6:]) < 0.35 * np.mean(errors[:6])
    assert int(state.alive.sum()) != POINTS and int(state.structural_version) > 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_parts_of_a_step_are_the_step(compiled):
    pipeline, state = compiled.pipeline, compiled.start()
    grads, evidence = compiled.loss_and_grad(state, (view(0),), jnp.int32(1), ROOM)
    inputs = pipeline.step_inputs(state, jnp.int32(1))
    rows, visible = pipeline.rows(state), evidence.visible_count > 0
    step = jax.jit(pipeline.step_rows)
    geometry = step(only(rows, pipeline.geometry_fields), only(grads, pipeline.geometry_fields), visible, inputs)
    whole = step(rows, grads, visible, inputs)
    for name in pipeline.geometry_fields:
        assert same(getattr(geometry.params, name), getattr(whole.params, name)), name
    assert geometry.params.sh_dc is None


def test_children_of_a_split_lie_in_the_plane_of_their_parent(compiled):
    state = compiled.start()
    every = state.alive & (jnp.arange(state.alive.size) < 50)
    choice = density.Choice(jnp.zeros_like(every), every, jnp.zeros_like(every), jnp.int32(POINTS + 50))
    capacity = state.gaussians.count
    arrangement = density.arrange(choice, state.alive, capacity, 0, 0)
    grown = density.grow(state.gaussians, arrangement)
    child, origin = np.asarray(arrangement.child), np.asarray(arrangement.origin)
    q = np.asarray(state.gaussians.quats)[origin][child]
    w, x, y, z = (q / np.linalg.norm(q, axis=1, keepdims=True)).T
    normal = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], 1)
    moved = np.asarray(grown.means)[child] - np.asarray(state.gaussians.means)[origin][child]
    assert child.sum() == 100 and np.linalg.norm(moved, axis=1).min() > 0
    assert np.abs(np.sum(moved * normal, 1)).max() < 1e-6
    np.testing.assert_allclose(grown.scales[child], state.gaussians.scales[origin[child]] / 1.6, rtol=1e-5)


def test_scope_holds_what_a_unit_makes_visible_and_reach_more(compiled):
    pipeline, state = compiled.pipeline, compiled.start()
    touched, pairs = pipeline.scope(state, view(0).camera)
    _, evidence = compiled.loss_and_grad(state, (view(0),), jnp.int32(1), ROOM)
    np.testing.assert_array_equal(touched, evidence.visible_count > 0)
    assert int(pairs) == int(evidence.pairs[0])
    assert not np.any(np.asarray(evidence.active[0]) & ~np.asarray(touched))
    reach = np.asarray(pipeline.reach(state, view(0).camera, pipeline.drift(state, jnp.int32(1))))
    assert not np.any(np.asarray(touched) & ~reach) and not np.any(reach & ~np.asarray(state.alive))
