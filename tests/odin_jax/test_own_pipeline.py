"""The example of docs/bring-your-own-pipeline.md: it trains by the command line and by the runtime, exactly.

Run as a script this file is one process with two simulated devices, which prints what its runs did as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from captures import write_capture
from PIL import Image
from processes import start

from examples.own_pipeline import Blobs, OwnPipeline, draw
from odin_jax import history, placement
from odin_jax.admission import Admission
from odin_jax.executor import Programs, Unit
from odin_jax.lanes import Lanes
from odin_jax.parallel.mesh import Ranks
from odin_jax.recorder import Recorder
from odin_jax.rooms import PairRooms
from odin_jax.window import Assigned, Runtime
from splat.cameras import Camera
from splat.io.ply import read_ply
from splat.pipelines.protocol import Pipeline, RowPipeline, View

ROOT = Path(__file__).resolve().parents[2]
ROWS, WIDTH, HEIGHT, VIEWS, STEPS = 43, 24, 16, 6, 48  # rows are no multiple of 8
TAU = 1.0  # of the throughput-first run: so that some rows are read late


def cameras():
    """[VIEWS] cameras in a row, each before a part of a wall of 6 × 2 units; neighbours see some rows in common."""
    def at(x):
        view = np.eye(4, dtype=np.float32)
        view[:3, 3] = -x, 0, 3
        return Camera(view, np.array([60, 60, WIDTH / 2, HEIGHT / 2], np.float32), WIDTH, HEIGHT)

    return [at(index - (VIEWS - 1) / 2) for index in range(VIEWS)]


def fresh(pipeline):
    """The state before the first step: ROWS blobs at random places of the wall."""
    rng = np.random.default_rng(5)
    return pipeline.init(rng.uniform((-3, -1, -0.3), (3, 1, 0.3), (ROWS, 3)),
                         rng.integers(0, 255, (ROWS, 3), np.uint8), 4.0, 0)


class MissesOneRow(OwnPipeline):
    """The planted fault: a scope without one row, which every other camera sees."""

    def __init__(self, row):
        self.row = row

    def reach(self, state, camera, drift):
        return super().reach(state, camera, drift).at[self.row].set(False)


class Track:
    """Runs of a pipeline on two ranks that share compiled programs, each from the same start on the same views."""

    def __init__(self, pipeline):
        self.ranks, self.pipeline = Ranks(), pipeline
        assert self.ranks.count == 2
        self.programs = Programs(self.ranks, pipeline, "ordered", placement.kinds(pipeline, fresh(pipeline)))
        self.photos = np.random.default_rng(6).integers(0, 255, (VIEWS, HEIGHT, WIDTH, 3), np.uint8)

    def run(self, path):
        """What a run on ``path`` did, as JSON values."""
        rooms, recorder, published = PairRooms(), Recorder(ROWS), []
        rooms.open((WIDTH, HEIGHT), ROWS)
        executor = Lanes(self.programs, rooms)
        state = placement.place(self.ranks, self.pipeline, fresh(self.pipeline))
        runtime = Runtime(self.programs, executor, Admission(path, TAU), state, 0,
                          on_published=lambda step, state: published.append(step), recorder=recorder)
        started = [runtime.unit(self.unit(step)) for step in range(1, STEPS + 1)]
        windows = [*started[1:], runtime.drain()]
        executor.close()
        final = placement.one_device(self.ranks, self.pipeline, runtime.now.state)
        bits = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(final))).hexdigest()
        report = history.check(recorder.events, ROWS, path=path)
        return {"bits": bits, "published": published, "violations": report.violations, "late": report.late_reads,
                "loss": [window.loss for window in windows],
                "waited": sum(window.urgent for window in windows), "wrote": sum(window.active for window in windows)}

    def unit(self, step):
        """Two neighbouring cameras, one per rank, a step further along the wall each time."""
        grey, at = np.full(3, 0.5, np.float32), cameras()
        views = np.array([[step % VIEWS], [(step + 1) % VIEWS]])
        parts = [(View(at[view], self.photos[view], None, grey),) for (view,) in views]
        return Assigned(Unit(step, self.ranks.own(parts), (WIDTH, HEIGHT)), views)


def main():
    """On two simulated devices: a run per path, and one with the fault."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    right = Track(OwnPipeline())
    told = {path: right.run(path) for path in ("sync", "quality", "throughput")}
    seen = [np.asarray(right.pipeline.scope(fresh(right.pipeline), camera)[0]) for camera in cameras()]
    fault = MissesOneRow(int(np.argmax(np.sum(seen, axis=0))))
    print(json.dumps({**told, "fault": Track(fault).run("quality"), "row": fault.row}))


@pytest.fixture(scope="module")
def told():
    """What the runs of ``main`` did."""
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run([sys.executable, __file__], env={**os.environ, "PYTHONPATH": paths}, text=True,
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_quality_first_gives_the_bits_of_synchronised_training_and_waits_for_fewer_rows(told):
    assert told["quality"]["bits"] == told["sync"]["bits"]
    assert told["quality"]["loss"] == told["sync"]["loss"]
    assert told["sync"]["waited"] == told["sync"]["wrote"] == told["quality"]["wrote"]
    assert 0 < told["quality"]["waited"] < 0.9 * told["quality"]["wrote"]


def test_the_recorded_history_proves_the_synchronisation(told):
    for path in ("sync", "quality", "throughput"):
        assert told[path]["violations"] == []
    assert told["throughput"]["late"] > 0 == told["quality"]["late"]


def test_every_unit_is_published_once_and_in_order(told):
    for path in ("sync", "quality", "throughput"):
        assert told[path]["published"] == list(range(1, STEPS + 1))


def test_a_scope_that_misses_one_row_changes_the_bits_and_the_checker_names_the_row(told):
    fault = told["fault"]
    assert fault["bits"] != told["sync"]["bits"]
    assert f"uses, outside its read scope, 1 row ({told['row']})" in fault["violations"][0]


def test_whatever_the_step_a_row_that_is_drawn_was_in_the_scope():
    pipeline, rng, n, move = OwnPipeline(), np.random.default_rng(1), 300, np.float32(0.05)
    camera = cameras()[0]
    depth = rng.uniform(-0.1, 3, n)  # from behind the camera, over the near plane; sideways from rim to rim and beyond
    across = rng.uniform(-0.5, 0.5, (n, 2)) * np.abs(depth)[:, None]
    places = np.column_stack([across, depth]) - np.asarray(camera.view)[:3, 3]
    state = pipeline.init(places, np.zeros((n, 3)), 1.0, 0).replace(size=np.full(n, 0.05, np.float32))
    drawn = jax.jit(lambda blobs: draw(blobs, state.size, state.alive, camera, jnp.zeros(3))[1])
    reached = jax.jit(lambda move: pipeline.reach(state, camera, Blobs(jnp.full((n, 3), move), None)))
    ever, colours = np.zeros(n, bool), state.rows.params.colours
    for _ in range(60):
        steps = move * np.sign(rng.normal(size=(n, 3))).astype(np.float32)
        ever |= np.asarray(drawn(Blobs(np.asarray(state.rows.params.places) + steps, colours)))
    reach, still = np.asarray(reached(move)), np.asarray(reached(np.float32(0)))
    assert not (ever & ~reach).any()
    assert (ever & ~still).any()  # rows that come into view only by moving
    assert ever.sum() > 0.6 * reach.sum()  # nor is the scope much wider than it must be


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """Photos that each show a part of the points, so that scopes differ; one training photo is smaller."""
    folder = write_capture(tmp_path_factory.mktemp("own") / "capture", points=ROWS)
    listing = {**json.loads((folder / "transforms.json").read_text()), "fl_x": 300.0, "fl_y": 300.0}
    small = listing["frames"][5]
    with Image.open(folder / small["file_path"]) as photo:
        resized = photo.resize((36, 24))
    resized.save(folder / small["file_path"])
    small.update(w=36, h=24, fl_x=225.0, fl_y=225.0, cx=18, cy=12)
    (folder / "transforms.json").write_text(json.dumps(listing))
    return folder


@pytest.mark.parametrize("devices", [1, 2])
def test_the_command_line_trains_and_measures_it(capture, cache_dir, tmp_path, devices):
    several = {"--devices": "2", "--path": "quality", "--exchange": "ordered"} if devices == 2 else {}
    run = start(capture, tmp_path / "run", cache_dir, **{
        "--pipeline": "examples.own_pipeline:factory", "--iterations": "40", "--batch": "2", **several})
    output, _ = run.communicate(timeout=600)
    assert run.returncode == 0, output
    entry = json.loads((tmp_path / "run" / "record.json").read_text())
    assert entry["pipeline"] == "blobs"
    assert entry["n_primitives"] == read_ply(tmp_path / "run" / "point_cloud.ply").count == ROWS
    assert entry["psnr"] > 8
    if devices == 2:
        windows = [json.loads(line) for line in (tmp_path / "run" / "windows.jsonl").read_text().splitlines()]
        assert sum(window["action"] == "partial" for window in windows) > 20


def test_the_document_names_every_method_and_its_links_and_commands_hold():
    document = (ROOT / "docs" / "bring-your-own-pipeline.md").read_text()
    offered = {name for part in (Pipeline, RowPipeline) for name, value in vars(part).items()
               if callable(value) and not name.startswith("_")}
    assert offered == {name for name in offered if f"`{name}(" in document}
    for link in re.findall(r"\]\(([^)#:]+)\)", document):
        assert (ROOT / "docs" / link).exists(), link
    commands = re.findall(r"odin (\w+) .*?--pipeline (\S+)", document)
    assert commands and set(commands) == {("train", "examples.own_pipeline:factory")}
    code = len([line for line in (ROOT / "examples" / "own_pipeline.py").read_text().splitlines() if line.strip()])
    assert code < 120


if __name__ == "__main__":
    main()
