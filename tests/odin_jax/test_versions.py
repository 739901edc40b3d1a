"""The transitions of the published state: the legal paths, and every step they forbid."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import jax.numpy as jnp
import numpy as np
import pytest

from odin_jax.versions import (
    OBSERVING,
    PENDING,
    REST,
    URGENT,
    IllegalTransition,
    VersionedState,
    change_structure,
    commit,
    observe,
    produce,
    publish,
)
from sched.rowsets import pack

PARTS = (*URGENT, REST)


def published(now, unit, parts=PARTS):
    for part in parts:
        now = publish(now, unit, part, f"{unit} {part}")
    return now


def pending(unit=1, start=None):
    """``unit`` has its gradients and nothing of it is published."""
    now = VersionedState("start", published=unit - 1) if start is None else start
    return produce(observe(now, unit, now.structural), unit, f"gradients of {unit}")


def overlapped(late=None):
    """Unit 1 has its urgent rows published and unit 2 observes state."""
    return observe(published(pending(), 1, URGENT), 2, 0, late)


def rows(*numbers, n=6):
    return np.isin(np.arange(n), numbers)


def test_a_barrier_window_publishes_all_before_the_next_unit_observes_state():
    now = VersionedState("start")
    for unit in (1, 2, 3):
        now = pending(unit, now)
        assert now.pending is not None and now.pending.unit == unit
        now = commit(published(now, unit), unit)
        assert now.published == unit and now.slots == (None, None) and now.pending is None
        assert now.state == f"{unit} rest"


def test_the_rest_of_a_publication_may_end_before_or_after_the_next_unit_has_gradients():
    first = produce(commit(published(overlapped(), 1, [REST]), 1), 2, "gradients of 2")
    second = commit(published(produce(overlapped(), 2, "gradients of 2"), 1, [REST]), 1)
    assert first == second
    assert first.published == 1 and first.slot(2).phase == PENDING
    assert commit(published(first, 2), 2).published == 2


def test_the_oldest_pending_unit_is_the_one_under_publication():
    now = overlapped()
    assert now.pending is not None and now.pending.unit == 1
    assert now.slot(2).phase == OBSERVING
    both = produce(now, 2, "gradients of 2")
    assert both.pending is not None and both.pending.unit == 1 and both.pending.staged == "gradients of 1"
    assert both.state == "1 urgent colour"


def test_a_run_resumes_at_any_unit_and_structural_version():
    now = VersionedState("checkpoint", published=700, structural=12)
    now = observe(now, 701, 12)
    assert now.slot(701).phase == OBSERVING
    refused(VersionedState("checkpoint", published=700), "cannot observe", observe, 1, 0)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, pack], ids=["numpy", "jax", "packed"])
def test_no_row_is_late_twice_in_a_row(kind):
    now = overlapped(late=kind(rows(1, 2)))
    now = published(commit(published(produce(now, 2, None), 1, [REST]), 1), 2, URGENT)
    refused(now, "second update", observe, 3, 0, kind(rows(2, 4)))
    again = observe(now, 3, 0, kind(rows(3, 4)))
    assert again.skipped is not None and np.array_equal(again.skipped, kind(rows(3, 4)))
    read_fresh = observe(now, 3, 0)
    after = published(commit(published(produce(read_fresh, 3, None), 2, [REST]), 2), 3, URGENT)
    once_more = observe(after, 4, 0, kind(rows(2)))
    assert once_more.skipped is not None and np.array_equal(once_more.skipped, kind(rows(2)))


def test_a_structural_event_starts_anew():
    now = overlapped(late=rows(1))
    now = commit(published(produce(now, 2, None), 1, [REST]), 1)
    now = commit(published(now, 2), 2)
    now = change_structure(now, "new rows")
    assert (now.state, now.structural, now.published, now.skipped) == ("new rows", 1, 2, None)
    assert observe(now, 3, 1).slot(3).phase == OBSERVING
    refused(now, "structural version 0, not 1", observe, 3, 0)


def refused(now, why, step, *arguments):
    """``step`` raises and leaves ``now`` as it was."""
    before = repr(now)
    with pytest.raises(IllegalTransition, match=why):
        step(now, *arguments)
    assert repr(now) == before


FORBIDDEN = {
    "the first unit is 1": (lambda: VersionedState("start"), "cannot observe", observe, 2, 0),
    "a unit observes once": (lambda: observe(VersionedState("start"), 1, 0), "cannot observe", observe, 1, 0),
    "a published unit is over": (lambda: commit(published(pending(), 1), 1), "cannot observe", observe, 1, 0),
    "no unit is left out": (pending, "cannot observe", observe, 3, 0),
    "one unit observes at a time": (
        lambda: observe(VersionedState("start"), 1, 0),
        "while unit 1 still does",
        observe,
        2,
        0,
    ),
    "two slots": (lambda: produce(overlapped(), 2, None), "unit 1 is not published", observe, 3, 0),
    "two slots until the commit": (
        lambda: published(produce(overlapped(), 2, None), 1, [REST]),
        "unit 1 is not published",
        observe,
        3,
        0,
    ),
    "scopes of another version": (pending, "structural version 1, not 0", observe, 2, 1),
    "late needs a pending unit": (lambda: VersionedState("start"), "no pending", observe, 1, 0, rows(1)),
    "late after the commit": (lambda: commit(published(pending(), 1), 1), "no pending", observe, 2, 0, rows(1)),
    "late after the rest": (lambda: published(pending(), 1), "no pending", observe, 2, 0, rows(1)),
    "gradients of an unknown unit": (lambda: VersionedState("start"), "not in flight", produce, 1, None),
    "gradients of another unit": (overlapped, "not in flight", produce, 3, None),
    "gradients twice": (pending, "already", produce, 1, None),
    "publication of an unknown unit": (lambda: VersionedState("start"), "not in flight", publish, 1, URGENT[0], "new"),
    "publication while observing": (
        lambda: observe(VersionedState("start"), 1, 0),
        "nothing to publish",
        publish,
        1,
        URGENT[0],
        "new",
    ),
    "publication out of turn": (
        lambda: produce(overlapped(), 2, None),
        "before unit 1",
        publish,
        2,
        URGENT[0],
        "new",
    ),
    "colour first": (pending, "cannot follow", publish, 1, URGENT[1], "new"),
    "rest first": (pending, "cannot follow", publish, 1, REST, "new"),
    "rest before colour": (lambda: published(pending(), 1, URGENT[:1]), "cannot follow", publish, 1, REST, "new"),
    "geometry twice": (lambda: published(pending(), 1, URGENT[:1]), "cannot follow", publish, 1, URGENT[0], "new"),
    "rest twice": (lambda: published(pending(), 1), "cannot follow", publish, 1, REST, "new"),
    "an unknown part": (pending, "cannot follow", publish, 1, "all", "new"),
    "commit of nothing": (pending, "published nothing only", commit, 1),
    "commit of a part": (lambda: published(pending(), 1, URGENT), "only", commit, 1),
    "commit while observing": (lambda: observe(VersionedState("start"), 1, 0), "only", commit, 1),
    "commit of an unknown unit": (lambda: VersionedState("start"), "not in flight", commit, 1),
    "commit twice": (lambda: commit(published(pending(), 1), 1), "not in flight", commit, 1),
    "structure while observing": (
        lambda: observe(VersionedState("start"), 1, 0),
        "every unit",
        change_structure,
        "new",
    ),
    "structure while pending": (pending, "every unit", change_structure, "new"),
    "structure before the commit": (lambda: published(pending(), 1), "every unit", change_structure, "new"),
    "structure under overlap": (overlapped, "every unit", change_structure, "new"),
}


@pytest.mark.parametrize("case", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_forbidden_step_raises_and_changes_nothing(case):
    build, why, step, *arguments = case
    refused(build(), why, step, *arguments)


def test_a_value_cannot_be_changed_in_place():
    now = pending()
    with pytest.raises(FrozenInstanceError):
        now.published = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError):
        now.slot(1).phase = OBSERVING  # pyright: ignore[reportAttributeAccessIssue]


def test_arrays_pass_through_untouched():
    arrays = {"means": jnp.zeros((4, 3))}
    staged = (jnp.ones((4, 3)), jnp.ones(4))
    now = produce(observe(VersionedState(arrays), 1, 0), 1, staged)
    assert now.state is arrays and now.slot(1).staged is staged
