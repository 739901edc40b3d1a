"""The command line: quick to answer, one line for a user's mistake, a traceback for ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from odin_jax import cli
from splat.errors import UserError


def outcome(capsys, *argv):
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_help_lists_every_command_without_importing_jax():
    script = "import sys; from odin_jax.cli import usage; print(usage()); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("train", "eval", "render", "export", "import", "plan", "report", "view", "demo", "bench"):
        assert f"  {name} " in done.stdout


def test_no_arguments_is_help_and_version_is_told(capsys):
    assert outcome(capsys)[0] == 0
    assert outcome(capsys, "--version")[1].startswith("odin ")


def test_a_mistyped_command_or_benchmark_gets_a_suggestion(capsys):
    assert outcome(capsys, "trian") == (2, "", "odin: unknown command 'trian'; did you mean 'train'?\n")
    code, _, err = outcome(capsys, "bench", "rendre")
    assert code == 2
    assert err.startswith("odin: unknown bench 'rendre'")


def test_a_mistyped_option_gets_tyro_s_message(capsys):
    code, out, err = outcome(capsys, "train", "--scene", "x", "--out", "y", "--itterations", "3")
    assert code == 2
    assert "--itterations" in out + err
    assert "--iterations" in out + err


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["train", "--scene", "none", "--out", "y"], "--scene none"),
        (["train", "--scene", "none", "--out", "y", "--batch", "0"], "--batch 0: must be at least 1"),
        (["eval", "none"], "none is not a folder"),
        (["report", "none"], "does not exist"),
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


@pytest.mark.parametrize("command", ["train", "eval", "render", "export", "import", "report", "view", "demo"])
def test_every_command_explains_its_options(capsys, command):
    code, out, _ = outcome(capsys, command, "--help")
    assert code == 0
    assert f"odin {command}" in out
