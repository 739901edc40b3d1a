"""Groups and unit order: balance, epoch multiset, unit size, determinism, lower conflict."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from captures_for_sched import capture_of, flight, track_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from sched.build import make_plan, mean_share, survey
from sched.errors import PlanError
from sched.geometry import in_frusta
from sched.order import random_order
from sched.partition import Partition, embed, group_sizes, partition
from sched.plan import PlanOptions
from sched.refine import refine
from sched.rlg import track_rlg
from sched.synthetic import city_capture


def check_epochs(units, n_views: int, batch: int, epochs: int, n_repeats: int, repeat_unit) -> None:
    """Every epoch has each view once, but for the repeats at the end of the unit said to have them."""
    per_epoch = -(-n_views // batch)
    assert units.shape == (epochs * per_epoch, batch)
    assert n_repeats == per_epoch * batch - n_views
    for epoch in range(epochs):
        part = units[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(len(set(unit)) == batch for unit in part.tolist())
        first_time = np.ones(part.shape, bool)
        if n_repeats:
            first_time[repeat_unit[epoch], batch - n_repeats :] = False
        assert sorted(part[first_time].tolist()) == list(range(n_views))


@settings(deadline=None, max_examples=60)
@given(track_sets(), st.data())
def test_any_capture_gives_whole_epochs_and_balanced_groups(sets, data):
    n = len(sets)
    batch = data.draw(st.integers(1, n))
    options = PlanOptions(
        batch=batch,
        regions=data.draw(st.integers(1, n + 2)),
        top_k=data.draw(st.integers(1, 8)),
        epochs=2,
        seed=data.draw(st.integers(0, 5)),
        cohesion=data.draw(st.sampled_from([0.0, 0.5])),
        without=data.draw(st.sampled_from([(), ("lp",), ("sds",), ("hogwild",)])),
    )
    plan = make_plan(capture_of(sets), options)
    check_epochs(plan.units, n, batch, 2, plan.n_repeats, plan.repeat_unit)
    sizes = np.bincount(plan.labels)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= batch
    assert len(sizes) == (1 if options.leaves_out("lp") else min(options.regions, plan.units_per_epoch))


@settings(deadline=None, max_examples=15)
@given(st.integers(5, 40), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_refined_plans_keep_epochs_groups_and_turns(n, batch, regions, seed):
    capture = flight(n, seed)
    options = PlanOptions(batch=batch, regions=regions, epochs=2, seed=seed)
    known = survey(capture, options)
    plan = make_plan(capture, options, known=known)
    check_epochs(plan.units, n, batch, 2, plan.n_repeats, plan.repeat_unit)
    plain = make_plan(
        capture, PlanOptions(batch=batch, regions=regions, epochs=2, seed=seed, refine_sweeps=0)
    )
    assert (plan.labels == plain.labels).all()
    for turns, before in zip(plan.unit_groups.reshape(2, -1), plain.unit_groups.reshape(2, -1), strict=True):
        assert sorted(turns) == sorted(before)
    spare = batch * plan.units_per_epoch - n
    strangers = (plan.labels[plan.units] != plan.unit_groups[:, None]).sum()
    assert strangers <= 2 * spare  # only repeats may come from another group
    assert plan.stats.share <= plain.stats.share + 1e-9


def test_same_seed_same_plan_other_seed_other_plan():
    capture = flight(30)
    first, again, other = (
        make_plan(capture, PlanOptions(batch=3, epochs=3, seed=seed)) for seed in (0, 0, 1)
    )
    assert (first.units == again.units).all()
    assert first.windows == again.windows
    assert (first.units != other.units).any()
    epochs = first.units.reshape(3, -1, 3)
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()


def test_epochs_differ_without_geometry_too():
    plan = make_plan(city_capture(200, 40), PlanOptions(batch=4, epochs=3))
    epochs = plan.units.reshape(3, -1, 4)
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_scheduling_lowers_coupling_and_conflict(batch):
    capture = flight(64, n_points=1500)
    scopes = in_frusta(capture.cameras, capture.points)
    chance = mean_share(scopes, random_order(64, batch, 20, 0).units)
    greedy = make_plan(capture, PlanOptions(batch=batch, refine_sweeps=0))
    polished = make_plan(capture, PlanOptions(batch=batch))
    assert greedy.stats.coupling < 0.5 * greedy.stats.random_coupling
    assert mean_share(scopes, greedy.units) < 0.6 * chance
    assert mean_share(scopes, polished.units) < mean_share(scopes, greedy.units)


def test_city_plan_has_no_coupled_neighbours():
    plan = make_plan(city_capture(2000, 50), PlanOptions(batch=8, epochs=1))
    assert plan.stats.random_coupling > 0.02
    assert plan.stats.coupling < 0.001


def test_groups_keep_more_coupling_inside_than_chance():
    capture = flight(80, n_points=2000)
    rlg = track_rlg(capture)
    groups = partition(rlg, 4, 4, embed(rlg, 0))
    inside = np.diag(groups.coupling).mean()
    across = groups.coupling[~np.eye(4, dtype=bool)].mean()
    assert inside > 4 * across
    assert np.bincount(groups.labels).tolist() == [20, 20, 20, 20]


def test_disconnected_captures_fall_into_their_parts():
    sets = [{part * 10 + j for j in range(5)} for part in range(3) for _ in range(4)]
    rlg = track_rlg(capture_of(sets))
    groups = partition(rlg, 3, 2, embed(rlg, 0))
    assert [len(set(groups.labels[4 * part : 4 * part + 4].tolist())) for part in range(3)] == [1, 1, 1]
    plan = make_plan(capture_of(sets), PlanOptions(batch=2, regions=3))
    assert plan.stats.coupling == 0


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 20))
def test_group_sizes_are_whole_units(n_views, batch, regions):
    if batch > n_views:
        with pytest.raises(PlanError, match="larger than"):
            group_sizes(n_views, batch, regions)
        return
    counts, sizes = group_sizes(n_views, batch, regions)
    assert sizes.sum() == n_views
    assert counts.sum() == -(-n_views // batch)
    assert counts.max() - counts.min() <= 1
    assert sizes.max() - sizes.min() <= batch
    assert (sizes % batch != 0).sum() == (1 if n_views % batch else 0)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 3), st.integers(0, 9))
def test_random_order_is_whole_epochs(n_views, batch, epochs, seed):
    if batch <= n_views:
        order = random_order(n_views, batch, epochs, seed)
        check_epochs(order.units, n_views, batch, epochs, order.n_repeats, order.repeat_unit)


def test_refine_of_few_units_changes_nothing():
    capture = flight(6)
    order = random_order(6, 2, 2, 0)
    assert (refine(order, in_frusta(capture.cameras, capture.points), 4, 0).units == order.units).all()


def test_turns_alternate_between_weakly_coupled_groups():
    coupling = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1.0]])
    groups = Partition(np.repeat([0, 1, 2], 4).astype(np.int32), np.array([2, 2, 2]), coupling)
    from sched.order import traverse

    turns = traverse(groups, 0, np.random.default_rng(0))
    assert turns[0] == 2  # weakest to group 0, which ran last
    assert all(a != b for a, b in pairwise(turns))
    assert sorted(turns) == [0, 0, 1, 1, 2, 2]


def test_one_view_and_views_without_tracks_give_a_plan():
    plan = make_plan(capture_of([{0, 1}]), PlanOptions(batch=1))
    assert plan.units.tolist() == [[0]] * 8
    assert plan.window(0).blocking  # the next unit reads what this one wrote
    blind = make_plan(capture_of([set(), set(), {0}, {0}], n_points=1), PlanOptions(batch=1))
    assert any("2 views have no tracks" in line for line in blind.warnings)
    assert make_plan(capture_of([set(), set()], n_points=0), PlanOptions(batch=2)).units_per_epoch == 1
