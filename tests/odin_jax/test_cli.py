"""The command line: quick to answer, one line for a user's mistake, a traceback for ours."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

import scripts.render
from odin_jax import cli, options, pipelines
from odin_jax.train_config import TrainConfig
from scripts.render import _write_video
from splat.errors import UserError
from splat.io.files import atomic_write


def outcome(capsys, *argv):
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_help_lists_every_command_without_importing_jax():
    script = "import sys; from odin_jax.cli import usage; print(usage()); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("train", "eval", "render", "export", "mesh", "import", "plan", "report", "view", "demo", "bench"):
        assert f"  {name} " in done.stdout


def test_no_arguments_is_help_and_version_is_told(capsys):
    assert outcome(capsys)[0] == 0
    assert outcome(capsys, "--version")[1].startswith("odin ")


def test_a_mistyped_command_or_benchmark_gets_a_suggestion(capsys):
    assert outcome(capsys, "trian") == (2, "", "odin: unknown command 'trian'; did you mean 'train'?\n")
    code, _, err = outcome(capsys, "bench", "rendre")
    assert code == 2
    assert err.startswith("odin: unknown bench 'rendre'")


TRAIN = ["train", "--scene", "x", "--out", "y"]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([*TRAIN, "--itterations", "3"], "unknown option --itterations 3; did you mean --iterations?"),
        ([*TRAIN, "--path", "fast"], "--path fast: unknown; give one of quality, sync, sync-dense, throughput, None"),
        ([*TRAIN, "--ablate", "lp", "foo"], "--ablate foo: unknown; give one of das, dds, hogwild, lp, sas, sds"),
        ([*TRAIN, "--batch", "x"], "--batch x: must be a whole number"),
        ([*TRAIN, "--tau", "x"], "--tau x: must be a number"),
        ([*TRAIN, "--cap", "many"], "--cap many: must be a whole number or None"),
        ([*TRAIN, "--batch"], "--batch: its value is missing"),
        ([*TRAIN, "extra"], "unknown option extra"),
        (["train", "--iterations", "3"], "missing: --scene and --out"),
        (["train", "--out", "y", "--foo"], "missing: --scene; and unknown option --foo"),
        (["export", "x"], "missing: PATH (file)"),
        (["launch", "--", *TRAIN], "missing: --processes"),
    ],
)
def test_a_mistake_in_the_options_is_one_line_with_what_they_take(capsys, argv, line):
    expected = f"odin: {line} (odin {argv[0]} --help explains all options)\n"
    assert outcome(capsys, *argv) == (2, "", expected)


def test_the_message_is_found_in_boxes_that_are_drawn_otherwise(monkeypatch):
    """Coloured, and of ASCII characters; a text of another form is put on one line."""
    plain = "+- Value error ----+\n| Error parsing   |\n| --batch: bad     |\n|\n+------------------+\n"
    assert options.one_line(plain) == "--batch: bad"
    assert options.one_line("\x1b[31m╭─ A ─╮\x1b[0m\n│ one │\n│ two │\n╰─────╯\n") == "one two"


def test_a_benchmark_s_mistakes_are_one_line_too(capsys):
    code, _, err = outcome(capsys, "bench", "overlap", "--scene", "x", "--out", "y", "--hosts", "few")
    assert (code, err) == (2, "odin: --hosts few: must be a whole number (odin bench overlap --help explains all "
                              "options)\n")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["train", "--scene", "none", "--out", "y"], "--scene none"),
        (["train", "--scene", ".", "--out", "y", "--plan", "none"], "--plan none: no such file; write one"),
        (["train", "--scene", "none", "--out", "y", "--batch", "0"], "--batch 0: must be at least 1"),
        (["train", "--scene", "none", "--out", "y", "--seed", "4294967296"], "--seed 4294967296: must be below"),
        (["train", "--scene", "none", "--out", "y", "--pipeline", "4dgs"], "--pipeline 4dgs: unknown; known are 3dgs"),
        (["eval", "none"], "none is not a folder"),
        (["report", "none"], "does not exist"),
        (["report"], "no run is named"),
        (["view", "none", "--port", "99999"], "--port 99999: must be a number from 1 to 65535"),
    ],
)
def test_a_user_s_mistake_is_one_line_on_stderr(capsys, argv, part):
    code, _, err = outcome(capsys, *argv)
    assert code == 2
    assert err.startswith("odin: ")
    assert part in err
    assert err.count("\n") == 1


def test_only_a_user_s_mistake_hides_its_traceback(monkeypatch):
    assert cli.is_users_fault(UserError("x"))
    assert not cli.is_users_fault(ValueError("x"))

    def broken(argv):
        raise ValueError("ours")

    monkeypatch.setattr(cli, "dispatch", broken)
    with pytest.raises(ValueError, match="ours"):
        cli.main([])


@pytest.mark.parametrize("command", ["train", "eval", "render", "export", "mesh", "import", "report", "view", "demo"])
def test_every_command_explains_its_options(capsys, command):
    code, out, _ = outcome(capsys, command, "--help")
    assert code == 0
    assert f"odin {command}" in out


def test_writing_over_a_folder_is_one_line_and_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*taken"), atomic_write(tmp_path / "taken") as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_record_without_numbers_is_named_by_the_report(capsys, tmp_path):
    (tmp_path / "record.json").write_text('{"psnr": "x"}')
    code, _, err = outcome(capsys, "report", str(tmp_path))
    assert code == 2
    assert "record.json: psnr must be a number" in err


@pytest.mark.parametrize("name", [":f", ".a:f", "os:", "none.such:f"])
def test_a_pipeline_that_cannot_be_imported_is_named(tmp_path, name):
    with pytest.raises(UserError, match=f"--pipeline {name}: cannot be imported"):
        pipelines.build(TrainConfig(scene=tmp_path, out=tmp_path, pipeline=name))


@pytest.mark.parametrize("place", ["folder", "file/video.mp4"])
def test_a_video_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="--out"):
        _write_video(tmp_path / place, iter([("0", np.zeros((4, 4, 3), np.uint8))]), 30)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_encoder_that_dies_is_an_error_not_a_silent_end(tmp_path, monkeypatch):
    monkeypatch.setattr(scripts.render, "get_ffmpeg_exe", lambda: shutil.which("false"))
    frames = iter([("0", np.zeros((200, 200, 3), np.uint8))] * 9)
    with pytest.raises(UserError, match="ffmpeg could not write"):
        _write_video(tmp_path / "video.mp4", frames, 30)
    assert not list(tmp_path.iterdir())
