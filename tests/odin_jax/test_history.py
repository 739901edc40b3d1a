"""The check of recorded histories: silent on right runs, loud on every planted fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import reference_run
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_run import Run, Task

from odin_jax.history import check
from odin_jax.recorder import Decided, Published, Read, Recorder, Structural, Wrote
from odin_jax.versions import REST, URGENT, IllegalTransition
from sched.hazards import Action, Decision, decide
from sched.rowsets import pack

N = 10
TAU = 0.5
VALIDATED = ("sync", "quality", "throughput")
# What a row is to a unit: "." nothing, "r" read, "o" in the write scope without a gradient, "w" and "W" written with a
# weak and a strong gradient, "m" and "M" so although declared read-only.
ROLES = "...rrrrowwwWW"
MISPREDICTED = ROLES + "mmM"
STRENGTH = {"w": 0.1, "m": 0.1, "W": 3.0, "M": 3.0}


def task(roles, **options):
    """The unit in which row p has the role ``roles[p]``."""
    magnitude = np.array([STRENGTH.get(role, 0.0) for role in roles])
    reads, writes = (np.array([role in kind for role in roles]) for kind in ("rowWmM", "owW"))
    return Task(reads, writes, magnitude > 0, magnitude, **options)


def random_task(rng, path):
    exact = path in ("sync", "quality") or rng.random() < 0.5
    roles = rng.choice(list(ROLES if exact else MISPREDICTED), N)
    left, right = [(0, N), (0, N), (0, N // 2), (N // 2, N)][rng.integers(4)]
    unit = task(
        [role if left <= row < right else "." for row, role in enumerate(roles)],
        scoped=path == "unvalidated" or rng.random() < 0.9,
        structural=rng.random() < 0.1,
        blocking="high coupling" if rng.random() < 0.15 else None,
        rest=rng.choice(["before", "during", "after", "after"]),
    )
    evidence = rng.random()
    if evidence < 0.1:
        return replace(unit, magnitude=None)
    if evidence < 0.2:
        return replace(unit, magnitude=np.where(unit.writes, np.nan, np.where(unit.active, 0.1, 0)))
    return unit


def schedules(path):
    """Schedules of up to 8 units: hypothesis picks their lengths and seeds, which numpy turns into units evenly."""
    return st.builds(
        lambda seed, length: [random_task(np.random.default_rng([seed, unit]), path) for unit in range(length)],
        st.integers(0, 2**32 - 1),
        st.integers(1, 8),
    )


def report_of(run):
    return check(run.recorder.events, run.n_rows, path=run.path)


@pytest.mark.parametrize("path", VALIDATED)
def test_random_schedules_hold_and_their_reads_skip_what_they_declare(path):
    seen = Counter()

    @settings(max_examples=200, deadline=None)
    @given(schedules(path), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    def holds(schedule, tau):
        run = Run(N, path, tau).all(schedule)
        report = report_of(run)
        assert report.violations == ()
        assert report.units == len(schedule)
        skipped = np.stack(run.skipped)
        assert skipped.max() <= 1 and np.array_equal(skipped[:, 0], skipped[:, 1])
        assert report.late_reads == skipped[:, 0].sum()
        seen.update(report.actions)
        seen.update(late_reads=report.late_reads, late_writes=report.late_writes)

    holds()
    assert seen["barrier"]
    assert bool(seen["partial"]) == bool(seen["proceed"]) == (path != "sync")
    assert bool(seen["delayed"]) == bool(seen["late_reads"]) == bool(seen["late_writes"]) == (path == "throughput")


def test_a_run_without_validation_breaks_the_rules_exactly_when_a_read_misses_an_update():
    seen = Counter()

    @settings(max_examples=200, deadline=None)
    @given(schedules("unvalidated"))
    def caught(schedule):
        run = Run(N, "unvalidated", TAU).all(schedule)
        stale = bool(np.stack(run.skipped).any())
        assert report_of(run).holds != stale
        seen[stale] += 1

    caught()
    assert seen[True] and seen[False]


@settings(max_examples=200, deadline=None)
@given(schedules("throughput"), st.data())
def test_a_row_lost_from_any_part_is_found(schedule, data):
    run = Run(N, "throughput", TAU).all(schedule)
    parts = [
        at
        for at, event in enumerate(run.recorder.events)
        if isinstance(event, Published) and min(event.rows, default=N) < N
    ]
    if not parts:
        return
    events = list(run.recorder.events)
    at = data.draw(st.sampled_from(parts))
    lost = data.draw(st.sampled_from([row for row in events[at].rows if row < N]))
    rows = np.where(events[at].rows == lost, N, events[at].rows)
    events[at] = replace(events[at], rows=rows)
    assert not check(events, N, path="throughput").holds


def weaker(**changes):
    """A rule of admission that overlooks some of what it is told."""
    return lambda hazards, **options: decide(hazards and replace(hazards, **changes), **options)


# What a faulty runtime replaces, and a word of a violation or refusal that only this fault brings about.
FAULTY = {
    "the gate": ("decide", weaker(failing=0), ("gradient gate", "without evidence")),
    "the share": ("decide", lambda hazards, **options: decide(hazards, **{**options, "tau": 1.0}), ("above tau",)),
    "the skipped rows": ("decide", weaker(skipped=0), ("second update",)),
    "the rows that both write": ("raw", lambda write_a, read_b, write_b: read_b & write_a, ("(WAW)",)),
}


@pytest.mark.parametrize("fault", FAULTY.values(), ids=FAULTY.keys())
def test_a_runtime_that_overlooks_a_rule_is_found(fault, monkeypatch):
    name, faulty, words = fault
    monkeypatch.setattr(reference_run, name, faulty)
    found: set[str] = set()
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        units = [
            task(rng.choice(list("..rrrrmmW"), N)) if seed % 2 else random_task(rng, "throughput") for _ in range(8)
        ]
        run = Run(N, "throughput", TAU)
        try:
            lines = report_of(run.all(units)).violations
        except IllegalTransition as refusal:
            lines = [str(refusal)]
        found.update(word for word in words if any(word in line for line in lines))
        if found == set(words):
            return
    assert found == set(words)


def rows(*numbers):
    return np.isin(np.arange(N), numbers)


def strengths(**values):
    return np.array([values.get(f"r{row}", 0.0) for row in range(N)])


def example(path="throughput", tau=TAU):
    """Unit 2 reads rows 0 and 1 late and waits for row 2, then writes row 1 after all; unit 3 waits for row 1, which
    was late once; unit 4 follows a structural event."""
    schedule = [
        Task(rows(0, 1, 2, 3, 4), rows(0, 1, 2, 3), rows(0, 1, 2, 3), strengths(r0=0.1, r1=0.2, r2=4, r3=4)),
        Task(rows(0, 1, 2, 6, 7), rows(2, 6, 7), rows(1, 2, 6, 7), strengths(r1=0.1, r2=5, r6=5, r7=5)),
        Task(rows(1, 3, 4), rows(3, 4), rows(3), strengths(r3=1)),
        Task(rows(0, 1), rows(0, 1), rows(0), None, structural=True),
    ]
    return Run(N, path, tau).all(schedule)


def edited(events, kind, unit, /, part=None, **changes):
    """The history with one event changed."""
    hits = [at for at, event in enumerate(events) if _is(event, kind, unit, part)]
    assert len(hits) == 1
    return [replace(event, **changes) if at == hits[0] else event for at, event in enumerate(events)]


def moved(events, kind, unit, /, part=None, *, before):
    """The history with one event moved to just before another one."""
    (event,) = [event for event in events if _is(event, kind, unit, part)]
    others = [other for other in events if other is not event]
    (at,) = [at for at, other in enumerate(others) if _is(other, *before)]
    return [*others[:at], event, *others[at:]]


def without(events, kind, unit, /, part=None):
    return [event for event in events if not _is(event, kind, unit, part)]


def _is(event, kind, unit, part=None):
    name = {Decided: "unit_b", Structural: "after_unit"}.get(kind, "unit")
    return type(event) is kind and getattr(event, name) == unit and (part is None or event.part == part)


def test_the_example_holds_and_is_counted():
    run = example()
    report = report_of(run)
    assert report.violations == ()
    assert (report.units, report.row_reads, report.late_reads) == (4, 15, 2)
    assert (report.late_writes, report.mispredicted) == (1, 1)
    assert report.actions == {"delayed": 1, "partial": 1, "barrier": 1}
    reasons = {event.unit_b: event.reason for event in run.recorder.events if isinstance(event, Decided)}
    assert reasons == {2: "waw rows first", 3: "skipped once", 4: "structural"}


FAULTS = {
    "urgent geometry loses a row": (
        lambda e: edited(e, Published, 1, URGENT[0], rows=rows()),
        "unit 2 reads without their pending update (WAW) the geometry of 1 row (2)",
    ),
    "urgent colour loses a row": (
        lambda e: edited(e, Published, 2, URGENT[1], rows=rows()),
        "unit 3 reads without their pending update (RAW) the colour of 1 row (1)",
    ),
    "the rest loses a row": (
        lambda e: edited(e, Published, 1, REST, rows=rows(0, 3)),
        "unit 3 observes state before unit 1 is published",
    ),
    "the last unit is not published": (
        lambda e: without(e, Published, 4, REST),
        "unit 4 is not published at the end",
    ),
    "a row is in two parts": (
        lambda e: edited(e, Published, 1, REST, rows=rows(0, 1, 2, 3)),
        "'rest' of unit 1 publishes again the colour of 1 row (2)",
    ),
    "a row is twice in a list": (
        lambda e: edited(e, Published, 1, REST, rows=np.array([0, 1, 3, 3, N, N])),
        "'rest' of unit 1 holds twice 1 row (3)",
    ),
    "colour before geometry": (
        lambda e: moved(e, Published, 1, URGENT[1], before=(Published, 1, URGENT[0])),
        "'urgent geometry' of unit 1 is published out of order: geometry after 'urgent colour'",
    ),
    "the rest before colour": (
        lambda e: moved(e, Published, 1, REST, before=(Published, 1, URGENT[1])),
        "'urgent colour' of unit 1 is published out of order: colour after 'rest'",
    ),
    "colour within urgent geometry": (
        lambda e: edited(e, Published, 1, URGENT[0], fields=("geometry", "colour")),
        "'urgent geometry' of unit 1 is published out of order: geometry, colour after 'urgent geometry'",
    ),
    "published before it has gradients": (
        lambda e: moved(e, Published, 2, URGENT[0], before=(Wrote, 2)),
        "'urgent geometry' of unit 2 is published before the unit has gradients",
    ),
    "published before the unit before": (
        lambda e: moved(e, Published, 1, REST, before=(Published, 2, URGENT[1])),
        "'urgent geometry' of unit 2 is published before unit 1",
    ),
    "the read scope misses a row that is used": (
        lambda e: edited(e, Read, 2, reads=rows(0, 1, 2, 6)),
        "unit 2 uses, outside its read scope, 1 row (7)",
    ),
    "rows late that the unit writes": (
        lambda e: edited(e, Read, 2, writes=rows(1, 2, 6, 7)),
        "unit 2 reads late, though it declared to write them (WAW), 1 row (1)",
    ),
    "rows late that it does not read": (
        lambda e: edited(e, Read, 2, reads=rows(1, 2, 6, 7)),
        "unit 2 declares late, outside its read scope, 1 row (0)",
    ),
    "stale rows not declared late": (
        lambda e: edited(e, Read, 2, late=rows(0)),
        "unit 2 reads without their pending update (RAW) the geometry of 1 row (1)",
    ),
    "a published row declared late": (
        lambda e: edited(e, Read, 2, late=rows(0, 1, 4), reads=rows(0, 1, 2, 4, 6, 7)),
        "unit 2 declares late, though its update is published, the geometry of 1 row (4)",
    ),
    "late a second time": (
        lambda e: _late_again(e),
        "unit 3 skips a second update of 1 row (1)",
    ),
    "two updates of a row are skipped": (
        lambda e: moved(_late_again(e), Published, 1, REST, before=(Wrote, 3)),
        "unit 3 skips more than one update of the geometry of 1 row (1)",
    ),
    "the late rows change between two reads": (
        lambda e: _by_fields(e, rows(0)),
        "unit 2 changes its late rows between reads",
    ),
    "the gradient gate is ignored": (
        lambda e: edited(e, Wrote, 1, magnitude=strengths(r0=0.1, r1=3, r2=4, r3=4)),
        "unit 2 reads late, against the gradient gate, 1 row (1)",
    ),
    "broken evidence": (
        lambda e: edited(e, Wrote, 1, magnitude=strengths(r0=0.1, r1=np.nan, r2=4, r3=4)),
        "unit 2 reads late, against the gradient gate, 2 rows (0, 1)",
    ),
    "no evidence": (
        lambda e: edited(e, Wrote, 1, magnitude=None),
        "unit 2 reads 2 rows (0, 1) late without evidence of unit 1",
    ),
    "too large a share": (
        lambda e: edited(e, Decided, 2, tau=0.3),
        "unit 2 reads 2 of 5 rows late, above tau 0.3",
    ),
    "late without a decision": (
        lambda e: without(e, Decided, 2),
        "unit 2 reads 2 rows (0, 1) late without a decision to",
    ),
    "late after another decision": (
        lambda e: edited(e, Decided, 2, action=Action.PARTIAL),
        "unit 2 reads 2 rows (0, 1) late without a decision to",
    ),
    "delayed before there is evidence": (
        lambda e: moved(e, Decided, 2, before=(Wrote, 1)),
        "window 1→2 is delayed before unit 1 has produced any evidence",
    ),
    "a decision about other units": (
        lambda e: edited(e, Decided, 3, unit_a=1),
        "window 1→3 is decided out of turn, after unit 2 observed state",
    ),
    "no decision about a window that overlaps": (
        lambda e: without(e, Decided, 3),
        "unit 3 observes state with unit 2 pending and no decision",
    ),
    "a barrier is passed": (
        lambda e: edited(e, Decided, 3, action=Action.BARRIER),
        "unit 3 passes the barrier of unit 2 (skipped once)",
    ),
    "two units observe": (
        lambda e: moved(e, Wrote, 1, before=(Wrote, 2)),
        "unit 2 observes state while unit 1 still does",
    ),
    "a unit is left out": (
        lambda e: without(e, Read, 2),
        "unit 3 observes state after unit 1",
    ),
    "a unit observes twice": (
        lambda e: [*e[:1], *e],
        "unit 1 observes geometry, colour again",
    ),
    "a unit observes geometry alone": (
        lambda e: edited(e, Read, 3, fields=("geometry",)),
        "unit 3 produces gradients without having observed state once",
    ),
    "scopes of an older structure": (
        lambda e: edited(e, Read, 4, structural=0),
        "unit 4 reads structural version 1 with scopes of version 0",
    ),
    "structure changes under a pending unit": (
        lambda e: moved(e, Structural, 3, before=(Published, 3, REST)),
        "structural version 1 is made while unit 3 is in flight",
    ),
    "a structural version is left out": (
        lambda e: edited(e, Structural, 3, version=2),
        "structural version 2 after unit 3 follows 0 after unit 3",
    ),
    "the structural event is not recorded": (
        lambda e: without(e, Structural, 3),
        "unit 4 reads structural version 0 with scopes of version 1",
    ),
}


def _late_again(events):
    events = edited(events, Decided, 3, action=Action.DELAYED)
    events = edited(events, Read, 3, late=rows(1))
    for part in URGENT:
        events = edited(events, Published, 2, part, rows=rows())
    return edited(events, Published, 2, REST, rows=rows(1, 2, 6, 7))


def _by_fields(events, late):
    """Unit 2 takes geometry first, and then colour with other late rows."""
    (read,) = [event for event in events if _is(event, Read, 2)]
    at = events.index(read)
    split = [replace(read, fields=("geometry",)), replace(read, fields=("colour",), late=late)]
    return [*events[:at], *split, *events[at + 1 :]]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_found_and_named(fault):
    spoil, line = fault
    run = example()
    report = check(spoil(run.recorder.events), N, path=run.path)
    assert line in report.violations


def test_the_stricter_paths_admit_nothing_late():
    run = example()
    for path in ("quality", "sync", "unvalidated"):
        lines = check(run.recorder.events, N, path=path).violations
        assert f"unit 2 reads 2 rows (0, 1) late on the {path} path" in lines
    assert (
        "unit 2 updates, outside its write scope, 1 row (1)" in check(run.recorder.events, N, path="quality").violations
    )
    assert "unit 3 passes the barrier of unit 2 (skipped once)" in check(run.recorder.events, N, path="sync").violations


def test_a_conflict_without_validation_is_found():
    report = report_of(example("unvalidated"))
    assert "unit 2 reads without their pending update (WAW) the geometry of 1 row (2)" not in report.violations
    assert "unit 2 reads late, though it declared to write them (WAW), 1 row (2)" in report.violations
    assert "unit 2 reads 3 rows (0, 1, 2) late on the unvalidated path" in report.violations


def overlapped_by_fields(kind, order):
    """Unit 2 takes geometry as soon as that is there, and colour later."""
    told = Recorder(N)
    told.observed(1, 0, kind(rows(0, 1)), kind(rows(0, 1)))
    told.produced(1, kind(rows(0, 1)), jnp.ones(N))
    told.decided(1, 2, Decision(Action.PARTIAL, "quality-first"), TAU)
    steps = {
        "geometry": lambda: told.published(1, URGENT[0], kind(rows(0))),
        "colour": lambda: told.published(1, URGENT[1], kind(rows(0))),
        "read geometry": lambda: told.observed(2, 0, kind(rows(0)), kind(rows(0)), fields=["geometry"]),
        "read colour": lambda: told.observed(2, 0, kind(rows(0)), kind(rows(0)), fields=["colour"]),
    }
    for step in order:
        steps[step]()
    told.produced(2, kind(rows(0)), None)
    told.published(1, REST, kind(rows(1)))
    told.published(2, REST, jnp.array([0, N, N]))
    return check(told.events, N, path="quality").violations


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, pack, jnp.packbits], ids=["numpy", "jax", "words", "bytes"])
def test_geometry_may_be_read_before_colour_is_published(kind):
    assert overlapped_by_fields(kind, ["geometry", "read geometry", "colour", "read colour"]) == ()
    early = overlapped_by_fields(kind, ["geometry", "read geometry", "read colour", "colour"])
    assert early == ("unit 2 reads without their pending update (WAW) the colour of 1 row (0)",)


def test_a_resumed_run_and_a_changed_number_of_rows():
    told = Recorder(4, after_unit=30, structural=7)
    told.observed(31, 7, None, None)
    told.produced(31, np.array([1, 0, 0, 1], bool))
    told.published(31, REST, np.array([0, 3]))
    told.structural(31, 8, n_rows=6)
    told.observed(32, 8, np.ones(6, bool), np.ones(6, bool))
    told.produced(32, np.array([0, 0, 0, 0, 0, 1], bool))
    told.published(32, REST, np.array([5, 6, 6, 6]))
    where = {"after_unit": told.after_unit, "structural": told.version}
    assert check(told.events, told.n_rows, path="quality", **where).violations == ()
    assert check(told.events, told.n_rows, path="quality").violations[0] == "unit 31 observes state after unit 0"


def test_what_was_recorded_does_not_change_with_the_callers_array():
    told = Recorder(4)
    active, sent = np.ones(4, bool), np.arange(4)
    told.observed(1, 0, active, active)
    told.produced(1, active, np.ones(4))
    told.published(1, REST, sent)
    active[:], sent[:] = False, 0
    assert check(told.events, 4, path="quality").violations == ()


def test_wrong_use_of_the_check_raises():
    told = Recorder(4)
    told.observed(1, 0, np.ones(5, bool), None)
    told.produced(1, np.ones(4, bool))
    told.published(1, REST, np.array([-1]))
    with pytest.raises(ValueError, match="path must be"):
        check([], 4, path="fast")
    with pytest.raises(ValueError, match="shape"):
        check([Read(1, 0, np.ones(5, bool))], 4, path="quality")
    with pytest.raises(ValueError, match="negative row"):
        check([Read(1, 0), *told.events[1:]], 4, path="quality")
