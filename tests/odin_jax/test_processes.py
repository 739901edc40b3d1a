"""Training over real processes: the bits of synchronised training, a killed rank, another count of ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
from captures import write_capture
from processes import same_bits, wait_for_checkpoint

from odin_jax import checkpoint
from odin_jax.checkpoint import steps_in

SHORT = {"--gs3d.densify-from": "10", "--gs3d.densify-every": "10", "--gs3d.reset-every": "45",
         "--gs3d.grad-threshold": "1e-5", "--gs3d.sh-every": "30", "--checkpoint-every": "20", "--exchange": "ordered"}


def launch(processes: int, scene, out, **options: str) -> subprocess.Popen[str]:
    """`odin launch … -- train …` as a process."""
    flags = {"--scene": str(scene), "--out": str(out), "--batch": "4", **options}
    argv = [sys.executable, "-m", "odin_jax.cli", "launch", "--processes", str(processes), "--", "train", "--no-lpips",
            "--no-tensorboard", *(part for pair in flags.items() for part in pair)]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ)


def finished(process: subprocess.Popen[str], seconds: float = 900) -> str:
    text, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, text
    return text


def test_two_processes_on_a_real_capture_end_with_the_bits_of_synchronised_training(scenes_dir, tmp_path):
    for path in ("sync", "quality"):
        finished(launch(2, scenes_dir / "chia_apartments", tmp_path / path, **{
            "--path": path, "--iterations": "300", "--downscale": "8", "--exchange": "ordered",
            "--checkpoint-every": "150"}))
    assert same_bits(tmp_path / "sync", tmp_path / "quality", 150)
    assert same_bits(tmp_path / "sync", tmp_path / "quality", 300)
    record = json.loads((tmp_path / "quality" / "record.json").read_text())
    decided = record["decisions"]
    assert decided["partial: quality-first"] > 100 and record["n_primitives"] != 12913
    assert len(record["processes"]) == 2 and record["mean_urgent"] < 0.7 * record["mean_active"]
    trace = json.loads((tmp_path / "quality" / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}


def test_a_killed_rank_ends_the_others_and_the_run_goes_on_with_any_count_of_ranks(tmp_path):
    capture = write_capture(tmp_path / "capture")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = {**SHORT, "--iterations": "120"}
    finished(launch(2, capture, whole, **options))
    process = launch(2, capture, parts, **options)
    wait_for_checkpoint(process, parts)
    ranks = [child for child in psutil.Process(process.pid).children(recursive=True)
             if child.environ().get("ODIN_PROCESS_ID") == "1"]
    ranks[0].send_signal(signal.SIGKILL)
    start = time.monotonic()
    text, _ = process.communicate(timeout=90)
    assert process.returncode != 0 and time.monotonic() - start < 60
    assert "rank 1" in text and "Traceback" not in text
    held = steps_in(parts / "checkpoints")
    assert held and held[-1] < 120
    finished(launch(2, capture, parts, **options))
    assert same_bits(whole, parts, 120)

    elsewhere = tmp_path / "elsewhere"
    step = steps_in(whole / "checkpoints")[0]
    arrays, _ = checkpoint.read(whole / "checkpoints", step)
    finished(launch(1, capture, elsewhere, **{**options, "--resume": str(whole / "checkpoints" / str(step)),
                                             "--checkpoint-every": "1"}))
    assert steps_in(elsewhere / "checkpoints")[-1] == 120
    assert arrays["stats.grad_accum"].shape[0] == 2 and arrays["optimizer.mu.means"].any()
