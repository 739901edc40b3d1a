"""All interleavings of two slots, three units and four rows keep the rules, and the model finds rules that do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hazard_model
import pytest
from hazard_model import NONE, Model, Row

from odin_jax.versions import OBSERVING, PENDING, REST
from sched.hazards import Action, decide

# Worlds at least; 3,328, 4,861 and 61,029 as measured.
WORLDS = {"sync": 3000, "quality": 4500, "throughput": 60_000}
ACTIONS = {
    "sync": {"barrier"},
    "quality": {"barrier", "proceed", "partial"},
    "throughput": {"barrier", "proceed", "partial", "delayed"},
}


@pytest.mark.parametrize("path", WORLDS)
def test_no_interleaving_breaks_a_rule_or_gets_stuck(path):
    model = Model(path, 4).explore()
    print(f"{path}: {len(model.worlds)} worlds, {sum(map(len, model.nexts))} steps, {dict(model.events)}")
    assert +model.broken == Counter()
    assert model.stuck() == 0

    assert len(model.worlds) == len(model.nexts) >= WORLDS[path]
    assert {action.value for action in Action if model.events[action.value]} == ACTIONS[path]
    phases = {tuple(slot and slot.phase for slot in world.now.slots) for world in model.worlds}
    assert ((OBSERVING, PENDING) in phases) == ((PENDING, PENDING) in phases) == (path != "sync")
    assert (OBSERVING, OBSERVING) not in phases
    late = [row for world in model.worlds for row in world.rows if row.skipped]
    assert bool(late) == (path == "throughput")
    assert max(row.geometry for world in model.worlds for row in world.rows) == (2 if path == "throughput" else 1)


def weaker(**changes):
    """A rule of admission that overlooks some of what it is told."""
    return lambda hazards, **options: decide(replace(hazards, **changes), **options)


FAULTY = {
    "no waiting": ({"patient": False}, {"stale read of a row it reads", "stale read of a row it writes"}),
    "no validation": ({"path": "unvalidated"}, {"stale read of a row it reads", "stale read of a row it writes"}),
    "WAW is overlooked": ({"rule": weaker(waw=0)}, {"stale read of a row it writes"}),
    "RAW is overlooked": ({"rule": weaker(raw=0)}, {"stale read of a row it reads"}),
    "the gate is overlooked": ({"rule": weaker(failing=0)}, {"late against the gate", "late without evidence"}),
    "the share is overlooked": ({"rule": weaker(read_b=1000)}, {"late share above tau"}),
}


@pytest.mark.parametrize("fault", FAULTY.values(), ids=FAULTY.keys())
def test_the_model_finds_a_faulty_rule(fault):
    changes, found = fault
    model = Model(**{"path": "throughput", "n_rows": 2, **changes}).explore()
    assert set(+model.broken) == found


def test_a_second_skipped_update_is_refused_by_the_state_itself():
    model = Model("throughput", 2, rule=weaker(skipped=0)).explore()
    assert +model.broken == Counter()
    assert model.stuck() == 0  # the unit waits for the whole update
    refusal = "unit 3 would skip a second update of a row"
    assert model.events[refusal] and not Model("throughput", 2).explore().events[refusal]


def test_the_model_finds_an_urgent_row_that_is_published_late(monkeypatch):
    monkeypatch.setattr(hazard_model, "readable", readable_late)
    assert set(+Model("quality", 2).explore().broken) == {
        "stale read of a row it writes",
        "stale read of a row it reads",
    }


def readable_late(row: Row, part: str) -> Row:
    """All of the update with the rest, none of it before."""
    if row.older == NONE or part != REST:
        return row
    return row._replace(geometry=row.geometry - 1, colour=row.colour - 1)
