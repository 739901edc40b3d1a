"""DDS never loses, repeats or reorders work, is deterministic, and lowers skew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sched.dispatch import assign, assign_static, update_slowness

costs_and_ranks = st.integers(1, 8).flatmap(
    lambda ranks: st.tuples(
        st.lists(st.floats(0, 100), min_size=1, max_size=24),
        st.lists(st.floats(0, 10), min_size=ranks, max_size=ranks),
        st.lists(st.floats(0.1, 10), min_size=ranks, max_size=ranks),
    )
)


@given(costs_and_ranks)
def test_every_view_has_one_rank_within_its_capacity(drawn):
    costs, queued, slowness = (np.array(part) for part in drawn)
    ranks = assign(costs, len(queued), queued=queued, slowness=slowness)
    assert ranks.shape == costs.shape
    assert (ranks >= 0).all() and (ranks < len(queued)).all()
    assert np.bincount(ranks, minlength=len(queued)).max() <= -(-len(costs) // len(queued))
    assert (ranks == assign(costs.copy(), len(queued), queued=queued, slowness=slowness)).all()


@given(st.lists(st.floats(0.1, 100), min_size=4, max_size=24).filter(lambda c: len(c) % 4 == 0))
def test_never_slower_than_the_longest_view_more_than_the_mean(costs):
    costs = np.array(costs)
    load = np.bincount(assign(costs, 4, per_rank=len(costs)), costs, 4)
    assert load.max() <= costs.mean() * len(costs) / 4 + costs.max() + 1e-3  # the bound of list scheduling


def test_loaded_and_slow_ranks_get_the_short_views():
    assert assign(np.array([5.0, 1.0]), 2, queued=np.array([3.0, 0.0]), per_rank=1).tolist() == [1, 0]
    assert assign(np.array([5.0, 1.0]), 2, slowness=np.array([1.0, 4.0]), per_rank=1).tolist() == [0, 1]


def test_rounding_below_a_microsecond_changes_nothing():
    costs = np.array([1.0, 2.0, 3.0, 4.0])
    assert (assign(costs, 2) == assign(costs + 1e-9 * np.array([3, -1, 2, 0]), 2)).all()


def test_static_assignment_is_equal_blocks():
    assert assign_static(8, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_slowness_follows_measurements_of_ranks_that_worked():
    new = update_slowness(np.array([1.0, 1.0]), np.array([2.0, 0.0]), np.array([4.0, 0.0]), keep=0.5)
    assert new.tolist() == [1.5, 1.0]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        assign(np.ones(5), 2, per_rank=2)
    with pytest.raises(ValueError, match="one entry for each"):
        assign(np.ones(2), 2, queued=np.zeros(3))
