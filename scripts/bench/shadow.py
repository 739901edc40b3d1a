"""Memory and time that versioned publication costs, against a copy of the model per unit in flight (paper Fig. 16).

``odin bench shadow --run DIR`` goes on with a trained run on simulated devices: synchronised, then quality-first with
several numbers of groups K. Memory is what JAX holds at the moment when a unit computes while the one before is being
published; bytes and times are per rank. The last line printed is one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax.options import parse


@dataclass(frozen=True)
class ShadowConfig:
    """Memory and time that versioned publication costs."""

    run: Path  # run folder with a checkpoint to go on from
    ranks: int = 2  # simulated devices
    batch: int = 4  # views per optimizer step
    regions: tuple[int, ...] = (1, 4, 8)  # numbers of groups K
    steps: int = 8  # optimizer steps of each
    skip: int = 3  # first steps left out: programs are compiled there


def main(argv: list[str]) -> int:
    """Run the benchmark; 0 on success. Raises UserError for a folder without a checkpoint."""
    config = parse(ShadowConfig, argv, "odin bench shadow")
    import jax

    from splat.errors import UserError

    if config.steps <= config.skip or config.ranks < 1 or config.batch % max(config.ranks, 1):
        raise UserError(f"--steps {config.steps} --skip {config.skip} --ranks {config.ranks} --batch {config.batch}: "
                        "steps above skip, at least one rank, a batch that the ranks can share")
    jax.config.update("jax_num_cpu_devices", config.ranks)
    sync = _run(config, "sync", 4)
    state = sync["state_bytes"]
    result: dict[str, Any] = {"rows": sync["rows"], "ranks": config.ranks, "state_bytes": state, "by_regions": {}}
    for regions in config.regions:
        quality = _run(config, "quality", regions)
        extra = quality["live_bytes"] - sync["live_bytes"]
        result["by_regions"][regions] = {
            "extra_bytes": extra, "staged_bytes": quality["staged_bytes"], "extra_share": extra / state,
            "extra_share_beyond_staged": (extra - quality["staged_bytes"]) / state}
        print(f"K {regions}: {extra / 1e6:.2f} MB beyond synchronised ({extra / state:.1%} of the state), "
              f"{quality['staged_bytes'] / 1e6:.2f} MB of them staged rows", flush=True)
    result["replica_bytes"], result["replica_ms"] = state, sync["replica_ms"]
    result["window_ms"] = {"sync": sync["seconds"], "quality": quality["seconds"]}
    print(json.dumps(result))
    return 0


def _run(config: ShadowConfig, path: str, regions: int) -> dict[str, Any]:
    """A few steps of one path: bytes per rank while a unit computes, and what the compute lane spent per window."""
    import jax

    from odin_jax import cache, checkpoint, pipelines, placement, train_config
    from odin_jax.parallel.dp import DataParallel
    from odin_jax.parallel.mesh import Ranks
    from odin_jax.planning import plan_of
    from odin_jax.publish import pieces
    from odin_jax.record import Clock
    from odin_jax.runs import read_json
    from odin_jax.session import scene_of
    from odin_jax.trainer import restored
    from odin_jax.window import Window
    from splat.errors import UserError

    cache.enable(None)
    steps = checkpoint.steps_in(config.run / "checkpoints")
    if not steps:
        raise UserError(f"--run {config.run}: holds no checkpoint; give a folder written with `odin train --out`")
    saved = train_config.from_json(read_json(config.run / "config.json"), config.run / "config.json")
    gs3d = dataclasses.replace(saved.gs3d, batch=config.batch, iterations=10**9, densify_until=1)
    ours = dataclasses.replace(saved, path=path, regions=regions, batch=config.batch, iterations=10**9, gs3d=gs3d)
    pipeline: Any = pipelines.build(ours)
    scene, ranks = scene_of(ours), Ranks()
    position = restored(pipeline, scene, ours.seed, (config.run / "checkpoints", steps[-1]), Clock())
    whole = placement.summed(pipeline, position.state, position.parts)
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(whole))
    start = time.perf_counter()
    jax.block_until_ready(jax.tree.map(jax.numpy.copy, whole))
    replica_ms = (time.perf_counter() - start) * 1e3
    rows, wide = int(whole.alive.sum()), sum(leaf[0].size for leaf in jax.tree.leaves(pipeline.rows(whole).params))
    position.state, position.parts = whole, None
    windows: list[Window] = []
    engine = DataParallel(ours, scene, pipeline, plan_of(ours, scene), ranks, position, windows.append)
    del whole
    position.state = None
    live = []
    for step in range(position.step + 1, position.step + 1 + config.steps):
        engine.start(step, False)
        live.append(sum(array.nbytes // (1 if array.is_fully_replicated else config.ranks)
                        for array in jax.live_arrays() if len(array.sharding.device_set) == config.ranks))
    engine.settle()
    engine.close()
    kept = windows[config.skip :]
    staged = [sum(length for _, length in pieces(window.active - window.urgent)) * wide * 4
              for window in kept if path != "sync"]
    names = sorted({span.name for window in kept for span in window.times.spans})
    lanes = {name: statistics.median(_milliseconds(window, name) for window in kept) for name in names}
    return {"rows": rows, "state_bytes": state_bytes, "live_bytes": int(statistics.median(live[config.skip :])),
            "staged_bytes": int(statistics.median(staged)) if staged else 0, "replica_ms": replica_ms, "seconds": lanes}



def _milliseconds(window: Any, name: str) -> float:
    """Of the bars of one name in a window."""
    return sum(span.end - span.start for span in window.times.spans if span.name == name) * 1e3
