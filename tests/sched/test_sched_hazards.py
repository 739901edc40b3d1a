"""The admission rules, on numpy and JAX arrays, against definitions by sets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched.hazards import PATHS, Action, Hazards, count, decide, high_impact, ratio, raw, war, waw
from sched.rowsets import pack

N = 20
rows = st.lists(st.booleans(), min_size=N, max_size=N).map(np.array)


def as_set(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(mask).tolist())


def three(read_a, write_a, read_b, write_b):
    return waw(write_a, write_b), raw(write_a, read_b, write_b), war(read_a, write_a, write_b)


three_jit = jax.jit(three)


@settings(max_examples=50, deadline=None)
@given(rows, rows, rows, rows)
def test_sets_match_the_definitions_on_every_kind_of_array(read_a, some_a, read_b, some_b):
    write_a, write_b = read_a & some_a, read_b & some_b
    ra, wa, rb, wb = map(as_set, (read_a, write_a, read_b, write_b))
    expected = (wb & wa, (rb - wb) & wa, wb & (ra - wa))

    masks = (read_a, write_a, read_b, write_b)
    assert tuple(map(as_set, three(*masks))) == expected
    assert tuple(map(as_set, map(np.asarray, three_jit(*map(jnp.asarray, masks))))) == expected
    sizes = tuple(len(s) for s in expected)
    assert tuple(int(count(s)) for s in three(*map(pack, masks))) == sizes
    words = [jnp.asarray(np.packbits(mask)) for mask in masks]
    assert tuple(int(count(s)) for s in three_jit(*words)) == sizes


def test_ratio_is_zero_where_nothing_is_read():
    none = np.zeros(4, bool)
    assert float(ratio(none, none)) == 0
    assert float(ratio(np.array([1, 0, 0, 0], bool), np.array([1, 1, 1, 1], bool))) == 0.25


@settings(max_examples=50, deadline=None)
@given(rows, rows, st.lists(st.floats(0, 10, width=32), min_size=N, max_size=N), st.floats(0, 1))
def test_gradient_gate_is_the_scaled_mean_of_the_active_set(delayed, active, magnitude, tau):
    g = np.array(magnitude, np.float64)
    mean = g[active].mean() if active.any() else 0.0
    expected = {p for p in as_set(delayed) if not (active[p] and g[p] <= tau * mean)}
    assert as_set(high_impact(delayed, active, g, tau)) == expected


def test_missing_and_broken_evidence_fails_the_gate():
    delayed = np.array([True, True, False])
    assert high_impact(delayed, np.zeros(3, bool), np.zeros(3), 1.0).tolist() == delayed.tolist()
    broken = high_impact(delayed, np.ones(3, bool), np.array([0.0, np.nan, 1.0]), 1.0)
    assert broken.tolist() == delayed.tolist()


hazard_counts = st.builds(
    Hazards,
    waw=st.integers(0, 3),
    raw=st.integers(0, 3),
    war=st.integers(0, 2),
    read_b=st.integers(3, 12),
    failing=st.none() | st.integers(0, 2),
    skipped=st.integers(0, 1),
)


@given(
    hazard_counts | st.none(),
    st.sampled_from(PATHS),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_nothing_is_admitted_that_the_paper_forbids(hazards, path, tau, blocking, structural, observing):
    decision = decide(
        hazards,
        path=path,
        tau=tau,
        blocking="high coupling" if blocking else None,
        structural=structural,
        observing=observing,
    )
    if structural or blocking or path == "sync":
        assert decision.action is Action.BARRIER
        return
    if path == "unvalidated":
        assert decision.action is Action.PROCEED
        return
    if hazards is None:
        assert decision.action is Action.BARRIER
        return
    assert decision.wait_observed == (observing and hazards.war > 0)
    if decision.action is Action.PROCEED:
        assert hazards.waw == hazards.raw == 0
    if decision.action is Action.DELAYED:
        assert path == "throughput" and hazards.raw / hazards.read_b <= tau
        assert hazards.failing == 0 and hazards.skipped == 0
    if path == "quality" and (hazards.waw or hazards.raw):
        assert decision.action is Action.PARTIAL


def test_throughput_first_delays_a_small_weak_raw_overlap_and_says_why_not_otherwise():
    def reason(**changes):
        return decide(Hazards(**{**good, **changes}), path="throughput", tau=0.2)

    good = {"waw": 0, "raw": 2, "war": 0, "read_b": 10, "failing": 0, "skipped": 0}
    assert reason().action is Action.DELAYED
    assert reason(waw=1).action is Action.DELAYED
    assert reason(raw=3).reason == "delayed share above tau"
    assert reason(failing=None).reason == "no evidence"
    assert reason(failing=1).reason == "high impact"
    assert reason(skipped=1).reason == "skipped once"
    assert reason(raw=0, waw=1).reason == "waw only"


def test_unknown_paths_and_taus_are_refused():
    with pytest.raises(ValueError, match="path must be"):
        decide(None, path="fast")
    with pytest.raises(ValueError, match="tau"):
        decide(None, path="quality", tau=1.5)
