"""Metrics on 8-bit images."""

from __future__ import annotations

import math

import numpy as np
import pytest

from splat import metrics
from splat.errors import UserError
from splat.ssim import ssim_slow


def picture(seed: int = 0) -> np.ndarray:
    y, x = np.mgrid[:48, :64] / 8
    base = 128 + 100 * np.sin(y[..., None] + x[..., None] * np.array([1, 1.5, 0.7]) + seed)
    return np.rint(base).astype(np.uint8)


def noisy(image: np.ndarray, sigma: float) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, sigma, image.shape)
    return np.rint(np.clip(image + noise, 0, 255)).astype(np.uint8)


def test_psnr_of_a_known_error():
    black = np.zeros((4, 5, 3), np.uint8)
    assert metrics.psnr(black, black) == math.inf
    assert metrics.psnr(black, black + np.uint8(255)) == pytest.approx(0)
    assert metrics.psnr(black, black + np.uint8(1)) == pytest.approx(20 * math.log10(255))


def test_ssim_is_that_of_the_twin():
    truth, image = picture(), noisy(picture(), 20)
    expected = float(ssim_slow(image.astype(np.float32) / 255, truth.astype(np.float32) / 255))
    assert metrics.ssim(image, truth) == pytest.approx(expected, abs=1e-5)


def test_lpips_is_zero_for_equal_images_and_grows_with_the_noise():
    truth = picture()
    same, little, much = (metrics.lpips(image, truth) for image in (truth, noisy(truth, 5), noisy(truth, 60)))
    assert same == pytest.approx(0, abs=1e-6)
    assert 0.001 < little < much


def test_wrong_input_is_refused():
    with pytest.raises(TypeError, match="uint8"):
        metrics.psnr(picture() / 255.0, picture())
    with pytest.raises(TypeError, match="one shape"):
        metrics.ssim(picture()[1:], picture())
    with pytest.raises(UserError, match="16 pixels"):
        metrics.lpips(picture()[:15], picture()[:15])
