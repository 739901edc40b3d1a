"""The photometric loss: composition, masks, gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat import loss
from splat.loss import mean_squared_error
from splat.ssim import ssim_slow

photometric = jax.jit(loss.photometric)
value_and_grad = jax.jit(jax.value_and_grad(loss.photometric))


def pair(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    photo = rng.uniform(size=(26, 31, 3))
    return jnp.asarray(np.clip(photo + rng.normal(0, 0.2, photo.shape), -0.1, 1.1)), jnp.asarray(photo)


def test_it_is_four_parts_l1_and_one_part_dissimilarity():
    with jax.enable_x64(True):
        image, photo = pair()
        expected = 0.8 * jnp.mean(jnp.abs(image - photo)) + 0.2 * (1 - ssim_slow(image, photo))
        np.testing.assert_allclose(photometric(image, photo), expected, rtol=1e-12)


def test_gradient_is_the_finite_difference_with_and_without_mask():
    with jax.enable_x64(True):
        image, photo = pair(1)
        direction = jnp.asarray(np.random.default_rng(2).normal(size=image.shape))
        for mask in (None, jnp.asarray(np.random.default_rng(3).uniform(size=image.shape[:2]))):
            slope = jnp.sum(value_and_grad(image, photo, mask)[1] * direction)
            step = 1e-7
            high, low = (photometric(image + sign * step * direction, photo, mask) for sign in (1, -1))
            np.testing.assert_allclose(slope, (high - low) / (2 * step), rtol=1e-5)


def test_a_full_mask_changes_nothing_and_masked_pixels_have_no_part():
    image, photo = pair(4)
    full = jnp.ones(image.shape[:2])
    assert float(photometric(image, photo, full)) == pytest.approx(float(photometric(image, photo)), rel=1e-5)
    mask = full.at[:, 15:].set(0)
    other = image.at[:, 15:].set(7.0)
    assert float(photometric(image, photo, mask)) == pytest.approx(float(photometric(other, photo, mask)), rel=1e-6)
    grad = value_and_grad(image, photo, mask)[1]
    assert np.all(np.asarray(grad)[:, 15:] == 0) and np.any(np.asarray(grad)[:, :15] != 0)


def test_an_empty_mask_gives_no_loss_and_no_gradient():
    image, photo = pair(5)
    value, grad = value_and_grad(image, photo, jnp.zeros(image.shape[:2]))
    assert float(value) == 0 and np.all(np.asarray(grad) == 0)


def test_squared_error_clamps_and_weighs():
    image, photo = jnp.asarray([[[2.0, 0.5, 0.0]], [[0.0, 0.0, 0.0]]]), jnp.zeros((2, 1, 3))
    assert float(mean_squared_error(image, photo)) == pytest.approx(1.25 / 6)
    assert float(mean_squared_error(image, photo, jnp.asarray([[1.0], [0.0]]))) == pytest.approx(1.25 / 3)
