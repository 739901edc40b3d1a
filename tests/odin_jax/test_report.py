"""The report of runs: windows written by the accounting are read back, explained, compared and drawn."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from odin_jax import account, figures
from odin_jax.account import Account
from odin_jax.cli import main
from odin_jax.executor import COMM, COMPUTE, Span, Times
from odin_jax.explain import compare, decisions, read_run
from odin_jax.runs import RunFolder, write_json
from odin_jax.window import Window
from sched.hazards import Action, Decision
from splat.errors import UserError

COMPUTE_S, SCOPE_S, COMM_S, OTHER_S = 0.5, 0.0625, 0.25, 0.125  # seconds; sums of them are exact
ALIVE = 1000
RECORD = {"scene": "made", "batch": 4, "pipeline": "3dgs", "iterations": 12, "n_primitives": ALIVE,
          "samples_per_s": 3.5, "wall_s": 9.0, "cpu_s": 8.0, "peak_rss_mb": 100.0, "psnr": 20.0}


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def time(self):
        return 5000.0 + self.now


def one_window(clock, step, waited, overlapped, last=False):
    """A window whose lanes are busy for known times; the clock ends up behind it."""
    start = clock.now
    computed = start + COMPUTE_S
    spans = [Span(COMPUTE, step, "forward and backward", start, computed),
             Span(COMPUTE, step + 1, "scope", computed, computed + SCOPE_S)]
    sent_at = start if overlapped else computed + SCOPE_S
    spans.append(Span(COMM, step, "rest", sent_at, sent_at + COMM_S))
    clock.now = computed + SCOPE_S + waited + OTHER_S
    decision = Decision(Action.PARTIAL, "quality-first") if overlapped else Decision(Action.BARRIER, "synchronised")
    return Window(
        step=step, loss=0.5, mse=0.1, finite=True, pairs=np.ones((2, 2), np.int32), views=np.zeros((2, 2), int),
        seconds=np.array([COMPUTE_S, COMPUTE_S / 2]), decision=decision, alive=ALIVE, active=500,
        read=0 if last else 250, urgent=100 if overlapped else 500, delayed=0, size=(64, 48), stop=False,
        times=Times(spans, {"rest": waited}, {"rest": 1000 * step}))


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Make a run's folder through the accounting: (name, seconds waited per window, overlapped) → path."""
    clock = Clock()
    monkeypatch.setattr(account, "time", clock)

    def make(name, waited=0.0625, overlapped=True, windows=12, **record):
        folder = tmp_path / name
        folder.mkdir()
        book = Account(RunFolder(folder), 0)
        for step in range(1, windows + 1):
            book.window(one_window(clock, step, waited, overlapped, step == windows))
        summary = book.close(lambda own: [own, {**own, "compute_s": own["compute_s"] / 2}])
        write_json(folder / "record.json", {**RECORD, **summary, **record})
        return folder

    return make


def outcome(capsys, *argv):
    with pytest.raises(SystemExit) as exit_:
        main(["report", *map(str, argv)])
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def change_line(folder, at, **values):
    """Replace fields of one window; None takes a field away."""
    path = folder / "windows.jsonl"
    lines = path.read_text().splitlines()
    window = {**json.loads(lines[at]), **values}
    lines[at] = json.dumps({name: value for name, value in window.items() if value is not None})
    path.write_text("\n".join(lines) + "\n")


def test_every_second_of_a_window_is_accounted_for(make_run):
    windows = read_run(make_run("mine")).windows
    assert list(windows.step) == list(range(1, 13))
    np.testing.assert_allclose(windows.wall, COMPUTE_S + SCOPE_S + 0.0625 + OTHER_S)
    np.testing.assert_allclose(windows.compute["scope"], SCOPE_S)
    np.testing.assert_allclose(windows.exposed, 0.0625)
    np.testing.assert_allclose(windows.residual, OTHER_S)
    np.testing.assert_allclose(windows.hidden, COMM_S - 0.0625)
    np.testing.assert_array_equal(windows.sent["rest"], 1000 * windows.step)
    assert decisions(windows) == [("partial", "quality-first", 12)]


def test_the_record_sums_what_the_windows_say(make_run):
    run = read_run(make_run("mine"))
    record, windows = run.record, run.windows
    assert record["windows"] == len(windows.step)
    assert record["exposed_s"] == pytest.approx(windows.exposed.sum())
    assert record["comm_s"] == pytest.approx({"rest": windows.comm["rest"].sum()})
    assert record["sent_bytes"] == {"rest": windows.sent["rest"].sum()}
    assert record["compute_s"] == pytest.approx(12 * (COMPUTE_S + SCOPE_S))
    wall = windows.wall.sum()
    assert record["processes"][0]["wall_s"] == pytest.approx(wall)
    assert record["processes"][0]["idle_share"] == pytest.approx(1 - record["compute_s"] / wall)
    assert record["processes"][1]["idle_share"] == pytest.approx(1 - record["compute_s"] / 2 / wall)


def test_idle_time_is_split_into_slower_ranks_and_the_rest(make_run):
    windows = read_run(make_run("mine")).windows
    wall = windows.wall.sum()
    np.testing.assert_allclose(windows.skew, [0, 12 * COMPUTE_S / 2 / wall])
    np.testing.assert_allclose(windows.idle - windows.skew, 1 - 12 * COMPUTE_S / wall)


def test_scope_ratios_leave_out_windows_that_no_unit_followed(make_run):
    windows = read_run(make_run("mine")).windows
    np.testing.assert_allclose(windows.geometry, [0.25] * 11 + [np.nan])
    np.testing.assert_allclose(windows.computational, 0.5)


def test_a_run_against_its_synchronised_one(make_run):
    ours, theirs = read_run(make_run("mine", 0.0625)), read_run(make_run("sync", 0.25, False))
    compared = compare(ours, theirs)
    assert compared.hidden_share == pytest.approx(0.75)
    assert compared.speed_up == pytest.approx(theirs.windows.wall.mean() / ours.windows.wall.mean())
    assert ours.windows.samples_per_s(4) / theirs.windows.samples_per_s(4) == pytest.approx(compared.speed_up)
    alike = compare(theirs, theirs)
    assert (alike.hidden_share, alike.speed_up) == (0, 1)


def test_the_first_windows_can_be_left_out(make_run):
    folder = make_run("mine")
    change_line(folder, 0, waits_s={"rest": 60.0}, wall_s=61.0)
    assert read_run(folder).windows.exposed.max() == 60
    kept = read_run(folder, from_step=2).windows
    assert len(kept.step) == 11
    assert kept.exposed.max() == 0.0625


def test_a_continued_run_keeps_the_windows_before_its_checkpoint(make_run, monkeypatch):
    folder = make_run("mine")
    clock = Clock()
    monkeypatch.setattr(account, "time", clock)
    again = Account(RunFolder(folder), 5)
    again.window(one_window(clock, 6, 0.25, True))
    again.close(lambda own: [own])
    windows = read_run(folder).windows
    assert list(windows.step) == [1, 2, 3, 4, 5, 6]
    assert list(windows.exposed) == [0.0625] * 5 + [0.25]


def test_what_is_of_an_earlier_parallel_try_is_not_shown_as_of_steps_on_one_device(make_run, capsys):
    folder = make_run("mine")
    assert outcome(capsys, folder)[0] == 0
    pictures = [folder / "report" / name for name in figures.PICTURES]
    assert all(picture.exists() for picture in pictures) and (folder / "trace.json").exists()
    Account(RunFolder(folder), 12, trains=False).close(lambda own: [own])  # measured again
    assert all(picture.exists() for picture in pictures) and (folder / "trace.json").exists()
    again = Account(RunFolder(folder), 5)  # goes on with one device, which makes no windows
    assert again.close(lambda own: [own]) == {}
    assert not any(picture.exists() for picture in pictures) and not (folder / "trace.json").exists()
    assert list(read_run(folder).windows.step) == [1, 2, 3, 4, 5]
    code, out, err = outcome(capsys, folder)
    assert (code, err) == (0, "")
    assert "5 windows after steps 1 to 5 on 2 ranks" in out
    assert "7 of its 12 steps ran on one device: they have no window" in out
    assert "ran on one device" not in outcome(capsys, make_run("other"))[1]
    Account(RunFolder(folder), 0)  # from the start, on one device
    assert "no windows" in outcome(capsys, folder)[1]


def test_tables_and_pictures(make_run, capsys):
    ours, theirs = make_run("mine"), make_run("sync", 0.25, False)
    code, out, err = outcome(capsys, ours, "--baseline", theirs)
    assert (code, err) == (0, "")
    for text in ("quality-first", "wait: rest", "exposed: all waits", "forward and backward", "geometry",
                 "hidden share 75.0%", "speed-up", "waiting for slower ranks"):
        assert text in out
    for name in figures.PICTURES:
        with Image.open(ours / "report" / name) as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.shape[0] > 300
        assert pixels.std() > 5, f"{name} is blank"
    assert not (theirs / "report").exists()


def test_the_shares_of_decisions_fill_every_column(make_run):
    folder = make_run("mine", windows=200)
    for at in range(0, 200, 3):
        change_line(folder, at, action="delayed", reason="admitted")
    axis = figures.plot_decisions(read_run(folder).windows).axes[0]
    heights = np.array([[bar.get_height() for bar in container] for container in axis.containers])
    np.testing.assert_allclose(heights.sum(axis=0), 1)
    assert heights.shape == (len(Action), figures.BINS)
    assert heights[list(figures.ACTIONS).index("delayed")].mean() == pytest.approx(1 / 3, abs=0.02)


def test_bars_of_the_breakdown_reach_the_wall_time(make_run):
    run = read_run(make_run("mine"))
    axis = figures.plot_waits([run]).axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in axis.patches]
    assert max(tops) == pytest.approx(1e3 * run.windows.wall.mean())


def test_a_run_on_one_device_has_tables_and_says_that_it_has_no_windows(tmp_path, capsys):
    write_json(tmp_path / "record.json", RECORD)
    code, out, err = outcome(capsys, tmp_path)
    assert (code, err) == (0, "")
    assert "20.00" in out
    assert "no windows" in out
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(("values", "part"), [
    ({"wall_s": None}, "line 3: wall_s is missing"),
    ({"seconds": []}, "line 3: seconds"),
    ({"seconds": [0.5]}, "of different numbers of ranks, the run was continued on others; give --from-step 4"),
    ({"waits_s": {"rest": "long"}}, "line 3: waits_s"),
    ({"action": "guess"}, "line 3: action"),
    ({"active": -1}, "line 3: active"),
])
def test_damaged_windows_are_named(make_run, capsys, values, part):
    folder = make_run("mine")
    change_line(folder, 2, **values)
    code, _, err = outcome(capsys, folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "windows.jsonl" in err
    assert part in err


@pytest.mark.parametrize("text", ["", "{\n", "[]\n", '{"step": 1'])
def test_broken_files_are_named(make_run, capsys, text):
    folder = make_run("mine")
    (folder / "windows.jsonl").write_text(text)
    code, _, err = outcome(capsys, folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "windows.jsonl" in err


@pytest.mark.parametrize(("argv", "part"), [
    (["--baseline", "none"], "none/record.json does not exist"),
    (["--from-step", "0"], "--from-step 0: must be at least 1"),
    (["--from-step", "13"], "no window from step 13 on"),
])
def test_wrong_options_are_one_line(make_run, capsys, argv, part):
    code, _, err = outcome(capsys, make_run("mine"), *argv)
    assert (code, err.count("\n")) == (2, 1)
    assert part in err


def test_runs_that_cannot_be_compared_are_refused(make_run, tmp_path):
    ours, theirs = read_run(make_run("mine")), read_run(make_run("sync", 0.25, False))
    with pytest.raises(UserError, match="overlapped 12 of 12 windows"):
        compare(theirs, ours)
    with pytest.raises(UserError, match="batch 4 against 8"):
        compare(ours, read_run(make_run("larger", 0.25, False, batch=8)))
    (tmp_path / "alone").mkdir()
    write_json(tmp_path / "alone" / "record.json", RECORD)
    with pytest.raises(UserError, match=r"alone has no windows\.jsonl"):
        compare(ours, read_run(tmp_path / "alone"))


def test_a_folder_that_cannot_be_written_is_named(make_run, capsys):
    folder = make_run("mine")
    (folder / "report").write_text("taken")
    code, _, err = outcome(capsys, folder)
    assert code == 2
    assert "cannot write" in err


def trace_faults(trace):
    """What Chrome's trace viewer or Perfetto would choke on, and bars of one lane that overlap."""
    faults, named, lanes = [], set(), {}
    if not isinstance(trace.get("traceEvents"), list):
        return ["no traceEvents"]
    for event in trace["traceEvents"]:
        where = (event.get("pid"), event.get("tid"))
        if not (isinstance(event.get("name"), str) and all(type(number) is int for number in where)):
            faults.append(f"name, pid or tid: {event}")
        elif event.get("ph") == "M":
            if event["name"] not in ("process_name", "thread_name") or not isinstance(event["args"]["name"], str):
                faults.append(f"metadata: {event}")
            named.add((event["name"], *where))
        elif event.get("ph") != "X" or not all(0 <= event.get(name, -1) < np.inf for name in ("ts", "dur")):
            faults.append(f"ph, ts or dur: {event}")
        else:
            lanes.setdefault(where, []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for where, bars in lanes.items():
        if not {("process_name", where[0], 0), ("thread_name", *where)} <= named:
            faults.append(f"lane {where} has no name")
        bars.sort()
        faults += [f"{before} overlaps {after}" for before, after in itertools.pairwise(bars)
                   if before[1] > after[0] + 1]  # µs, rounding of large clock values
    return faults


def test_the_timeline_is_a_chrome_trace_with_named_lanes_that_do_not_overlap(make_run):
    trace = json.loads((make_run("mine") / "trace.json").read_text())
    assert trace_faults(trace) == []
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(bars) == 2 * 12 * 3  # processes, windows, spans
    assert {event["cat"] for event in bars} == {"forward and backward", "scope", "rest"}
    assert min(event["ts"] for event in bars) == 0
    longest = max(event["dur"] for event in bars)
    assert longest == pytest.approx(1e6 * COMPUTE_S)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["process 0: rank 0", "compute", "communication", "process 1: rank 1", "compute", "communication"]


@pytest.mark.parametrize("plant", [
    {"ts": -1.0}, {"dur": float("nan")}, {"ph": "B"}, {"tid": None}, {"tid": 7}, {"dur": 1e9}, {"name": 3}])
def test_the_check_of_the_timeline_finds_planted_faults(make_run, plant):
    trace = json.loads((make_run("mine") / "trace.json").read_text())
    first = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    first.update(plant)
    assert trace_faults(trace)
