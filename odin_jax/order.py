"""Which views a unit trains: a function of (seed, step) alone, so that a resumed run sees the same."""

from __future__ import annotations

import numpy as np

ORDER, BACKGROUND = 1, 2  # purposes: random streams that must not share numbers


def generator(seed: int, purpose: int, *counters: int) -> np.random.Generator:
    """The random stream of one purpose at one place of the run; equal arguments give equal numbers."""
    return np.random.default_rng(np.random.SeedSequence([seed, purpose, *counters]))


def epoch_order(seed: int, epoch: int, views: int) -> np.ndarray:
    """[views] permutation in which an epoch visits the training views (spec §0: no replacement)."""
    return generator(seed, ORDER, epoch).permutation(views)


def unit_views(seed: int, step: int, views: int, batch: int) -> tuple[int, ...]:
    """Positions in the training set of the ``batch`` samples of 1-based ``step``.

    Samples are numbered through all epochs; a unit at the end of an epoch takes its rest from the next one.
    """
    samples = range((step - 1) * batch, step * batch)
    orders = {epoch: epoch_order(seed, epoch, views) for epoch in {sample // views for sample in samples}}
    return tuple(int(orders[sample // views][sample % views]) for sample in samples)


def random_background(seed: int, step: int, slot: int) -> np.ndarray:
    """[3] float32 uniform colour behind sample ``slot`` of ``step``."""
    return generator(seed, BACKGROUND, step, slot).random(3, dtype=np.float32)
