"""Who owns which row and which pixels: properties of layouts, placements, cuts and what is learnt for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odin_jax.mixed import homes
from odin_jax.mixed.cut import SIDE, cut, cut_points, given_to, tile_rows
from odin_jax.mixed.layout import layout_of, room_of
from odin_jax.mixed.shares import Shares
from odin_jax.parallel.alike import Shape
from splat.errors import UserError

COSTS = st.integers(1, 5).flatmap(lambda views: st.integers(1, 9).flatmap(lambda rows: st.lists(
    st.floats(0, 100), min_size=views * rows, max_size=views * rows).map(lambda v: np.reshape(v, (views, rows)))))


@given(COSTS, st.integers(1, 8), st.booleans())
def test_strips_cover_every_pixel_row_once(costs, ranks, whole):
    views, rows = costs.shape
    height = rows * SIDE - 5
    if (views if whole else views * rows) < ranks:
        with pytest.raises(UserError, match="cannot be shared"):
            cut(costs, height, np.full(ranks, 1 / ranks), whole)
        return
    found = cut(costs, height, np.full(ranks, 1 / ranks), whole)
    seen = np.zeros((views, height), int)
    for of_rank in found.pieces:
        assert any(piece.count for piece in of_rank) and len(of_rank) == len(found.pieces[0])
        for piece in of_rank:
            assert piece.count <= found.rows and piece.first % SIDE == 0
            seen[piece.view, piece.first : piece.first + piece.count] += 1
    assert (seen == 1).all()


def test_pieces_cost_what_their_ranks_are_to_bear():
    costs = np.random.default_rng(0).uniform(1, 20, (3, 200))
    portions = np.array([0.5, 0.3, 0.2])
    cuts = cut_points(costs, portions)
    parts = np.add.reduceat(costs.ravel(), cuts[:-1]) / costs.sum()
    np.testing.assert_allclose(parts, portions, atol=0.04)  # a cut close to the border of an image moves there


def test_pieces_may_go_to_other_ranks():
    found = cut(np.ones((2, 6)), 96, np.full(3, 1 / 3))
    turned = given_to(found, np.array([2, 0, 1]))  # piece 0 for rank 2, …
    assert [turned.pieces[rank] for rank in (2, 0, 1)] == list(found.pieces)
    assert turned.place == (1, 2, 0)


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 60), st.integers(0, 2**31))
def test_a_layout_holds_every_row_once_in_the_order_of_ids(ranks, alive, seed):
    rng, rows = np.random.default_rng(seed), 512
    lives = np.zeros(rows, bool)
    lives[rng.permutation(rows)[: alive + ranks]] = True
    where = rng.integers(0, ranks, rows)
    where[np.flatnonzero(lives)[:ranks]] = np.arange(ranks)
    found = layout_of(where, lives, ranks)
    known = found.ids[found.ids < rows]
    assert sorted(known) == list(range(rows)) and found.length <= room_of(rows, ranks)
    for rank, ids in enumerate(found.ids):
        mine = ids[ids < rows]
        assert (np.diff(mine) > 0).all() and set(np.flatnonzero(lives & (where == rank))) <= set(mine)


def test_a_rank_without_rows_is_refused():
    with pytest.raises(UserError, match="rank 2 of 4 has no Gaussian"):
        layout_of(np.array([0, 1, 3, 3] * 64), np.ones(256, bool), 4)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_placements_share_living_rows_evenly(ranks):
    rng = np.random.default_rng(1)
    alive, means = rng.random(1000) < 0.7, rng.normal(size=(1000, 3))
    touched = rng.random((20, 1000)) < 0.2
    units = [(view, (view + 7) % 20) for view in range(20)]
    spatial = homes.along_curve(means, alive, ranks)
    for where in (homes.at_random(alive, ranks, 0, 3), spatial, homes.by_access(touched, units, spatial, alive, ranks)):
        counts = np.bincount(where[alive], minlength=ranks)
        assert counts.max() - counts.min() <= ranks and not homes.uneven(where, alive, ranks)
    assert (homes.at_random(alive, ranks, 0, 3) != homes.at_random(alive, ranks, 0, 4)).any()


def test_rows_go_where_the_views_that_touch_them_are_rendered():
    groups = np.arange(800) * 4 // 800  # of rows, by the views 4·i + group that see them
    touched = np.stack([groups == view % 4 for view in range(16)])
    units = [range(first, first + 4) for first in range(0, 16, 4)]
    start = np.random.default_rng(0).permutation(800) % 4
    found = homes.by_access(touched, units, start, np.ones(800, bool), 4)
    assert all(len(set(found[groups == group])) == 1 for group in range(4))


def test_along_the_curve_a_view_of_one_place_needs_few_ranks():
    means = np.random.default_rng(0).uniform(0, 1, (4000, 3)) * [1, 1, 0.01]
    near = np.all(np.abs(means[:, :2] - 0.2) < 0.1, 1)
    alive = np.ones(4000, bool)
    assert len(set(homes.along_curve(means, alive, 8)[near])) <= 2
    assert len(set(homes.at_random(alive, 8, 0, 0)[near])) == 8


def test_new_rows_are_at_home_where_their_neighbours_are():
    means = np.array([[0.0, 0, 0], [10, 0, 0], [9, 0, 0], [1, 0, 0], [5, 5, 5]])
    before, alive = np.array([True, True, False]), np.array([True, True, True, True, False])
    assert homes.newborn(np.array([0, 1, 0]), before, alive, means)[:4].tolist() == [0, 1, 1, 0]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=50))
def test_homes_survive_a_checkpoint(values):
    assert homes.from_text(homes.to_text(np.array(values))).tolist() == values


def test_shares_learn_costs_owners_and_speeds_and_survive_a_checkpoint():
    shares, shape = Shares(2, measured=True), Shape(64, 64, False)
    found = cut(shares.costs([5, 6], shape), 64, shares.portions())
    shares.learn([5, 6], found, np.array([[9, 0, 0, 0], [0, 0, 0, 9]]), np.array([[10, 0], [1, 20]]))
    shares.observe(np.array([2.0, 1.0]))
    assert shares.portions()[0] < 0.5
    again = Shares(2, measured=True, known=shares.to_json())
    for known in (shares, again):
        costs = known.costs([6, 5, 7], shape)
        assert costs[0].argmax() == 3 and costs[1].argmax() == 0 and np.allclose(costs[2], costs[:2].mean(0))
        assert known.order([5, 6]) == [0, 1] and known.order([6, 5]) == [1, 0]
        assert known.ranks_of(found.pieces, [6, 5]).tolist() == [1, 0]
    assert Shares(4, True, shares.to_json()).order([5, 6]) == [0, 1]  # of other ranks only the costs are known
    assert tile_rows(64) == 4
