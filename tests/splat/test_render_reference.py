"""The renderer agrees with its slow twin and with finite differences, in everything it can be differentiated to."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat import RenderOptions
from tests.splat.render_cases import ROOMY, check_slopes, named, program, random_inputs, random_weights, relative_error

F64 = jnp.float64


def compare(seed: int, options: RenderOptions, sh_degree: int, **scene) -> None:
    inputs, alive = random_inputs(seed, F64, **scene)
    weights = random_weights(seed, inputs.camera, F64)
    (loss, maps), grads = program("render", options, sh_degree, True)(inputs, alive, weights)
    (loss_ref, maps_ref), grads_ref = program("raster_ref", dataclasses.replace(options, pair_capacity=None),
                                              sh_degree, True)(inputs, alive, weights)
    assert np.isclose(loss, loss_ref, rtol=1e-10, atol=1e-9)
    for name, found, wanted in zip(("image", "alpha", "depth"), maps, maps_ref, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-10, err_msg=name)
    wanted = named(grads_ref)
    scale = max(np.abs(leaf).max() for leaf in wanted.values())
    for name, found in named(grads).items():
        np.testing.assert_allclose(found, wanted[name], atol=1e-10 * scale, rtol=1e-8, err_msg=name)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), max_logit=st.sampled_from([0.0, 8.0]), size=st.sampled_from([-3.0, -1.8, 0.0]),
       spread=st.sampled_from([0.4, 1.2, 4.0]))
def test_maps_and_gradients_equal_the_twin(seed, max_logit, size, spread):
    """Few and many rows per pixel, caps reached, pixels that end early, footprints beyond the image, rows behind."""
    with jax.enable_x64(True):
        compare(seed, ROOMY, 3, max_logit=max_logit, size=size, spread=spread)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([-4.0, -2.0]))
def test_antialiased_and_on_whole_tiles(seed, size):
    with jax.enable_x64(True):
        compare(seed, dataclasses.replace(ROOMY, antialias=True, low_pass=0.1, near=0.5), 2, width=48, height=32,
                size=size)


def test_the_cases_reach_what_they_claim():
    """The scenes above contain capped responses, ended pixels, rows behind the camera and rows that are not alive."""
    with jax.enable_x64(True):
        inputs, alive = random_inputs(0, F64)
        (_, (_, alpha, _)), _ = program("render", ROOMY, 3, True)(inputs, alive, random_weights(0, inputs.camera, F64))
    alive, alpha, view = np.asarray(alive), np.asarray(alpha), np.asarray(inputs.camera.view)
    assert 0 < alive.sum() < alive.size
    assert np.max(np.asarray(inputs.gaussians.opacity_logits)[alive]) > np.log(0.99 / 0.01)
    depth = np.asarray(inputs.gaussians.means) @ view[2, :3] + view[2, 3]
    assert 0 < np.sum(depth < 0.2) < alive.size // 2
    assert np.max(alpha) > 0.99
    assert np.min(alpha) < 0.5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_equal_finite_differences(seed):
    """Along a random direction in each input. No response is capped, since the cap's gradient passes straight through;
    the step is so short that hardly a response crosses 1/255, where the image jumps."""
    step = 1e-7
    with jax.enable_x64(True):
        inputs, alive = random_inputs(seed, F64, max_logit=2.0)
        weights, run = random_weights(seed, inputs.camera, F64), program("render", ROOMY, 3, True)
        assert {".camera.view", ".camera.intrinsics", ".background", ".probe"} < set(named(inputs))
        check_slopes(run, inputs, (alive, weights), np.random.default_rng(seed), step=step, tolerance=1e-5)


def test_the_capped_response_passes_its_gradient_straight_through():
    """One opaque row over a black background: plain differentiation of min(0.99, ·) would give no gradient."""
    with jax.enable_x64(True):
        inputs, _ = random_inputs(0, F64)
        one = dataclasses.replace(
            inputs.gaussians, means=inputs.gaussians.means.at[0].set(inputs.camera.centre + inputs.camera.view[2, :3]),
            log_scales=inputs.gaussians.log_scales.at[0].set(1.0),
            opacity_logits=inputs.gaussians.opacity_logits.at[0].set(8.0))
        inputs = dataclasses.replace(inputs, gaussians=one, probe=jnp.zeros_like(inputs.probe))
        weights = jax.tree.map(jnp.zeros_like, random_weights(0, inputs.camera, F64))
        weights = dataclasses.replace(weights, alpha=jnp.ones_like(weights.alpha))
        first = jnp.arange(one.count) == 0
        (_, (_, alpha, _)), grads = program("render", ROOMY, 3, True)(inputs, first, weights)
        assert float(jnp.max(alpha)) == pytest.approx(0.99, abs=1e-12)
        opacity, n_capped = float(one.opacities[0]), int(jnp.sum(alpha > 0.99 - 1e-12))
        assert n_capped > 20
        wanted = float(jnp.sum(jnp.minimum(alpha, 1.0))) / 0.99 * opacity * (1 - opacity)
        assert float(grads.gaussians.opacity_logits[0]) >= 0.9 * wanted > 0
        assert relative_error(grads.gaussians.opacity_logits[1:], 0) == 0
