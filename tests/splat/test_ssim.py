"""SSIM against its readable twin, finite differences, and known values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat import ssim as module
from splat.ssim import ssim, ssim_slow


def images(height: int, width: int, seed: int = 0, dtype=np.float64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A photo-like image, a noisy version of it, and a mask."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 16
    target = 0.5 + 0.4 * np.sin(y[..., None] + x[..., None] * rng.uniform(0.5, 2, 3))
    image = np.clip(target + rng.normal(0, 0.1, target.shape), -0.2, 1.2)
    return image.astype(dtype), target.astype(dtype), rng.uniform(size=(height, width)).astype(dtype)


@pytest.mark.parametrize(
    ("height", "width", "masked", "cut"),
    [(1, 1, False, True), (3, 40, True, True), (33, 21, False, False), (70, 45, True, True)],
)
def test_value_and_gradient_are_the_twins(height, width, masked, cut, monkeypatch):
    monkeypatch.setattr(module, "_WHOLE_VALUES", 0 if cut else 10**9)
    with jax.enable_x64(True):
        image, target, mask = map(jnp.asarray, images(height, width))
        weights = mask if masked else None
        value, grad = jax.value_and_grad(ssim)(image, target, weights)
        value_slow, grad_slow = jax.jit(jax.value_and_grad(ssim_slow))(image, target, weights)
    np.testing.assert_allclose(value, value_slow, rtol=1e-12)
    np.testing.assert_allclose(grad, grad_slow, rtol=1e-9, atol=1e-14)


def test_gradient_is_the_finite_difference():
    with jax.enable_x64(True):
        image, target, mask = map(jnp.asarray, images(24, 30, seed=3))
        grad = jax.grad(ssim)(image, target, mask)
        rng = np.random.default_rng(1)
        for _ in range(5):
            direction = jnp.asarray(rng.normal(size=image.shape))
            step = 1e-6
            difference = (
                ssim(image + step * direction, target, mask) - ssim(image - step * direction, target, mask)
            ) / (2 * step)
            np.testing.assert_allclose(jnp.sum(grad * direction), difference, rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_it_is_one_for_equal_images_and_less_otherwise(seed):
    image, target, _ = images(20, 20, seed, np.float32)
    assert float(ssim(jnp.asarray(target), jnp.asarray(target))) == pytest.approx(1, abs=1e-5)
    assert float(ssim(jnp.asarray(image), jnp.asarray(target))) < 0.99
    assert float(ssim(jnp.asarray(image), jnp.asarray(target))) == pytest.approx(
        float(ssim(jnp.asarray(target), jnp.asarray(image))), abs=1e-5
    )


def test_constant_images_far_from_the_border_have_the_luminance_term_alone():
    with jax.enable_x64(True):
        first, second = jnp.full((40, 40, 3), 0.25), jnp.full((40, 40, 3), 0.75)
        weights = jnp.zeros((40, 40)).at[8:-8, 8:-8].set(1)
        value = ssim(first, second, weights)
    expected = (2 * 0.25 * 0.75 + 0.01**2) / (0.25**2 + 0.75**2 + 0.01**2)
    assert float(value) == pytest.approx(expected, abs=1e-12)


def test_it_works_in_float32_under_jit_and_vmap_and_shows_a_nan():
    image, target, _ = images(30, 26, dtype=np.float32)
    batch = jnp.stack([jnp.asarray(image), jnp.asarray(target)])
    mapped = jax.vmap(lambda one: jax.grad(ssim)(one, jnp.asarray(target)))(batch)
    alone = jax.jit(jax.grad(ssim))(jnp.asarray(image), jnp.asarray(target))
    np.testing.assert_allclose(mapped[0], alone, atol=1e-6)
    assert np.isnan(ssim(jnp.asarray(image).at[0, 0, 0].set(jnp.nan), jnp.asarray(target)))
