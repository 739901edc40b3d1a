"""Training over real processes: the bits of synchronised training, signals, a killed rank, another count of ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import same_bits, wait_for_checkpoint

from odin_jax import checkpoint
from odin_jax.checkpoint import steps_in

EVENTS = {"--gs3d.densify-from": "10", "--gs3d.densify-every": "10", "--gs3d.reset-every": "45",
          "--gs3d.grad-threshold": "1e-5", "--gs3d.sh-every": "30"}
SHORT = {**EVENTS, "--iterations": "80", "--checkpoint-every": "10", "--exchange": "ordered", "--cap": "200"}
REAL = {"--iterations": "300", "--downscale": "8", "--exchange": "ordered", "--checkpoint-every": "150",
        "--gs3d.densify-from": "60", "--gs3d.densify-every": "60", "--gs3d.reset-every": "140", "--gs3d.sh-every": "70"}


def launch(processes: int, scene: Path, out: Path, **options: str) -> subprocess.Popen[str]:
    """`odin launch … -- train …` as a process."""
    flags = {"--scene": str(scene), "--out": str(out), "--batch": "4", **options}
    argv = [sys.executable, "-m", "odin_jax.cli", "launch", "--processes", str(processes), "--", "train", "--no-lpips",
            "--no-tensorboard", *(part for pair in flags.items() for part in pair)]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ)


def finished(process: subprocess.Popen[str], seconds: float = 600) -> str:
    """What a run printed that must end well."""
    text, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, text
    return text


def of_rank(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    """The process of a rank of a launch."""
    children = psutil.Process(process.pid).children(recursive=True)
    return next(child for child in children if child.environ().get("ODIN_PROCESS_ID") == str(rank))


@pytest.fixture(scope="module")
def whole(capture, tmp_path_factory) -> Path:
    """A run of two processes that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    finished(launch(2, capture, out, **SHORT))
    return out


def test_two_processes_on_a_real_capture_end_with_the_bits_of_synchronised_training(scenes_dir, tmp_path):
    for path in ("sync", "quality"):
        finished(launch(2, scenes_dir / "chia_apartments", tmp_path / path, **REAL, **{"--path": path}))
    assert same_bits(tmp_path / "sync", tmp_path / "quality", 150)
    assert same_bits(tmp_path / "sync", tmp_path / "quality", 300)
    record = json.loads((tmp_path / "quality" / "record.json").read_text())
    assert record["decisions"]["partial: quality-first"] > 100 and record["n_primitives"] != 12913
    assert len(record["processes"]) == 2 and record["mean_urgent"] < 0.7 * record["mean_active"]
    trace = json.loads((tmp_path / "quality" / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}


def test_a_killed_rank_is_named_and_ends_the_others_and_the_same_command_goes_on(capture, whole, tmp_path):
    parts = tmp_path / "parts"
    process = launch(2, capture, parts, **SHORT)
    wait_for_checkpoint(process, parts)
    of_rank(process, 1).send_signal(signal.SIGKILL)
    start = time.monotonic()
    text, _ = process.communicate(timeout=90)
    assert process.returncode != 0 and time.monotonic() - start < 60
    assert "rank 1" in text and "Traceback" not in text
    held = steps_in(parts / "checkpoints")
    assert held and held[-1] < 80
    finished(launch(2, capture, parts, **SHORT))
    assert same_bits(whole, parts, 80)


def test_an_interrupted_launch_stops_all_ranks_after_one_step_and_goes_on(capture, whole, tmp_path):
    parts = tmp_path / "parts"
    process = launch(2, capture, parts, **SHORT)
    wait_for_checkpoint(process, parts)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGINT and "Traceback" not in text, text
    held = steps_in(parts / "checkpoints")
    assert held and held[-1] < 80
    finished(launch(2, capture, parts, **SHORT))
    assert same_bits(whole, parts, 80)


def test_a_checkpoint_of_two_ranks_goes_on_with_one(capture, whole, tmp_path):
    step = steps_in(whole / "checkpoints")[0]
    arrays, _ = checkpoint.read(whole / "checkpoints", step)
    assert arrays["stats.grad_accum"].shape[0] == 2 and arrays["optimizer.mu.means"].any()
    elsewhere = {**SHORT, "--resume": str(whole / "checkpoints" / str(step)), "--checkpoint-every": "1"}
    finished(launch(1, capture, tmp_path / "one", **elsewhere))
    first, two = (checkpoint.read(folder / "checkpoints", 80)[0] for folder in (tmp_path / "one", whole))
    assert first["optimizer.count"] == two["optimizer.count"]
