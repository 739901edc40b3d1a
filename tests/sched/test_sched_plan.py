"""Plans as files, windows, phases and what planning refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from captures_for_sched import capture_of, flight

from sched.build import make_plan
from sched.cluster import Cluster
from sched.errors import PlanError
from sched.phases import NOMINAL, Event, load_profile, phase_graph, save_profile
from sched.plan import PlanOptions
from sched.plan_file import load_plan, save_plan, to_json
from sched.windows import StructuralRule, points_of, unit_coupling


@pytest.fixture(scope="module")
def capture():
    return flight(22)


@pytest.fixture(scope="module")
def plan(capture):
    rules = (StructuralRule("densify", 10, 30, 10),)
    return make_plan(capture, PlanOptions(batch=4, epochs=2, ranks=2), structural=rules)


def test_files_round_trip(tmp_path, plan, capture):
    save_plan(plan, tmp_path / "deep" / "plan.json")
    again = load_plan(tmp_path / "deep" / "plan.json")
    assert to_json(again) == to_json(plan)
    again.check(capture)


def test_plan_repeats_for_runs_longer_than_planned(plan):
    n = len(plan.units)
    assert (plan.unit(n + 3) == plan.unit(3)).all()
    assert len(plan.windows) == n


def test_structural_events_block_their_window(plan):
    assert plan.window(9).reason == "structural"  # after 1-based step 10
    assert plan.window(29).reason == "structural"
    assert not plan.window(39).blocking
    assert not plan.window(10).blocking


def test_other_scenes_are_refused(plan, capture):
    with pytest.raises(PlanError, match="22 training views, this scene has 21"):
        plan.check(capture.take(np.arange(21)))
    with pytest.raises(PlanError, match="training view 0"):
        plan.check(replace(capture, names=("x", *capture.names[1:])))
    moved = capture.point_ids.copy()
    moved[-1] += 1
    with pytest.raises(PlanError, match="differ from those the plan was made for"):
        plan.check(replace(capture, point_ids=moved))


def damaged(text: str, edit) -> str:
    data = json.loads(text)
    edit(data)
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in data.items()) + "\n}"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d.update(version=2), "field version is 2; this program reads 1"),
        (lambda d: d.update(format="other"), "is no plan file"),
        (lambda d: d.pop("labels"), "field labels: is missing"),
        (lambda d: d["labels"].__setitem__(0, 99), "line 9, field labels"),
        (lambda d: d["units"][3].pop(), "field units: entry 3 must list 4 views"),
        (lambda d: d["units"][0].__setitem__(0, d["units"][0][1]), "field units: epoch 0"),
        (lambda d: d["units"].pop(), "field units: has 11 units"),
        (lambda d: d["windows"][2].__setitem__(0, "maybe"), "field windows: entry 2"),
        (lambda d: d["windows"].pop(), "field windows: must have one entry"),
        (lambda d: d["options"].update(batch="4"), "field options"),
        (lambda d: d["options"].pop("seed"), "field options: must have exactly"),
        (lambda d: d["options"].update(batch=-1), "field options: does not hold"),
        (lambda d: d.update(structural=[{"event": "x"}]), "field structural"),
        (lambda d: d.update(units_per_epoch=0), "field units_per_epoch"),
        (lambda d: d.update(region_coupling=[[1, 2]]), "field region_coupling"),
        (lambda d: d.update(digest=7), "field digest"),
        (lambda d: d.update(views="abc"), "field views"),
    ],
)
def test_damaged_files_give_one_line_with_the_field(tmp_path, plan, edit, says):
    path = tmp_path / "plan.json"
    path.write_text(damaged(to_json(plan), edit))
    with pytest.raises(PlanError, match=says) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cut_off_files_name_the_line(tmp_path, plan):
    text = to_json(plan)
    path = tmp_path / "plan.json"
    path.write_text(text[: len(text) // 2])
    with pytest.raises(PlanError, match=r"plan.json, line \d+: is damaged"):
        load_plan(path)
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 23}, "--batch 23 is larger than the 22 training views"),
        ({"batch": 0}, "--batch must be at least 1"),
        ({"regions": 0}, "--regions"),
        ({"top_k": 0}, "--top-k"),
        ({"epochs": 0}, "--epochs"),
        ({"track_cap": 0.0}, "track cap"),
        ({"graph": "magic"}, "--graph 'magic' is unknown"),
        ({"memory_gb": 0.0}, "--memory-gb"),
        ({"cohesion": float("nan")}, "--cohesion"),
        ({"without": ("sos",)}, "--without 'sos' is unknown"),
        ({"ranks": 3}, "cannot be shared equally by 3 ranks"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_bad_options_give_one_line(capture, changes, says):
    with pytest.raises(PlanError, match=says) as caught:
        make_plan(capture, replace(PlanOptions(), **changes))
    assert "\n" not in str(caught.value)


def test_geometry_without_cameras_is_refused():
    with pytest.raises(PlanError, match="needs cameras"):
        make_plan(capture_of([{0}, {0}]), PlanOptions(batch=1, graph="geometry"))


def test_more_groups_than_units_are_said(capture):
    assert any("6 units" in line for line in make_plan(capture, PlanOptions(regions=30)).warnings)


def test_windows_block_for_their_reasons(capture):
    loose = make_plan(capture, PlanOptions(coupling_limit=0.0))
    assert {w.reason for w in loose.windows} <= {"weak coupling", "high coupling"}
    assert all(w.blocking == (w.coupling > 0) for w in loose.windows)
    tight = make_plan(capture, PlanOptions(memory_gb=1e-6))
    assert {w.reason for w in tight.windows} == {"memory"}
    assert all(w.live_bytes > 1e3 for w in tight.windows)
    assert {w.reason for w in make_plan(capture, PlanOptions(without=("sas",))).windows} == {"all blocking"}
    reckless = make_plan(capture, PlanOptions(coupling_limit=0.0, memory_gb=1e-6, without=("hogwild",)))
    assert not any(w.blocking for w in reckless.windows)


def test_coupling_of_units_is_the_heaviest_pair(capture, plan):
    from sched.rlg import track_rlg

    weights = track_rlg(capture).weights.toarray() + np.eye(22)
    following = np.roll(plan.units, -1, axis=0)
    expected = [weights[np.ix_(a, b)].max() for a, b in zip(plan.units, following, strict=True)]
    np.testing.assert_allclose(unit_coupling(track_rlg(capture), plan.units, following), expected)


def test_slower_links_make_longer_windows(capture):
    slow, fast = (
        make_plan(capture, PlanOptions(), cluster=Cluster(2, 1, inter_bytes_per_s=rate))
        for rate in (1e6, 1e9)
    )
    assert sum(w.seconds for w in slow.windows) > sum(w.seconds for w in fast.windows)


@pytest.mark.parametrize("regime", ["dp", "mp"])
@pytest.mark.parametrize("pipeline", ["3dgs", "2dgs", "taming", "dash"])
def test_phase_graphs_order_a_unit_and_let_units_overlap(pipeline, regime):
    graph = phase_graph(pipeline, regime)
    a, b = graph.bind(0), graph.bind(1)
    assert graph.legal([*a, *b])
    launch, validation = points_of(graph, 0)
    assert launch in a and validation in b
    early = [e for e in a if e.phase not in ("exchange", "update", "structural")]
    late = [e for e in a if e not in early]
    assert graph.legal([*early, *b[:3], *late, *b[3:]])
    assert not graph.legal([*a[::-1], *b])
    assert not graph.legal([*a, Event(0, "scope")])


def test_profiles_round_trip_and_are_checked(tmp_path):
    path = tmp_path / "profile.json"
    save_profile(NOMINAL, path)
    assert load_profile(path) == NOMINAL
    good = json.loads(path.read_text())
    for change, says in (
        ({"version": 9}, "field version"),
        ({"format": "x"}, "field format"),
        ({"rows": -1}, "field rows"),
        ({"rows": "many"}, "field rows"),
        ({"phases": []}, "field phases"),
        ({"phases": {"render": {"second": 1}}}, "field phases.render"),
        ({"phases": {"render": {"seconds": -1}}}, "field phases.render.seconds"),
        ({"phases": {"think": {"seconds": 1}}}, "field phases.think"),
        ({"pipeline": "4dgs"}, "pipeline '4dgs'"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(PlanError, match=says):
            load_profile(path)
    path.write_text("{")
    with pytest.raises(PlanError, match="line 1"):
        load_profile(path)


def test_planning_needs_no_jax():
    code = (
        "import odin_jax, sys, numpy as np\n"
        "from sched.build import make_plan\n"
        "from sched.capture import make_capture\n"
        "make_plan(make_capture(np.arange(9), np.zeros(8, int)))\n"
        "sys.exit('jax' in sys.modules or 'matplotlib' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
