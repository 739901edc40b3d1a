"""The photometric loss of 3DGS."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from splat.ssim import ssim

DSSIM_WEIGHT = 0.2  # λ of 3DGS: share of 1 − SSIM in the loss


def photometric(image: jax.Array, photo: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """[] 0.8·L1 + 0.2·(1 − SSIM) of ``image`` [H, W, 3] against ``photo`` [H, W, 3], colours in 0..1 (spec
    §0.3).

    ``mask`` [H, W] in 0..1 weighs the pixels: both terms become weighted means, and what lies outside is
    replaced by the photo first, so that it has no part in the windows of its neighbours. Its mean over an
    empty mask is 0.
    """
    if mask is None:
        return (1 - DSSIM_WEIGHT) * jnp.mean(jnp.abs(image - photo)) + DSSIM_WEIGHT * (1 - ssim(image, photo))
    weights = mask[..., None]
    seen = photo + weights * (image - photo)
    total = jnp.maximum(jnp.sum(mask), jnp.finfo(image.dtype).tiny)
    l1 = jnp.sum(jnp.abs(seen - photo)) / (image.shape[-1] * total)
    dissimilarity = jnp.where(jnp.any(mask > 0), 1 - ssim(seen, photo, mask), 0.0)
    return (1 - DSSIM_WEIGHT) * l1 + DSSIM_WEIGHT * dissimilarity


def mean_squared_error(image: jax.Array, photo: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """[] mean squared colour error, colours clamped to 0..1; weighted by ``mask`` [H, W] where given."""
    error = jnp.square(jnp.clip(image, 0.0, 1.0) - photo)
    if mask is None:
        return jnp.mean(error)
    total = jnp.maximum(jnp.sum(mask), jnp.finfo(image.dtype).tiny)
    return jnp.sum(mask[..., None] * error) / (image.shape[-1] * total)
