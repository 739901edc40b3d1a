"""Run folders: who may write, what is continued, what is refused."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from odin_jax import cache, train_config
from odin_jax.runs import RunFolder, StepLines, differences, keep_lines, read_json, start_point, write_json
from odin_jax.session import summary_line
from odin_jax.train_config import TrainConfig
from splat.errors import UserError

CONFIG = {"scene": "a", "seed": 0, "iterations": 10, "out": "x", "gs3d": {"antialias": False}}


@pytest.fixture
def held(tmp_path):
    """A run folder with a configuration, two complete checkpoints and the rest of a broken third."""
    run = RunFolder(tmp_path / "run")
    for name in ("5", "10", "15.orbax-checkpoint-tmp"):
        (run.checkpoints / name).mkdir(parents=True)
    write_json(run.config, CONFIG)
    return run


def test_a_new_folder_starts_fresh(tmp_path):
    for resume in ("auto", "never"):
        assert start_point(RunFolder(tmp_path), resume, CONFIG) is None


def test_auto_takes_the_newest_complete_checkpoint(held):
    assert start_point(held, "auto", CONFIG) == (held.checkpoints, 10)


def test_another_way_of_watching_is_the_same_run(held):
    assert start_point(held, "auto", {**CONFIG, "log_every": 3, "out": "y"}) is not None


def test_a_run_named_by_the_user_goes_on_with_another_configuration(held):
    assert start_point(held, str(held.path), {**CONFIG, "iterations": 20}) == (held.checkpoints, 10)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"iterations": 20}, {"scene": "b"}, {"gs3d": {"antialias": True}}]
)
def test_another_configuration_is_refused_with_the_field(held, change):
    with pytest.raises(UserError, match=r"another configuration.*" + next(iter(change))):
        start_point(held, "auto", {**CONFIG, **change})


def test_what_the_user_changed_is_named_before_what_follows_from_it(held):
    changes = {"seed": 1, "gs3d": {"antialias": True, "a": 1, "b": 2, "c": 3}}
    with pytest.raises(UserError, match=r"configuration \(seed: 0 → 1"):
        start_point(held, "auto", {**CONFIG, **changes})


def test_a_named_checkpoint_beyond_the_last_iteration_is_refused(held, tmp_path):
    new = RunFolder(tmp_path / "new")
    with pytest.raises(UserError, match=r"--iterations 7: .*10 has gone further already"):
        start_point(new, str(held.path), {**CONFIG, "iterations": 7})
    assert start_point(new, str(held.checkpoints / "5"), {**CONFIG, "iterations": 7}) == (held.checkpoints, 5)


def test_a_start_that_left_no_results_does_not_stand_in_the_way(tmp_path):
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    write_json(run.config, CONFIG)
    write_json(run.path / "cameras.json", [])
    for resume in ("auto", "never"):
        assert start_point(run, resume, {**CONFIG, "seed": 3}) is None


def test_lines_of_an_earlier_try_and_a_torn_one_leave_the_file(tmp_path):
    file = tmp_path / "a.jsonl"
    keep_lines(file, 3)
    assert not file.exists()
    file.write_text('{"step": 1}\n{"step": 3}\n{"step": 4}\n{"step": 2')
    keep_lines(file, 3)
    assert file.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_a_file_of_which_no_line_is_kept_goes(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"step": 4}\n')
    keep_lines(file, 3)
    assert not file.exists()


def test_a_line_that_does_not_fit_the_disk_is_one_mistake_and_leaves_the_file_whole(tmp_path):
    """A limit on the size of files stands for the end of the disk: a part of the line is written, the rest refused."""
    file, before = tmp_path / "a.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    lines = StepLines(file, 0)
    lines.add({"step": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*a\.jsonl \(File too large\); .*same command continues"):
            lines.add({"step": 2, "text": "long"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
    assert file.read_text() == '{"step": 1}\n'
    lines.add({"step": 2})
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_line_in_a_folder_that_is_gone_is_one_mistake(tmp_path):
    lines = StepLines(tmp_path / "gone" / "a.jsonl", 0)
    with pytest.raises(UserError, match=r"cannot write .*a\.jsonl \(No such file"):
        lines.add({"step": 1})


@pytest.mark.parametrize("line", [b'{"step": garbage}', b'{"stp": 2}', b"\xff\xfe}", b"[1]", b'{"step": Infinity}'])
def test_a_damaged_line_is_named_and_the_file_kept(tmp_path, line):
    file, text = tmp_path / "a.jsonl", b'{"step": 1}\n' + line + b'\n{"step": 3}\n'
    file.write_bytes(text)
    with pytest.raises(UserError, match=r"a\.jsonl line 2 names no step"):
        keep_lines(file, 9)
    assert file.read_bytes() == text


def test_never_refuses_results(held):
    with pytest.raises(UserError, match="--resume never"):
        start_point(held, "never", CONFIG)


def test_results_of_something_else_are_refused(tmp_path):
    (tmp_path / "point_cloud.ply").write_text("mine")
    with pytest.raises(UserError, match=r"already holds point_cloud\.ply"):
        start_point(RunFolder(tmp_path), "auto", CONFIG)


def test_a_named_run_or_checkpoint_is_continued_elsewhere_but_not_over_another_run(held, tmp_path):
    new = RunFolder(tmp_path / "new")
    assert start_point(new, str(held.path), CONFIG) == (held.checkpoints, 10)
    assert start_point(new, str(held.checkpoints / "5"), CONFIG) == (held.checkpoints, 5)
    write_json(RunFolder(tmp_path / "other").record, {})
    write_json(RunFolder(tmp_path / "other").config, CONFIG)
    with pytest.raises(UserError, match="another run"):
        start_point(RunFolder(tmp_path / "other"), str(held.path), CONFIG)


def test_a_named_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(UserError, match="no complete checkpoint"):
        start_point(RunFolder(tmp_path / "new"), str(tmp_path), CONFIG)


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.claimed(), pytest.raises(UserError, match="another process"), run.claimed():
        pass
    with run.claimed():
        pass


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot write to --out"),
        RunFolder(tmp_path / "file" / "run").claimed(),
    ):
        pass


def test_nested_differences_are_named():
    assert differences(CONFIG, {**CONFIG, "gs3d": {"antialias": True}}) == ["gs3d.antialias: False → True"]


def test_json_errors_say_file_and_line(tmp_path):
    broken = tmp_path / "config.json"
    broken.write_text('{\n  "a": 1,\n  oops\n}')
    with pytest.raises(UserError, match=r"config\.json is not valid JSON \(line 3\)"):
        read_json(broken)
    with pytest.raises(UserError, match="does not exist"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_json_of_another_kind_is_never_taken_for_a_run(held, text):
    held.config.write_text(text)
    with pytest.raises(UserError, match=r"config\.json holds a JSON .*not a dict"):
        start_point(held, "auto", CONFIG)
    assert held.config.read_text() == text


@pytest.mark.parametrize(
    ("field", "value"),
    [("pipeline", 3), ("downscale", "x"), ("test_every", None), ("images", 5), ("max_points", True), ("alpha", "z"),
     ("gs3d", {"antialias": "x"})],
)
def test_a_value_of_another_kind_in_a_configuration_is_named(field, value):
    values = json.loads(json.dumps(train_config.to_json(TrainConfig(scene=Path("a"), out=Path("b")))))
    assert train_config.from_json(values, Path("config.json")) == TrainConfig(scene=Path("a"), out=Path("b"))
    with pytest.raises(UserError, match=rf"config\.json: the value of {field}.* is of the wrong kind"):
        train_config.from_json({**values, field: value}, Path("config.json"))


@pytest.mark.parametrize("change", [{"wall_s": None}, {"wall_s": "x"}, {"iterations": None}])
def test_a_record_without_costs_is_summed_up_without_them(change):
    entry = {"n_primitives": 5, "iterations": 3, "wall_s": 2.0, "cpu_s": 1.0}
    assert "3 steps in 2 s" in summary_line(entry)
    assert summary_line({**entry, **change}) == "no test views, 5 Gaussians"


def test_a_process_that_has_read_a_colmap_model_is_ended_without_a_dump():
    script = "import os\nfrom splat.scene.colmap import _pycolmap\n_pycolmap()\nos.kill(os.getpid(), 15)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == ""


def test_a_cache_that_cannot_be_written_is_refused_where_it_was_asked_for_and_else_left_out(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--cache-dir .*file/x cannot be written to"):
        cache.enable(tmp_path / "file" / "x")
    before = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file" / "x"))
    try:
        cache.enable(None)
        assert jax.config.jax_compilation_cache_dir is None  # type: ignore[attr-defined]
        assert capsys.readouterr().out.startswith("note: ")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
