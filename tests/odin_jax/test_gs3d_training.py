"""The 3DGS pipeline through the command line: a killed run ends with the bits of an uninterrupted one."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest
from processes import same_bits, start, wait_for_checkpoint

from odin_jax import checkpoint
from odin_jax.checkpoint import steps_in
from odin_jax.locality import view_shares
from scripts.report import ReportConfig
from scripts.report import main as report
from splat.io.ply import read_ply
from splat.scene.load import load_scene

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


@pytest.fixture(scope="module")
def whole(capture, cache_dir, tmp_path_factory):
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    process = start(capture, out, cache_dir, **RUN)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return out


def test_killed_and_started_again_it_ends_with_the_same_bits(capture, cache_dir, whole, tmp_path):
    parts = tmp_path / "parts"
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


def test_views_touch_more_rows_than_they_update_and_update_more_than_matter(capture, whole, capsys):
    shares = view_shares(whole, 4)
    scene, rows = load_scene(capture), read_ply(whole / "point_cloud.ply").count
    assert len(shares.names) == 4 and set(shares.names) < {scene.photos[index].name for index in scene.train}
    assert (shares.importance < shares.computation).all() and (shares.computation <= shares.geometry).all()
    assert (shares.geometry <= 1).all() and (shares.importance > 0).all()
    np.testing.assert_allclose(shares.computation * rows, np.round(shares.computation * rows), atol=1e-6)
    report(ReportConfig((whole,), locality=2))
    assert "geometry: may be read" in capsys.readouterr().out
    assert (whole / "report" / "locality.png").read_bytes().startswith(b"\x89PNG")
