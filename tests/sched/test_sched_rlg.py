"""The locality graph against brute force, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from captures_for_sched import capture_of, flight, track_sets
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import sched.rlg
from sched.capture import load_tracks, make_capture
from sched.errors import PlanError
from sched.geometry import geometry_rlg, in_frusta
from sched.rlg import empty_rlg, important_rows, incidence_rlg, refresh, track_rlg
from sched.rowsets import count, pack, shared, union, unpack
from sched.synthetic import city_capture


def jaccard(sets: list[set[int]]) -> np.ndarray:
    """Eq. 1 for all pairs by sets, zero diagonal."""
    n = len(sets)
    table = np.zeros((n, n), np.float32)
    for i in range(n):
        for j in range(n):
            if i != j and sets[i] | sets[j]:
                table[i, j] = len(sets[i] & sets[j]) / len(sets[i] | sets[j])
    return table


def retained(table: np.ndarray, top_k: int) -> np.ndarray:
    """Brute force top-k per row (ties: lower index), kept if either end keeps it."""
    keep = np.zeros_like(table, bool)
    for i, row in enumerate(table):
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))
        keep[i, [j for j in order[:top_k] if row[j] > 0]] = True
    return np.where(keep | keep.T, table, 0)


@settings(deadline=None)
@given(track_sets(), st.integers(1, 6))
def test_equals_brute_force_jaccard_with_top_k(sets, top_k):
    rlg = track_rlg(capture_of(sets), top_k=top_k, cap_percentile=100)
    weights = rlg.weights.toarray()
    np.testing.assert_allclose(weights, retained(jaccard(sets), top_k), rtol=1e-6)
    assert (weights == weights.T).all()
    assert (weights.diagonal() == 0).all()
    assert rlg.unseen.tolist() == [not s for s in sets]


@settings(deadline=None, max_examples=30)
@given(track_sets(), st.integers(1, 4))
def test_blocks_do_not_change_the_graph(sets, top_k):
    whole = track_rlg(capture_of(sets), top_k=top_k)
    limit, sched.rlg.BLOCK_ENTRIES = sched.rlg.BLOCK_ENTRIES, 7
    try:
        parts = track_rlg(capture_of(sets), top_k=top_k)
    finally:
        sched.rlg.BLOCK_ENTRIES = limit
    assert (whole.weights != parts.weights).nnz == 0


def test_long_tracks_are_thinned_to_the_cap():
    sets = [{0} | {1 + i} | {2 + i} for i in range(200)]
    free = track_rlg(capture_of(sets), cap_percentile=100, top_k=250)
    capped = track_rlg(capture_of(sets), cap_percentile=99, top_k=250)
    assert free.weights.nnz == 200 * 199
    # chains of the short tracks, and the two views that still have track 0
    assert capped.weights.nnz == 2 * 199 + 2


def test_every_view_keeps_its_heaviest_neighbours_in_a_city():
    capture = city_capture(400, 60)
    full = track_rlg(capture, top_k=400, cap_percentile=100).weights.toarray()
    kept = track_rlg(capture, top_k=5, cap_percentile=100).weights.toarray()
    for row, mine in zip(full, kept, strict=True):
        assert np.count_nonzero(mine) >= 5
        assert mine.max() == row.max()
        assert (mine >= np.sort(row)[-5]).sum() >= 5


@settings(deadline=None, max_examples=40)
@given(track_sets(), st.data())
def test_refresh_replaces_pairs_with_evidence_only(sets, data):
    rlg = track_rlg(capture_of(sets), top_k=50, cap_percentile=100)
    seen = data.draw(st.lists(st.sets(st.integers(0, 9)), min_size=len(sets), max_size=len(sets)))
    rows = np.zeros((len(sets), 10), np.float32)
    for i, s in enumerate(seen):
        rows[i, list(s)] = 1
    new = refresh(rlg, sparse.csr_array(rows)).weights.toarray()
    both = np.outer([bool(s) for s in seen], [bool(s) for s in seen])
    np.testing.assert_allclose(new, np.where(both, jaccard(seen), jaccard(sets)), rtol=1e-6)


def test_importance_keeps_rows_above_the_scaled_mean():
    magnitude = sparse.csr_array(np.array([[10.0, 1.0, 0.0, 1.0], [0.0, 3.0, 3.0, 3.0]]))
    assert important_rows(magnitude, 0.5).toarray().astype(bool).tolist() == [
        [True, False, False, False],
        [False, True, True, True],
    ]


def test_geometry_graph_couples_only_overlapping_frusta():
    capture = flight(30, n_points=2000)
    weights = geometry_rlg(capture.cameras, capture.points, top_k=29).weights.toarray()
    places = capture.cameras.centres[:, :2]
    apart = np.abs(places[:, None] - places[None]).max(-1)
    assert weights[apart > 3.5].max(initial=0) == 0
    assert weights[(apart < 0.5) & ~np.eye(30, dtype=bool)].min() > 0.3


def test_frusta_contain_exactly_the_projected_points():
    capture = flight(12)
    inside = unpack(in_frusta(capture.cameras, capture.points, margin=0.0), len(capture.points))
    expected = np.abs(capture.points[None, :, :2] - capture.cameras.centres[:, None, :2]).max(-1) < 1.0
    assert (inside == expected).all()


@given(st.lists(st.lists(st.booleans(), min_size=70, max_size=70), min_size=2, max_size=4))
def test_packed_rows_are_sets(rows):
    rows = np.array(rows)
    words = pack(rows)
    assert (unpack(words, 70) == rows).all()
    assert count(words).tolist() == rows.sum(1).tolist()
    assert (unpack(union(words), 70) == rows.any(0)).all()
    expected = (rows[0] & rows[1]).sum() / max(rows[0].sum(), 1)
    assert shared(words[0], words[1]) == pytest.approx(expected)


def test_none_graph_says_that_nothing_is_known():
    rlg = empty_rlg(5)
    assert rlg.weights.nnz == 0
    assert rlg.unseen.all()


def test_repeated_and_unsorted_ids_count_once():
    tidy = make_capture(np.array([0, 2, 4]), np.array([0, 1, 1, 2]))
    messy = make_capture(np.array([0, 4, 7]), np.array([1, 0, 1, 0, 2, 1, 2]), n_points=3)
    assert (track_rlg(tidy).weights != track_rlg(messy).weights).nnz == 0


@pytest.mark.parametrize(
    ("ptr", "ids", "says"),
    [
        ([0, 2], [0, 5], "outside 0..2"),
        ([0, 2], [-1, 0], "point id -1"),
        ([0, 3], [0, 1], "rise from 0 to 2"),
        ([1, 2], [0, 1], "rise from 0"),
        ([0, 2, 1, 2], [0, 1], "rise from 0"),
        ([0], [], "one entry per view plus one"),
        ([0.0, 2.0], [0, 1], "integers"),
    ],
)
def test_arrays_that_are_no_tracks_give_one_line(ptr, ids, says):
    with pytest.raises(PlanError, match=says) as caught:
        make_capture(np.array(ptr), np.array(ids, int), n_points=3)
    assert "\n" not in str(caught.value)


def test_bad_parameters_and_names_give_one_line():
    with pytest.raises(PlanError, match="top-k"):
        track_rlg(capture_of([{0}]), top_k=0)
    with pytest.raises(PlanError, match="percentile"):
        track_rlg(capture_of([{0}]), cap_percentile=0)
    with pytest.raises(PlanError, match="'a' appears twice"):
        make_capture(np.array([0, 1, 2]), np.array([0, 0]), names=("a", "a"))
    with pytest.raises(PlanError, match="3 views for a graph of 2"):
        refresh(empty_rlg(2), sparse.csr_array((3, 4)))


def test_tracks_files_round_trip_and_are_checked(tmp_path):
    good = tmp_path / "tracks.npz"
    np.savez(good, view_ptr=[0, 2, 3], point_ids=[0, 1, 1], names=["a.jpg", "b.jpg"])
    assert load_tracks(good).names == ("a.jpg", "b.jpg")
    np.savez(tmp_path / "less.npz", view_ptr=[0, 1])
    (tmp_path / "text.npz").write_text("nothing")
    for name, says in (
        ("less.npz", "point_ids"),
        ("text.npz", "cannot be read"),
        ("none.npz", "cannot be read"),
    ):
        with pytest.raises(PlanError, match=says) as caught:
            load_tracks(tmp_path / name)
        assert name in str(caught.value)


def test_incidence_graph_of_no_items_is_empty():
    assert incidence_rlg(sparse.csr_array((4, 3), dtype=np.int32), "tracks").weights.nnz == 0
