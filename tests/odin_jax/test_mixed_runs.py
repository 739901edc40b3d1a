"""`odin train --parallel mp`, from options to checkpoints: resuming, other regimes and ranks, processes, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import same_bits
from test_processes import finished, launch

from odin_jax import checkpoint

STEPS = 40
MIXED = {"--iterations": str(STEPS), "--checkpoint-every": "10", "--exchange": "ordered", "--cap": "200",
         "--parallel": "mp", "--gs3d.densify-from": "10", "--gs3d.densify-every": "10",
         "--gs3d.reset-every": "25", "--gs3d.sh-every": "15", "--gs3d.grad-threshold": "1e-5"}


@pytest.fixture(scope="module")
def whole(capture, tmp_path_factory) -> Path:
    """A run on two simulated devices that nothing disturbed."""
    out = tmp_path_factory.mktemp("mixed") / "whole"
    finished(launch(1, capture, out, **MIXED, **{"--devices": "2", "--placement": "access"}))
    return out


def arrays(run: Path, step: int) -> dict:
    return checkpoint.read(run / "checkpoints", step)[0]


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(capture, whole, tmp_path):
    before = {"--resume": str(whole / "checkpoints" / "20"), "--devices": "2"}
    finished(launch(1, capture, tmp_path / "parts", **MIXED, **before, **{"--placement": "access"}))
    assert same_bits(whole, tmp_path / "parts", STEPS)
    record = json.loads((whole / "record.json").read_text())
    assert record["n_primitives"] > 40 and record["sent_bytes"]["attributes"] > 0


def test_data_parallelism_goes_on_from_mixed_and_back(capture, whole, tmp_path):
    data = {**MIXED, "--parallel": "dp", "--devices": "2", "--resume": str(whole / "checkpoints" / "20")}
    finished(launch(1, capture, tmp_path / "dp", **data))
    assert arrays(tmp_path / "dp", STEPS)["optimizer.count"] == arrays(whole, STEPS)["optimizer.count"]
    assert arrays(tmp_path / "dp", 30)["stats.grad_accum"].shape[0] == 2
    back = {**MIXED, "--devices": "2", "--resume": str(tmp_path / "dp" / "checkpoints" / "30")}
    finished(launch(1, capture, tmp_path / "mp", **back))
    assert arrays(tmp_path / "mp", STEPS)["optimizer.count"] == arrays(whole, STEPS)["optimizer.count"]
    losses = [json.loads((run / "windows.jsonl").read_text().splitlines()[-1])["loss"]
              for run in (whole, tmp_path / "dp", tmp_path / "mp")]
    assert max(losses) < 1.1 * min(losses)


def test_four_processes_end_with_the_bits_of_synchronised_training(scenes_dir, tmp_path):
    real = {**MIXED, "--downscale": "16", "--max-points": "4000", "--cap": "5000", "--batch": "2"}
    for path in ("sync", "quality"):
        finished(launch(4, scenes_dir / "chia_apartments", tmp_path / path, **real, **{"--path": path}))
    assert same_bits(tmp_path / "sync", tmp_path / "quality", 20)
    assert same_bits(tmp_path / "sync", tmp_path / "quality", STEPS)
    record = json.loads((tmp_path / "quality" / "record.json").read_text())
    assert len(record["processes"]) == 4 and record["decisions"]["partial: quality-first"] > 5
    assert record["sent_bytes"]["early attributes"] > 0 and record["sent_bytes"]["rest"] > 0


@pytest.mark.parametrize(("options", "line"), [
    ({"--devices": "8", "--batch": "1"}, "1 images of 2 tile rows of 16 pixels cannot be shared by 8 ranks"),
    ({"--devices": "4", "--batch": "2", "--pixels": "images"}, "2 images cannot be shared by 4 ranks"),
    ({"--devices": "4", "--max-points": "3"}, "of 4 has no Gaussian of 3"),
    ({"--devices": "2", "--executor": "fused"}, "--executor fused does not go with --parallel mp"),
])
def test_what_cannot_be_divided_is_refused_in_one_line(capture, tmp_path, options, line):
    process = launch(1, capture, tmp_path / "out", **{**MIXED, "--batch": "4", **options})
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and line in text and "Traceback" not in text, text
