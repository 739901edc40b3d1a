"""The colour behind the scene, in training and in evaluation."""

from __future__ import annotations

import functools

import numpy as np

from odin_jax.train_config import TrainConfig
from splat.scene.types import Scene, load_photo

PLAIN = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}
SAMPLED = 16  # training photos that the mean colour is taken from
STRIDE = 7  # every so-manieth pixel along each side of them


def composite_colour(config: TrainConfig) -> np.ndarray:
    """[3] float32 colour that photos with alpha are laid over; black where the option names no colour."""
    return np.asarray(PLAIN.get(config.background, PLAIN["black"]), np.float32)


def backdrop(config: TrainConfig, scene: Scene) -> np.ndarray:
    """[3] float32 colour (0..1) that evaluation, and training unless random, puts behind the scene.

    ``mean`` is the mean colour of the training photos: what no training view has seen is then drawn as the least
    wrong single colour. Photos laid over a colour by their alpha keep that colour; ``random`` is evaluated on black.
    Raises UserError when a photo cannot be decoded.
    """
    composited = scene.alpha == "background" and any(photo.has_alpha for photo in scene.photos)
    if config.background == "mean" and not composited:
        return _mean_colour(scene)
    return composite_colour(config)


@functools.lru_cache(maxsize=2)
def _mean_colour(scene: Scene) -> np.ndarray:
    chosen = scene.train[:: max(1, len(scene.train) // SAMPLED)]
    means = [load_photo(scene, index)[0][::STRIDE, ::STRIDE].reshape(-1, 3).mean(0) for index in chosen]
    return (np.rint(np.mean(means, 0)) / 255).astype(np.float32)
