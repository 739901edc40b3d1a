"""The simulated timeline: conservation, order on the lanes, limits that are known by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched.cluster import Cluster
from sched.hazards import Action
from sched.phases import PhaseCost, PhaseProfile
from sched.rowsets import pack
from sched.simulate import Scopes, simulate
from sched.windows import Window

PROFILE = PhaseProfile(
    "3dgs", "dp", 100, 44, 192, 0, {"render": PhaseCost(per_view=1.0), "backward": PhaseCost(per_view=1.0)}
)
CLUSTER = Cluster(2, 1, inter_bytes_per_s=236 * 10, latency_s=0.0)  # ten rows a second


def windows(n: int, reason: str = "weak coupling") -> tuple[Window, ...]:
    return tuple(Window(reason, 0.0, 0.0, 0.0, 0.0) for _ in range(n))


def stripes(n_views: int, rows_each: int, overlap: int = 0) -> Scopes:
    """View i touches ``rows_each`` rows of its own and ``overlap`` rows of the next view."""
    rows = np.zeros((n_views, n_views * rows_each + overlap), bool)
    for i in range(n_views):
        rows[i, i * rows_each : (i + 1) * rows_each + overlap] = True
    words = pack(rows)
    return Scopes(words, words, rows.shape[1])


def test_disjoint_windows_take_the_longer_of_compute_and_publication():
    units = np.arange(16).reshape(8, 2)
    scopes = stripes(16, 10)  # a unit has 20 rows: 2 s on the link, as long as one view's compute
    slow = simulate(units, windows(8), scopes, PROFILE, CLUSTER, path="sync")
    fast = simulate(units, windows(8), scopes, PROFILE, CLUSTER, path="quality")
    assert slow.seconds == pytest.approx(8 * (2 + 2))
    assert fast.seconds == pytest.approx(8 * 2 + 2)
    assert {d.action for d in fast.decisions} == {Action.PROCEED}
    assert slow.samples_per_s == pytest.approx(16 / 32)
    assert fast.exposed_s.max() == pytest.approx(2)  # only the last publication has nothing to hide behind
    np.testing.assert_allclose(slow.idle_share, 0.5)


def test_equal_scopes_hide_only_the_colour_behind_nothing():
    units = np.zeros((6, 2), int) + np.arange(2)
    rows = np.ones((2, 20), bool)
    scopes = Scopes(pack(rows), pack(rows), 20)
    slow = simulate(units, windows(6), scopes, PROFILE, CLUSTER, path="sync")
    fast = simulate(units, windows(6), scopes, PROFILE, CLUSTER, path="quality")
    assert {d.action for d in fast.decisions} == {Action.PARTIAL}
    assert fast.seconds == pytest.approx(slow.seconds)  # preprocessing takes no time in this profile


def test_blocking_windows_and_structural_events_are_barriers():
    units = np.arange(16).reshape(8, 2)
    scopes = stripes(16, 10)
    slow = simulate(units, windows(8), scopes, PROFILE, CLUSTER, path="sync")
    blocked = simulate(units, windows(8, "memory"), scopes, PROFILE, CLUSTER)
    assert blocked.seconds == slow.seconds
    assert {d.reason for d in blocked.decisions} == {"memory"}
    events = simulate(units, windows(8), scopes, PROFILE, CLUSTER, structural=frozenset(range(8)))
    assert events.seconds == slow.seconds


def test_throughput_first_reads_late_once_and_only_with_evidence():
    rows = np.ones((2, 40), bool)
    writes = np.zeros((2, 40), bool)
    writes[0, :4], writes[1, 20:24] = True, True
    scopes = Scopes(pack(rows), pack(writes), 40)
    units = np.array([[0], [1], [0], [1]])
    weak = np.full((2, 40), 0.0)
    late = simulate(units, windows(4), scopes, PROFILE, CLUSTER, path="throughput", magnitude=weak)
    assert {d.action for d in late.decisions} == {Action.DELAYED}
    none = simulate(units, windows(4), scopes, PROFILE, CLUSTER, path="throughput")
    assert {d.reason for d in none.decisions} == {"no evidence"}
    strong = simulate(units, windows(4), scopes, PROFILE, CLUSTER, path="throughput", magnitude=weak + 1)
    assert {d.reason for d in strong.decisions} == {"high impact"}


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(0, 12), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3))
def test_lanes_never_overlap_and_no_path_beats_its_bounds(n_units, overlap, hosts, ranks_per_host, seed):
    cluster = Cluster(hosts, ranks_per_host, inter_bytes_per_s=2e3, intra_bytes_per_s=1e4)
    batch = cluster.ranks
    scopes = stripes(n_units * batch, 12, overlap)
    units = np.random.default_rng(seed).permutation(n_units * batch).reshape(n_units, batch)
    slow = simulate(units, windows(n_units), scopes, PROFILE, cluster, path="sync")
    fast = simulate(units, windows(n_units), scopes, PROFILE, cluster, path="quality")
    for line in (slow, fast):
        for lane in range(-1, cluster.ranks):
            spans = sorted((s.start, s.end) for s in line.spans if s.rank == lane)
            assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))
        done = {(s.unit, s.rank) for s in line.spans if s.phase == "backward"}
        assert done == {(u, r) for u in range(n_units) for r in range(cluster.ranks)}
        assert line.seconds >= n_units * 2 - 1e-9
        assert (line.idle_share >= -1e-9).all()
    # the pieces of a publication cost extra messages, at most three instead of one per unit
    assert fast.seconds <= slow.seconds + n_units * 2 * cluster.all_reduce_seconds(1e-9) + 1e-9


def test_dds_shortens_a_run_with_uneven_views():
    rows = np.zeros((8, 64), bool)
    for i in range(8):
        rows[i, : 8 * (i + 1)] = True
    profile = PhaseProfile("3dgs", "dp", 64, 44, 192, 0, {"render": PhaseCost(per_row=0.1)})
    scopes = Scopes(pack(rows), pack(rows), 64)
    units = np.arange(8)[None]
    even = simulate(units, windows(1), scopes, profile, Cluster(1, 4), dds=True)
    fixed = simulate(units, windows(1), scopes, profile, Cluster(1, 4), dds=False)
    assert even.seconds < 0.8 * fixed.seconds


def test_all_reduce_time_is_that_of_a_ring():
    one_host = Cluster(1, 4, intra_bytes_per_s=1e3, latency_s=0.0)
    assert one_host.all_reduce_seconds(1000) == pytest.approx(1.5)
    hosts = Cluster(4, 1, inter_bytes_per_s=1e3, latency_s=0.0)
    assert hosts.all_reduce_seconds(1000) == pytest.approx(1.5)
    assert Cluster(1, 1).all_reduce_seconds(1000) == 0
