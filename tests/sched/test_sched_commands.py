"""The commands on top of the scheduler: what they write and print, on real and synthetic captures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import scripts.bench.aot
import scripts.bench.conflict
import scripts.plan
from odin_jax.cli import main as odin
from odin_jax.planning import training_capture
from sched.errors import PlanError
from sched.plan_file import load_plan
from sched.plots import _figure, save_figure
from sched.synthetic import city_capture
from splat.scene.load import load_scene


def run(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        odin(argv)
    return int(ended.value.code or 0)


def test_plan_of_a_capture_fits_it_and_no_other(scenes_dir, tmp_path, capsys):
    scene = scenes_dir / "brighton_beach"
    argv = [
        "plan",
        "--scene",
        str(scene),
        "--batch",
        "2",
        "--ranks",
        "2",
        "--out",
        str(tmp_path / "plan.json"),
    ]
    assert run([*argv, "--plot", str(tmp_path), "--structural", "densify:5:9:2"]) == 0
    text = capsys.readouterr().out
    for word in ("edges", "groups", "weak coupling", "random order", "densify", "quality"):
        assert word in text
    plan = load_plan(tmp_path / "plan.json")
    plan.check(training_capture(load_scene(scene)))
    plan.check(training_capture(load_scene(scene, downscale=2)))  # a plan holds at every resolution
    with pytest.raises(PlanError, match="make a new plan"):
        plan.check(training_capture(load_scene(scene, test_every=5)))
    assert plan.stats.share < 0.6 * plan.stats.random_share
    for name in ("graph.png", "coupling.png", "timeline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_plan_of_tracks_alone(tmp_path, capsys):
    capture = city_capture(60, 30)
    np.savez(tmp_path / "tracks.npz", view_ptr=capture.view_ptr, point_ids=capture.point_ids)
    out = tmp_path / "plan.json"
    assert run(["plan", "--scene", str(tmp_path / "tracks.npz"), "--batch", "4", "--out", str(out)]) == 0
    load_plan(out).check(capture)
    assert np.isnan(load_plan(out).stats.share)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--batch", "99"], "--batch 99 is larger"),
        (["--ranks", "3"], "shared equally by 3 ranks"),
        (["--hosts", "2"], "--hosts 2"),
        (["--gbps", "0"], "--gbps"),
        (["--structural", "densify:5"], "EVENT:FIRST:LAST:EVERY"),
        (["--structural", "densify:5:9:0"], "EVENT:FIRST:LAST:EVERY"),
        (["--profile", "absent.json"], "absent.json: cannot be read"),
        (["--graph", "geometry"], "needs cameras"),
        (["--out", "/dev/null/plan.json"], "cannot be written"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(tmp_path, capsys, options, says):
    np.savez(tmp_path / "tracks.npz", view_ptr=np.arange(9), point_ids=np.zeros(8, int))
    argv = ["plan", "--scene", str(tmp_path / "tracks.npz"), "--out", str(tmp_path / "p.json"), *options]
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def last_json(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


def test_aot_benchmark_reports_every_size(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    argv = [
        "--images",
        "100",
        "400",
        "--observations",
        "30",
        "--repeats",
        "1",
        "--plot",
        str(tmp_path / "aot.png"),
    ]
    assert scripts.bench.aot.main(argv) == 0
    rows = last_json(capsys.readouterr().out)["rows"]
    assert [(row["images"], row["observations"]) for row in rows] == [(100, 30), (400, 30)]
    assert all(0 < row["seconds"] < 10 and row["peak_rss_mb"] > 10 for row in rows)
    assert (tmp_path / "aot.png").read_bytes().startswith(b"\x89PNG")


def test_synthetic_city_is_what_it_says():
    capture = city_capture(2500, 50)
    lengths = np.bincount(capture.point_ids)
    assert np.diff(capture.view_ptr).mean() == pytest.approx(50, rel=0.05)
    assert lengths[lengths > 0].mean() == pytest.approx(7, rel=0.05)
    assert city_capture(2500, 50).digest() == capture.digest()


@pytest.mark.parametrize(
    ("scene", "batch", "at_most"),
    [("chia_apartments", 2, 0.108), ("chia_apartments", 4, 0.198), ("chia_apartments", 8, 0.477),
     ("sheffield_cross", 4, 0.315), ("sheffield_cross", 16, 0.504), ("snowmiku", 4, 0.85)],
)  # fmt: skip
def test_scheduling_leaves_little_conflict_on_real_captures(scenes_dir, capsys, scene, batch, at_most):
    argv = ["--scene", str(scenes_dir / scene), "--batch", str(batch), "--epochs", "4"]
    assert scripts.bench.conflict.main(argv) == 0
    (row,) = last_json(capsys.readouterr().out)["rows"]
    assert row["scheduled"] <= at_most
    assert row["scheduled"] <= row["greedy"] < row["random"]
    assert max(row["group_sizes"]) - min(row["group_sizes"]) <= batch


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--images", "0"], "all must be at least 1"),
        (["--images", "10", "--repeats", "0"], "all must be at least 1"),
        (["--images", "10", "--batch", "20"], "--batch 20 is larger than --images 10"),
    ],
)
def test_sizes_that_cannot_be_planned_are_refused_before_a_process_is_started(argv, words):
    with pytest.raises(PlanError, match=words):
        scripts.bench.aot.main(argv)


def test_a_plot_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PlanError, match=r"--plot: .*x\.png cannot be written"):
        save_figure(_figure(2, 2)[0], tmp_path / "file" / "x.png")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"hello"])
def test_a_broken_npz_is_one_line(tmp_path, content):
    (tmp_path / "tracks.npz").write_bytes(content)
    with pytest.raises(PlanError, match=r"tracks\.npz: cannot be read as \.npz"):
        scripts.plan.read_capture(tmp_path / "tracks.npz", 8)
