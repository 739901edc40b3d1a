"""DashGS by the command line on two simulated devices: bits of both paths and of a resumed run, rows and scales."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from captures import write_capture
from processes import same_bits, start

from odin_jax import checkpoint

STEPS = 48
RUN = {
    "--pipeline": "dash", "--iterations": str(STEPS), "--batch": "2", "--devices": "2", "--exchange": "ordered",
    "--checkpoint-every": "24", "--dash.max-scale": "2", "--dash.densify-from": "4", "--dash.densify-every": "8",
    "--dash.reset-every": "30", "--dash.grad-threshold": "1e-6", "--dash.sh-every": "999",
    "--dash.growth-limit": "900",
}


def train(capture, out, cache_dir, **changes):
    process = start(capture, out, cache_dir, **RUN, **changes)
    text, _ = process.communicate(timeout=380)
    assert process.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a quality-first run, ``quality``, and a synchronised one, ``sync``, of the same capture."""
    folder = tmp_path_factory.mktemp("dash")
    write_capture(folder / "capture", points=300)
    listing = json.loads((folder / "capture" / "transforms.json").read_text())
    narrow = {**listing, "fl_x": 250.0, "fl_y": 250.0}  # so that each photo shows a part of the points
    (folder / "capture" / "transforms.json").write_text(json.dumps(narrow))
    for path in ("quality", "sync"):
        train(folder / "capture", folder / path, folder / "xla", **{"--path": path})
    return folder


def lines(run):
    return [json.loads(line) for line in (run / "structure.jsonl").read_text().splitlines()]


def test_quality_first_has_the_bits_of_synchronised_training_through_changes_of_resolution(runs):
    assert same_bits(runs / "quality", runs / "sync", STEPS)
    assert lines(runs / "quality") == lines(runs / "sync")
    actions = [json.loads(line)["action"] for line in (runs / "quality" / "windows.jsonl").read_text().splitlines()]
    assert set(actions) - {"barrier"}, "no window overlapped, the test shows nothing"


def test_rows_stay_in_the_budget_and_the_scale_falls_to_one(runs):
    events = lines(runs / "sync")
    assert [event["scale"] for event in events] == sorted((event["scale"] for event in events), reverse=True)
    assert [event["step"] for event in events if "resolution" in event["events"]]
    assert json.loads((runs / "sync" / "survey.json").read_text())["scales"][0] == 2 and events[-1]["scale"] == 1
    assert all(event["rows"] <= event["budget"] for event in events)
    assert events[-1]["rows"] > 300
    arrays, _ = checkpoint.read(runs / "sync" / "checkpoints", STEPS)
    assert int(arrays["first_rows"]) == 300 and int(arrays["momentum"]) >= 1500
    assert np.isfinite(arrays["gaussians.means"]).all()


def test_resumed_it_ends_with_the_same_bits(runs, tmp_path):
    parts = tmp_path / "parts"
    shutil.copytree(runs / "quality", parts)
    shutil.rmtree(parts / "checkpoints" / str(STEPS))
    (parts / "record.json").unlink()
    assert "continuing after step 24" in train(runs / "capture", parts, runs / "xla", **{"--path": "quality"})
    assert same_bits(runs / "quality", parts, STEPS)
    assert lines(parts) == lines(runs / "quality")
    assert (parts / "survey.json").read_bytes() == (runs / "quality" / "survey.json").read_bytes()
