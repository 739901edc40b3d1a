"""Several processes on one host: their output, their end together, signals, and the watch over them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from odin_jax import cli, launch
from odin_jax.launch import LaunchConfig, environments_of, free_port, shares_of_cores, supervise
from odin_jax.parallel.hosts import Hosts, find_hosts
from splat.errors import UserError

LOOP = Path(__file__).parent / "psum_loop.py"
RANK = "import os, sys, time, signal; rank = int(os.environ['ODIN_PROCESS_ID'])\n"


def run(code: str, processes: int = 2, **options) -> int:
    """Supervise so many Pythons that run ``code`` with ``rank`` set."""
    environments = environments_of(LaunchConfig(processes), os.environ, 1)
    return supervise([sys.executable, "-c", RANK + code], environments, **options)


# The supervisor


def test_every_line_says_whose_it_is(capsys):
    code = "print('a', rank); print('b', rank, file=sys.stderr); sys.stdout.write('1%\\r2%\\r3%\\nno newline')"
    assert run(code, 3) == 0
    out, err = capsys.readouterr()
    for rank in range(3):
        mine = [line for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] a {rank}", f"[{rank}] 3%", f"[{rank}] no newline"]
    assert sorted(err.splitlines()) == [f"[{rank}] b {rank}" for rank in range(3)]


def test_each_process_has_its_place_in_the_environment(capsys):
    assert run("import json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('ODIN_')}))") == 0
    told = dict(line.removeprefix("[").split("] ") for line in capsys.readouterr().out.splitlines())
    for rank in range(2):
        hosts = find_hosts(None, None, None, None, json.loads(told[str(rank)]))
        assert hosts == Hosts("127.0.0.1:1", 2, rank, "env")


def test_a_failed_process_ends_the_others_and_is_named(capsys):
    begin = time.monotonic()
    code = "time.sleep(60) if rank != 1 else (print('disk is full', file=sys.stderr), sys.exit(7))"
    assert run(code, 3, reason_s=0.2) == 7
    assert time.monotonic() - begin < 10
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"odin launch: rank 1 \(pid \d+\) failed, exit code 7: disk is full", last)


def test_a_killed_process_is_named_with_its_signal(capsys):
    assert run("time.sleep(60) if rank else os.kill(os.getpid(), signal.SIGKILL)", reason_s=0.2) == 137
    assert re.search(r"rank 0 \(pid \d+\) failed, killed by SIGKILL\n", capsys.readouterr().err)


def test_one_that_does_not_heed_sigterm_is_killed(capsys):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.exit(3) if rank else time.sleep(60)"
    begin = time.monotonic()
    assert run(code, reason_s=0.2, save_s=0.3) == 3
    assert time.monotonic() - begin < 10


def test_the_one_that_another_names_as_the_cause_is_blamed(capsys):
    code = ("line = 'odin: a bug' if rank else 'odin: rank 1 (host h, pid 1) stopped at step 3: a bug'\n"
            "time.sleep(rank); print(line, file=sys.stderr); sys.exit(2)")
    assert run(code) == 2
    assert "launch: rank 1 (pid" in capsys.readouterr().err.splitlines()[-1]


SAVES = """
def save(number, frame):
    print('saving', number)
    time.sleep(0.2 if {heed} else 60)
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save); signal.signal(signal.SIGINT, save)
open('{folder}/%d' % rank, 'w').close()
time.sleep(60)
"""


@contextlib.contextmanager
def signals_once_both_run(folder: Path, numbers: list[int]):
    """Send signals to this process, half a second apart, when both children are ready for them."""
    def send() -> None:
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.02)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.5)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_all_save(tmp_path, capsys, number):
    with signals_once_both_run(tmp_path, [number]), contextlib.suppress(KeyboardInterrupt):
        assert run(SAVES.format(heed=True, folder=tmp_path)) == 128 + number
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == [f"[{rank}] saving {number.value}" for rank in range(2)]
    assert err == ""


def test_one_that_goes_on_after_a_signal_when_another_has_ended_is_ended(tmp_path):
    code = SAVES.format(heed=True, folder=tmp_path).replace("sys.exit(128 + number)", "sys.exit(130) if rank else None")
    begin = time.monotonic()
    with signals_once_both_run(tmp_path, [signal.SIGINT]):
        assert run(code, save_s=0.5) == 130
    assert time.monotonic() - begin < 20


def test_the_second_signal_kills(tmp_path):
    begin = time.monotonic()
    with signals_once_both_run(tmp_path, [signal.SIGINT, signal.SIGINT]):
        assert run(SAVES.format(heed=False, folder=tmp_path)) == 128 + signal.SIGKILL
    assert time.monotonic() - begin < 10


def test_processes_are_pinned_to_cores_of_their_own(capsys):
    cores = sorted(os.sched_getaffinity(0))
    config = LaunchConfig(len(cores), cores_per_process=1)
    shares = shares_of_cores(config, cores)
    assert shares == [{core} for core in cores]
    environments = environments_of(config, os.environ, 1)
    assert {environment["NPROC"] for environment in environments} == {"2"}
    assert supervise([sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], environments, shares) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{i}] {{{core}}}" for i, core in enumerate(cores)]
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LaunchConfig(0), "--processes 0"),
        (LaunchConfig(2, devices_per_process=0), "--devices-per-process 0"),
        (LaunchConfig(3, cores_per_process=2), "6 cores"),
    ],
)
def test_options_that_cannot_work_are_named(config, named):
    with pytest.raises(UserError, match=named):
        environments_of(config, {}, 1)
        shares_of_cores(config, [0, 1, 2, 3])


@pytest.mark.parametrize("command", [["--", "eval", "x"], ["eval", "x"]])
def test_the_command_follows_with_or_without_dashes(monkeypatch, command):
    seen = []
    monkeypatch.setattr("scripts.launch.launch", lambda config, argv: seen.append((config, argv)) or 0)
    assert cli.dispatch(["launch", "--processes", "3", *command]) == 0
    assert seen == [(LaunchConfig(3), ["eval", "x"])]


def test_a_launch_of_nothing_is_a_users_mistake():
    with pytest.raises(UserError, match="which command"):
        cli.dispatch(["launch", "--processes", "2"])


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["launch", "--processes", "2", "--", "train"], "odin launch starts every command but itself"),
        (["train", "--scene", "x", "--out", "y", "--path", "fast"], "--path fast: unknown; give one of quality, "),
        (["train", "--scene", "none", "--out", "y"], "--scene none: no such file or folder"),
        (["train", "--scene", ".", "--out", "y", "--tau", "2"], "--tau 2.0: must lie between 0 and 1"),
    ],
)
def test_a_mistake_in_the_command_is_told_once_and_nothing_is_started(monkeypatch, capsys, command, line):
    monkeypatch.setattr("scripts.launch.launch", lambda config, argv: pytest.fail("started"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["launch", "--processes", "3", "--", *command])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.startswith(f"odin: {line}") and err.count("\n") == 1


def test_equal_last_words_are_shown_once(capsys):
    """Those of several ranks, and of ranks that end because of the one that said them."""
    code = ("line = 'odin: photo 7 is broken'\n"
            "if rank == 2: line = 'odin: rank 1 (host h, pid 1) stopped at step 3: photo 7 is broken'\n"
            "time.sleep(0.2 * rank); print('note', file=sys.stderr); print(line, file=sys.stderr)\n"
            "sys.exit(2)")
    assert run(code, 3) == 2
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines[:-1]) == ["[0] note", "[0] odin: photo 7 is broken", "[1] note", "[2] note"]
    assert re.fullmatch(r"odin launch: rank \d \(pid \d+\) failed, exit code 2", lines[-1])


def test_the_program_itself_is_what_runs(capsys):
    assert launch.launch(LaunchConfig(1), ["nonsense"]) == 2
    assert "[0] odin: unknown command 'nonsense'" in capsys.readouterr().err


# Real processes with real collectives


def supervise_loop(folder: Path, port: int, *arguments: object, cores=None) -> int:
    """Two processes of the loop; their hub must be gone soon after them."""
    environments = environments_of(LaunchConfig(2, devices_per_process=1), os.environ, port)
    root = Path(__file__).resolve().parents[2]
    for environment in environments:
        environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
        environment.pop("NPROC", None)
    code = supervise([sys.executable, str(LOOP), str(folder), *map(str, arguments)], environments, cores)
    end = time.monotonic() + 5
    while hub_is_there(port):
        assert time.monotonic() < end
        time.sleep(0.05)
    return code


def hub_is_there(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_processes_sum_and_end_together_on_one_core_each(tmp_path, capsys):
    cores = sorted(os.sched_getaffinity(0))
    assert supervise_loop(tmp_path, free_port(), 5, 30, cores=[{cores[0]}, {cores[-1]}]) == 0
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == [f"[{rank}] total 1 in 2 processes, 2 threads" for rank in range(2)]
    assert err == ""


def killing(folder: Path, rank: int, number: int) -> threading.Thread:
    """Sends a signal to one rank when both have made a few steps."""
    def kill() -> None:
        while len(pids := sorted(folder.glob("*.pid"))) < 2:
            time.sleep(0.02)
        os.kill(int(pids[rank].read_text()), number)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_ends_the_other_within_seconds_by_one_line(tmp_path, capsys, lost):
    killing(tmp_path, lost, signal.SIGKILL)
    begin = time.monotonic()
    assert supervise_loop(tmp_path, free_port(), 100_000, 30) == 137
    assert time.monotonic() - begin < 60
    told, launcher = capsys.readouterr().err.splitlines()
    pid = (tmp_path / f"{lost}.pid").read_text()
    assert re.match(rf"\[{1 - lost}\] odin: rank {lost} \(host \S+, pid {pid}\) was lost .*same command resumes", told)
    assert launcher == f"odin launch: rank {lost} (pid {pid}) failed, killed by SIGKILL"


def test_an_error_of_the_user_on_one_rank_ends_the_other_by_its_reason(tmp_path, capsys):
    assert supervise_loop(tmp_path, free_port(), 100_000, 30, 1, 6) == 2
    reason, launcher = capsys.readouterr().err.splitlines()
    assert re.match(r"\[[01]\] odin: (rank 1 \(.*\) stopped at about step 6: )?photo 7.png is broken; repl", reason)
    assert re.fullmatch(r"odin launch: rank 1 \(pid \d+\) failed, exit code 2", launcher)
