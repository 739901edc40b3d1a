"""As ``parallel_run``, with rows and pixels divided over the ranks: ``python mixed_run.py RANKS CASES``."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))

import numpy as np
import parallel_run
from parallel_run import CLUSTERS, VIEWS, points, view

from odin_jax import hooks
from odin_jax.admission import Admission
from odin_jax.checkpoint import named_leaves
from odin_jax.history import check
from odin_jax.mixed import layout
from odin_jax.mixed.cut import Cut, cut, tile_rows
from odin_jax.mixed.lanes import MixedLanes
from odin_jax.mixed.programs import MixedPrograms, MixedUnit
from odin_jax.mixed.units import cut_unit
from odin_jax.parallel.mesh import Ranks
from odin_jax.recorder import Recorder
from odin_jax.rooms import PairRooms
from odin_jax.window import Assigned, Runtime


@dataclass(frozen=True)
class Case(parallel_run.Case):
    """One run; ``parallel`` dp is a run of ``parallel_run`` to compare with."""

    parallel: str = "mp"
    deal: str = "random"  # random, blocks or shifting: who owns which row; shifting changes at every structural event
    slope: float = 0.0  # how unlike the costs of tile rows are taken to be
    places: int = 1  # room for the rows of a strip before any were seen


@functools.cache
def programs_of(ranks: Ranks, optimizer: str, name: str) -> MixedPrograms:
    pipeline = parallel_run.programs_of(ranks, optimizer, "ordered", name).pipeline
    return MixedPrograms(ranks, pipeline, "ordered", pipeline.init(*points(), extent=1.0, seed=0))


def layout_for(case: Case, state: Any, ranks: int, events: int) -> layout.Layout:
    alive = np.asarray(state.alive)
    homes = np.random.default_rng(events if case.deal == "shifting" else 0).permutation(len(alive)) % ranks
    if case.deal == "blocks":
        homes = np.maximum(np.cumsum(alive) - 1, 0) * ranks // alive.sum()
    return layout.layout_of(homes, alive, ranks)


def cut_of(case: Case, height: int, views: int, ranks: int) -> Cut:
    rows = tile_rows(height)
    costs = 1 + case.slope * np.arange(views * rows, dtype=float).reshape(views, rows)
    return cut(costs, height, np.full(ranks, 1 / ranks))


def run(ranks: Ranks, case: Case) -> dict[str, object]:
    """Train and say what came out."""
    if case.parallel == "dp":
        return parallel_run.run(ranks, case)
    programs = programs_of(ranks, case.optimizer, case.pipeline)
    pipeline = programs.pipeline
    state = pipeline.init(*points(), extent=1.0, seed=0)
    programs.divide(layout_for(case, state, ranks.count, 0))
    rooms, windows = PairRooms(), []
    executor, recorder = MixedLanes(programs, rooms), Recorder(len(state.alive))
    placed = layout.place(ranks, state, programs.layout)
    runtime = Runtime(programs, executor, Admission(case.path, case.tau), placed, 0, case.dense, recorder=recorder)
    sent: Counter[str] = Counter()
    slots, events = max(1, 2 // ranks.count), 0
    for step in range(1, case.steps + 1):
        photos = [view(seed, hooks.scale_of(pipeline, step)) for seed in range(VIEWS)]
        views = (step + CLUSTERS * np.arange(ranks.count * slots)) % VIEWS
        chosen = [photos[at] for at in views]
        unit: MixedUnit = cut_unit(ranks, step, chosen, cut_of(case, chosen[0].camera.height, len(views), ranks.count))
        if unit.size not in rooms.rooms:
            rooms.open(unit.size, 1)
            rooms.rooms[unit.size] = case.room
        windows.append(runtime.unit(Assigned(unit, views[None])))
        if pipeline.events(step):
            windows.append(runtime.drain())
            state, events = layout.gather(ranks, runtime.now.state, programs.layout), events + 1
            for event in pipeline.events(step):
                seen = [photos[at] for at in hooks.event_views(pipeline, event, step, state)]
                state = pipeline.apply_event(state, event, step, seen)
            programs.divide(layout_for(case, state, ranks.count, events))
            runtime.restructure(layout.place(ranks, state, programs.layout))
    windows = [window for window in (*windows, runtime.drain()) if window]
    executor.close()
    for window in windows:
        sent.update(window.times.sent)
    state = layout.gather(ranks, runtime.now.state, programs.layout)
    report = check(recorder.events, recorder.n_rows, path=case.path)
    lives = np.asarray(state.alive)
    bits = {name: hashlib.sha1((leaf[lives] if leaf.shape[:1] == lives.shape else leaf).tobytes()).hexdigest()
            for name, leaf in named_leaves(state).items()}
    return {
        "bits": bits,
        "actions": Counter(window.decision.action.value for window in windows),
        "violations": list(report.violations[:3]),
        "late_reads": report.late_reads,
        "alive": int(lives.sum()),
        "structural": runtime.now.structural,
        "sizes": sorted(rooms.rooms),
        "loss": windows[-1].loss,
        "losses": [window.loss for window in windows],
        "rooms": sorted(rooms.rooms.values()),
        "means": np.asarray(state.gaussians.means)[:8].tolist(),
        "sent": sent,
        "urgent_rows": sum(window.urgent for window in windows),
        "active_rows": sum(window.active for window in windows),
    }


if __name__ == "__main__":
    everyone = Ranks()
    print(json.dumps([run(everyone, Case(**fields)) for fields in json.loads(sys.argv[2])]))
