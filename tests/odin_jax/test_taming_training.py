"""TamingGS by the command line on two simulated devices: bits of both paths and of a resumed run, rows, bytes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from captures import write_capture
from processes import same_bits, start

from odin_jax import checkpoint
from splat.io.ply import read_ply

STEPS, POINTS, BUDGET = 48, 300, 440
RUN = {
    "--pipeline": "taming", "--iterations": str(STEPS), "--batch": "2", "--devices": "2", "--exchange": "ordered",
    "--checkpoint-every": "25", "--taming.mode": "final_count", "--taming.budget": str(BUDGET),
    "--taming.densify-from": "4", "--taming.densify-every": "8", "--taming.reset-every": "14",
    "--taming.grad-threshold": "1e-7", "--taming.sh-every": "3", "--taming.sh-rest-every": "4",
    "--taming.score-views": "3",
}


def train(capture, out, cache_dir, **changes):
    process = start(capture, out, cache_dir, **RUN, **changes)
    text, _ = process.communicate(timeout=380)
    assert process.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a quality-first run, ``quality``, and a synchronised one, ``sync``, of the same capture."""
    folder = tmp_path_factory.mktemp("taming")
    write_capture(folder / "capture", points=POINTS)
    listing = json.loads((folder / "capture" / "transforms.json").read_text())
    narrow = {**listing, "fl_x": 250.0, "fl_y": 250.0}  # so that each photo shows a part of the points
    (folder / "capture" / "transforms.json").write_text(json.dumps(narrow))
    for path in ("quality", "sync"):
        train(folder / "capture", folder / path, folder / "xla", **{"--path": path})
    return folder


def lines(run, name):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def test_quality_first_has_the_bits_of_synchronised_training(runs):
    assert same_bits(runs / "quality", runs / "sync", STEPS)
    assert lines(runs / "quality", "structure.jsonl") == lines(runs / "sync", "structure.jsonl")
    actions = [window["action"] for window in lines(runs / "quality", "windows.jsonl")]
    assert set(actions) - {"barrier"}, "no window overlapped, the test shows nothing"
    arrays, _ = checkpoint.read(runs / "sync" / "checkpoints", STEPS)
    assert bool(arrays["high_opacity"]) and int(arrays["sh_count"]) >= 5 and np.any(arrays["gaussians.sh_rest"])


def test_rows_follow_the_curve_to_the_budget(runs):
    events = [event for event in lines(runs / "sync", "structure.jsonl") if "densify" in event["events"]]
    assert [event["step"] for event in events] == [8, 16, 24, 32]
    assert [event["rows"] for event in events] == [event["target"] for event in events]
    assert events[-1]["rows"] == events[-1]["budget"] == BUDGET
    assert read_ply(runs / "sync" / "point_cloud.ply").count == BUDGET


def test_colours_travel_only_with_the_units_that_step_them(runs):
    """Bytes for a row: 14 floats without the colours of degrees 1 to 3, 59 with them, none at a densification."""
    for window in lines(runs / "sync", "windows.jsonl"):
        step, active = window["step"], window["active"]
        sent = sum(window["sent_bytes"].values())
        if step in (8, 16, 24, 32, STEPS):
            assert sent == 0
            continue
        wide = 4 * (59 if step % 4 == 0 else 14)
        rows = sent / wide
        assert rows == int(rows) and active <= rows <= active + 511, step


def test_resumed_it_ends_with_the_same_bits(runs, tmp_path):
    parts = tmp_path / "parts"
    shutil.copytree(runs / "quality", parts)
    shutil.rmtree(parts / "checkpoints" / str(STEPS))
    (parts / "record.json").unlink()
    assert "continuing after step 25" in train(runs / "capture", parts, runs / "xla", **{"--path": "quality"})
    assert same_bits(runs / "quality", parts, STEPS)
    assert lines(parts, "structure.jsonl") == lines(runs / "quality", "structure.jsonl")
