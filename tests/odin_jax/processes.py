"""Runs of `odin train` as processes of their own, to be killed and compared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from odin_jax import checkpoint
from odin_jax.checkpoint import steps_in

HERE = Path(__file__).parent


def start(capture, out, cache_dir, **options) -> subprocess.Popen[str]:
    """`odin train` in a process of its own."""
    flags = {"--scene": str(capture), "--out": str(out), "--cache-dir": str(cache_dir), **options}
    argv = [
        sys.executable,
        "-c",
        "from odin_jax.cli import main; main()",
        "train",
        "--no-lpips",
        "--no-tensorboard",
        *(part for pair in flags.items() for part in pair),
    ]
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        argv,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_for_checkpoint(process, out, count=1, seconds=120):
    """Return when the run has so many complete checkpoints."""
    end = time.monotonic() + seconds
    while len(steps_in(out / "checkpoints")) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)


def same_bits(one: Path, other: Path, step: int) -> bool:
    """Whether two runs hold the same arrays, bit for bit, after a step."""
    first, second = (checkpoint.read(out / "checkpoints", step)[0] for out in (one, other))
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )
