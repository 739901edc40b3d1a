"""Rows that a unit updates for earlier ones: the check of histories, and what the ranks tell of them."""

from __future__ import annotations

import numpy as np
import pytest

from odin_jax.history import check
from odin_jax.recorder import Recorder
from odin_jax.versions import REST, URGENT
from sched.hazards import Action, Decision

N, TAU = 8, 1.0


def mask(*rows):
    return np.isin(np.arange(N), rows)


def history(urgent, late=(), carried=(5,), action=Action.PARTIAL):
    """Unit 1 sees rows 0 and 1 and updates row 5 too; unit 2 reads rows 1 and 5 after the ``urgent`` rows."""
    recorder = Recorder(N)
    recorder.observed(1, 0, mask(0, 1), mask(0, 1))
    recorder.produced(1, mask(0, 1, 5), np.where(mask(0, 1), 1.0, 0.0), mask(*carried) if carried else None)
    recorder.decided(1, 2, Decision(action, "test"), TAU)
    for part in URGENT:
        recorder.published(1, part, mask(*urgent))
    recorder.observed(2, 0, mask(1, 5), mask(1), mask(*late))
    recorder.published(1, REST, mask(0, 1, 5) & ~mask(*urgent))
    recorder.produced(2, mask(1), np.where(mask(1), 1.0, 0.0))
    for part in URGENT:
        recorder.published(2, part, mask())
    recorder.published(2, REST, mask(1))
    return recorder.events


def test_a_carried_row_may_lie_outside_the_scope_and_is_published_like_any_other():
    assert check(history(urgent=(1, 5)), N, path="quality").holds
    assert not check(history(urgent=(1, 5), carried=()), N, path="quality").holds


@pytest.mark.parametrize(("late", "action", "path", "words"), [
    ((), Action.PARTIAL, "quality", "without their pending update"),
    ((5,), Action.DELAYED, "throughput", "without evidence of their update"),
])
def test_a_carried_row_is_never_read_without_its_update(late, action, path, words):
    found = check(history(urgent=(1,), late=late, action=action), N, path=path).violations
    assert any(words in line for line in found)
