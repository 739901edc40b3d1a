"""Trains a small random scene on simulated devices, in a process of its own, and prints what came out as JSON.

``python parallel_run.py RANKS CASES``, CASES a JSON list of ``Case`` fields. Four clusters of points lie side by side
and each unit looks at one of them and a bit of the next, so that some windows are disjoint, some share rows and some
are interrupted by structural events.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))

import numpy as np

from odin_jax import hooks, placement, publish
from odin_jax.admission import Admission
from odin_jax.checkpoint import named_leaves
from odin_jax.executor import Programs, Unit
from odin_jax.feed import largest
from odin_jax.fused import Fused
from odin_jax.history import check
from odin_jax.lanes import Lanes
from odin_jax.parallel.mesh import Ranks
from odin_jax.recorder import Recorder
from odin_jax.rooms import PairRooms
from odin_jax.window import Assigned, Runtime
from splat.cameras import Camera
from splat.pipelines.dash import SURVEYED, Dash, DashConfig
from splat.pipelines.gs2d import Gs2d, Gs2dConfig
from splat.pipelines.gs3d import Gs3d, Gs3dConfig
from splat.pipelines.protocol import View
from splat.pipelines.taming import Taming, TamingConfig

SIZE = (48, 32)  # pixels
ROOM = 3000  # tile-row pairs
POINTS, CAP, CLUSTERS, VIEWS = 500, 1000, 4, 16
EXECUTORS = {"lanes": Lanes, "fused": Fused}


@dataclass(frozen=True)
class Case:
    """One run."""

    path: str = "quality"
    pipeline: str = "3dgs"
    optimizer: str = "adam"
    executor: str = "lanes"
    exchange: str = "ordered"
    steps: int = 60
    tau: float = 0.2
    dense: bool = False
    room: int = ROOM
    fault: str = ""  # scope: some rows are missing from every scope; publication: the last piece of a list is not sent


class ShortSighted(Gs3d):
    """3DGS whose scope misses some rows."""

    def reach(self, state, camera, drift):
        seen = super().reach(state, camera, drift)
        return seen & (np.arange(seen.size) % 5 != 0)


PIPELINES = {"3dgs": (Gs3d, Gs3dConfig, {}), "short-sighted": (ShortSighted, Gs3dConfig, {}),
             "2dgs": (Gs2d, Gs2dConfig, {"prune_opacity": 0.005, "normal_from": 15, "distortion_from": 5,
                                         "distortion_weight": 10.0}),
             "taming": (Taming, TamingConfig, {"mode": "final_count", "budget": 700, "densify_until": 50,
                                               "sh_rest_every": 4, "score_views": 3, "grad_threshold": 1e-7}),
             "dash": (Dash, DashConfig, {"max_scale": 2, "densify_from": 4, "densify_every": 8, "densify_until": 30,
                                         "reset_every": 14, "sh_every": 6, "grad_threshold": 1e-7})}


def points(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    cluster = rng.integers(0, CLUSTERS, POINTS)
    where = rng.uniform(-1, 1, (POINTS, 3)) + np.asarray([0, 0, 4])
    where[:, 0] += 2.5 * cluster
    return where, rng.integers(0, 256, (POINTS, 3), dtype=np.uint8)


def survey_of(name: str, config: Any) -> dict[str, Any]:
    """What a pipeline that surveys its photos would find; DashGS: half the size until the first densification."""
    if name == "dash":
        return {"scales": (2.0, 1.0), "energies": (1.0, 4.0), **{key: getattr(config, key) for key in SURVEYED}}
    return {"views": VIEWS}


@functools.cache
def view(seed: int, scale: int = 1) -> View:
    """A smooth random photo of a cluster, its sides divided by ``scale``."""
    rng = np.random.default_rng(seed)
    pose = np.eye(4, dtype=np.float32)
    pose[0, 3] = -2.5 * (seed % CLUSTERS) + rng.uniform(-0.3, 0.3)
    y, x = np.mgrid[: SIZE[1], : SIZE[0]] / 10
    photo = 127 + 120 * np.sin(y[..., None] + x[..., None] * rng.uniform(0.5, 1.5, 3))
    size = (SIZE[0] // scale, SIZE[1] // scale)
    camera = Camera(pose, np.asarray([50, 50, SIZE[0] / 2, SIZE[1] / 2], np.float32) / scale, *size)
    return View(camera, hooks.resampled(photo.astype(np.uint8), *size), None, np.zeros(3, np.float32))


@functools.cache
def programs_of(ranks: Ranks, optimizer: str, exchange: str, name: str) -> Programs:
    """The programs of several cases, compiled once; ``name`` of ``PIPELINES``."""
    kind, config_kind, changes = PIPELINES[name]
    config = config_kind.for_iterations(1000, **{
        "densify_from": 10, "densify_every": 20, "densify_until": 190, "reset_every": 50, "sh_every": 25,
        "position_lr_start": 1e-3, "cap": CAP, "optimizer": optimizer, "batch": max(2, ranks.count), **changes,
    })
    pipeline = kind(config)
    if hasattr(pipeline, "survey"):
        pipeline = pipeline.with_survey(survey_of(name, config))
    return Programs(ranks, pipeline, exchange, placement.kinds(pipeline, pipeline.init(*points(), extent=1.0, seed=0)))


def run(ranks: Ranks, case: Case) -> dict[str, object]:
    """Train and say what came out."""
    slots = max(1, 2 // ranks.count)
    programs = programs_of(ranks, case.optimizer, case.exchange,
                           "short-sighted" if case.fault == "scope" else case.pipeline)
    pipeline = programs.pipeline
    state = pipeline.init(*points(), extent=1.0, seed=0)
    placed = placement.place(ranks, pipeline, state)
    rooms = PairRooms()
    executor, recorder = EXECUTORS[case.executor](programs, rooms), Recorder(len(state.alive))
    runtime = Runtime(programs, executor, Admission(case.path, case.tau), placed, 0, case.dense, recorder=recorder)
    windows = []
    for step in range(1, case.steps + 1):
        photos = [view(seed, hooks.scale_of(pipeline, step)) for seed in range(VIEWS)]
        size = largest(photos)
        if size not in rooms.rooms:
            rooms.open(size, 1)
            rooms.rooms[size] = case.room
        places = np.arange(ranks.count * slots).reshape(ranks.count, slots)
        views = (step + CLUSTERS * places) % VIEWS
        unit = Unit(step, ranks.own([tuple(photos[at] for at in views[rank]) for rank in ranks.local]), size)
        windows.append(runtime.unit(Assigned(unit, views)))
        if pipeline.events(step):
            windows.append(runtime.drain())
            state = placement.one_device(ranks, pipeline, runtime.now.state)
            for event in pipeline.events(step):
                seen = [photos[at] for at in hooks.event_views(pipeline, event, step, state)]
                state = pipeline.apply_event(state, event, step, seen)
            runtime.restructure(placement.place(ranks, pipeline, state))
    windows = [window for window in (*windows, runtime.drain()) if window]
    executor.close()
    state = placement.one_device(ranks, pipeline, runtime.now.state)
    report = check(recorder.events, recorder.n_rows, path=case.path)
    bits = {name: hashlib.sha1(np.asarray(leaf).tobytes()).hexdigest() for name, leaf in named_leaves(state).items()}
    return {
        "bits": bits,
        "actions": Counter(window.decision.action.value for window in windows),
        "violations": list(report.violations[:3]),
        "late_reads": report.late_reads,
        "late_writes": runtime.admission.late_writes,
        "alive": int(np.asarray(state.alive).sum()),
        "structural": runtime.now.structural,
        "sizes": sorted(rooms.rooms),
        "loss": windows[-1].loss,
        "rooms": sorted(rooms.rooms.values()),
        "means": np.asarray(state.gaussians.means)[:8].tolist(),
        "urgent_rows": sum(window.urgent for window in windows),
        "active_rows": sum(window.active for window in windows),
    }


def main(cases: list[Case]) -> list[dict[str, object]]:
    results, whole, ranks = [], publish.pieces, Ranks()
    for case in cases:
        dropping = case.fault == "publication"
        with mock.patch("odin_jax.lanes.pieces", lambda rows, drop=dropping: whole(rows)[:-1] if drop else whole(rows)):
            results.append(run(ranks, case))
    return results


if __name__ == "__main__":
    print(json.dumps(main([Case(**fields) for fields in json.loads(sys.argv[2])])))
