"""The order of views: every view once per epoch, and a function of (seed, step) alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odin_jax.order import epoch_order, random_background, unit_views


@given(
    seed=st.integers(0, 2**31), views=st.integers(1, 40), batch=st.integers(1, 9), epochs=st.integers(1, 4)
)
def test_every_view_comes_once_per_epoch(seed, views, batch, epochs):
    steps = -(-views * epochs // batch)
    samples = [view for step in range(1, steps + 1) for view in unit_views(seed, step, views, batch)]
    for epoch in range(epochs):
        assert sorted(samples[epoch * views : (epoch + 1) * views]) == list(range(views))


def test_a_step_needs_no_steps_before_it():
    in_order = [unit_views(3, step, 17, 4) for step in range(1, 30)]
    backwards = [unit_views(3, step, 17, 4) for step in range(29, 0, -1)]
    assert in_order == backwards[::-1]


def test_epochs_and_seeds_differ():
    orders = {tuple(epoch_order(seed, epoch, 30)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_backgrounds_are_colours_that_repeat_only_for_the_same_sample():
    colours = {(step, slot): random_background(5, step, slot) for step in (1, 2) for slot in (0, 1)}
    assert all(
        colour.shape == (3,) and (colour >= 0).all() and (colour < 1).all() for colour in colours.values()
    )
    assert len({colour.tobytes() for colour in colours.values()}) == 4
    assert np.array_equal(random_background(5, 2, 1), colours[2, 1])
