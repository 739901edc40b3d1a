"""The 3DGS pipeline through the command line: a killed run ends with the bits of an uninterrupted one."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
from captures import write_capture
from processes import same_bits, start, wait_for_checkpoint

from odin_jax import checkpoint
from odin_jax.checkpoint import steps_in

RUN = {
    "--iterations": "120",
    "--checkpoint-every": "10",
    "--batch": "2",
    "--background": "random",
    "--gs3d.densify-from": "10",
    "--gs3d.densify-every": "10",
    "--gs3d.reset-every": "45",
    "--gs3d.grad-threshold": "1e-5",
    "--gs3d.sh-every": "30",
}


def test_killed_and_started_again_it_ends_with_the_same_bits(tmp_path):
    capture, cache_dir = write_capture(tmp_path / "capture"), tmp_path / "xla"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    process = start(capture, whole, cache_dir, **RUN)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    process = start(capture, parts, cache_dir, **RUN)
    wait_for_checkpoint(process, parts)
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 10 <= steps_in(parts / "checkpoints")[-1] < 120
    process = start(capture, parts, cache_dir, **RUN)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert "continuing after step" in text
    assert same_bits(whole, parts, 120)
    assert (whole / "point_cloud.ply").read_bytes() == (parts / "point_cloud.ply").read_bytes()
    record = json.loads((whole / "record.json").read_text())
    assert record["n_primitives"] > 40, "no structural event took place, the test shows nothing"
    arrays, _ = checkpoint.read(whole / "checkpoints", 120)
    assert int(arrays["structural_version"]) > 5
    assert np.isfinite(arrays["gaussians.means"]).all()
