"""Time what training does on the devices there are: forward, backward, optimizer step and window, against a roofline.

``odin bench gpu`` needs neither internet nor captures; with ``--scene FILE.npz`` it also trains it and measures PSNR.
A time is that of many calls which wait in the device's queue, divided by their number: launches hide behind the calls
before them, so it is the device's own. Inputs rotate; medians over rounds are reported. The last line is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax.options import parse
from splat.errors import UserError


@dataclass(frozen=True)
class GpuBench:
    """What to time."""

    rows: tuple[int, ...] = (100_000, 500_000, 1_000_000, 2_000_000, 4_000_000)  # primitives
    sizes: tuple[str, ...] = ("960x540", "1600x1064")  # of images, pixels
    views: int = 2  # of each device in a window
    inputs: int = 3  # scenes and cameras that take turns
    rounds: int = 7  # of each measurement; every input once per round
    active: float = 0.6  # share of the rows that a unit has a gradient in
    urgent: float = 0.3  # share of these that the next unit reads
    scene: Path | None = None  # capture to train, .npz or a folder; None: none
    iterations: int = 7000  # optimizer steps of that training
    out: Path | None = None  # folder of that training; None: a temporary one


def main(argv: list[str]) -> int:
    """Print a table and, as the last line, JSON. Raises UserError for options that cannot work."""
    config = parse(GpuBench, argv, "odin bench gpu")
    sizes = [_size(text) for text in config.sizes]
    if min(config.rows, default=0) < 64 or min(config.views, config.inputs, config.rounds) < 1:
        raise UserError("--rows must be at least 64, --views, --inputs and --rounds at least 1")
    if not (0 < config.active < 1 and 0 < config.urgent < 1):
        raise UserError(f"--active {config.active} --urgent {config.urgent}: must be between 0 and 1")
    import jax
    from rich.console import Console

    from odin_jax import cache
    from odin_jax.gpu.roofline import described_as

    cache.enable(None)
    kind = jax.devices()[0].device_kind
    results = [_measured(config, rows, *size) for size in sizes for rows in config.rows]
    trained = _trained(config) if config.scene else None
    Console().print(_table(results, kind, described_as(kind)))
    if trained:
        print(f"{config.scene}: {trained['views_per_s']:.1f} views/s, PSNR {trained['psnr']:.2f} dB")
    print(json.dumps({"device": kind, "devices": jax.device_count(), "results": results, "training": trained}))
    return 0


def _size(text: str) -> tuple[int, int]:
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UserError(f"--sizes {text}: give WIDTHxHEIGHT in pixels, e.g. 960x540")
    return int(parts[0]), int(parts[1])


def _measured(config: GpuBench, rows: int, width: int, height: int) -> dict[str, Any]:
    """Milliseconds of each pass for one number of rows and one size of image, and the work of each."""
    import jax
    import jax.numpy as jnp

    from odin_jax.gpu import roofline
    from splat.pipelines.gs3d import Gs3d, Gs3dConfig
    from splat.render import pair_bucket

    pipeline = Gs3d(Gs3dConfig(batch=config.views * jax.device_count()))
    states = [_state(pipeline, rows, seed) for seed in range(config.inputs)]
    views = [_view(width, height, seed) for seed in range(config.inputs * config.views)]
    pairs = max(int(pipeline.scope(state, view.camera)[1]) for state in states for view in views[: config.inputs])
    room, step = pair_bucket(int(pairs * 1.1)), jnp.int32(2)
    options = pipeline.options(room)

    def drawn(state: Any, view: Any) -> Any:
        from splat.render import render

        return render(state.gaussians, view.camera, alive=state.alive, options=options).image

    both = jax.jit(lambda state, view: pipeline.loss_and_grad(state, (view,), step, room))
    turns = list(zip(states, views, strict=False))
    grads, evidence = both(*turns[0])
    if bool(evidence.overflow):
        raise RuntimeError(f"{pairs} pairs do not fit {room} slots")
    update = jax.jit(lambda state, grads: pipeline.update(state, grads, evidence, step))
    seconds = {
        "forward": _median(config, jax.jit(drawn), turns),
        "forward_backward": _median(config, both, turns),
        "update": _median(config, update, [(state, grads) for state in states]),
    }
    del grads, turns, states[1:]
    seconds["window"] = _window(config, pipeline, states.pop(), views, room)
    ahead, back = (count(rows, pairs, width * height) for count in (roofline.forward, roofline.backward))
    work = {"forward": ahead, "forward_backward": ahead + back, "update": roofline.update(rows)}
    return {"rows": rows, "width": width, "height": height, "pairs": pairs,
            "ms": {name: round(value * 1e3, 3) for name, value in seconds.items()},
            "bytes": {name: each.bytes for name, each in work.items()},
            "flops": {name: each.flops for name, each in work.items()}}


def _state(pipeline: Any, rows: int, seed: int) -> Any:
    """Rows that fill a cube in front of the cameras; their size falls as they become more, as in a capture."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from splat.gaussians import Gaussians
    from splat.pipelines import state as states

    rng = np.random.default_rng(seed)
    spacing = 2 / rows ** (1 / 3)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((rows, *shape), np.float32)

    fields: dict[str, Any] = {
        "means": rng.uniform(-1, 1, (rows, 3)).astype(np.float32) + np.asarray([0, 0, 3], np.float32),
        "log_scales": np.float32(np.log(0.4 * spacing)) + np.float32(0.5) * normal(3), "quats": normal(4),
        "opacity_logits": np.float32(1.5) * normal(), "sh_dc": normal(3), "sh_rest": np.float32(0.1) * normal(15, 3)}
    capacity = -(-rows // 8) * 8
    return states.start(jax.tree.map(jnp.asarray, Gaussians(**fields)), capacity, pipeline._optimizer, 1.0, seed)


def _view(width: int, height: int, seed: int) -> Any:
    import jax
    import numpy as np

    from splat.cameras import Camera
    from splat.pipelines.protocol import View

    rng = np.random.default_rng([seed, 1])
    pose = np.eye(4, dtype=np.float32)
    pose[:3, 3] = rng.uniform(-0.2, 0.2, 3)
    intrinsics = np.asarray([width, width, width / 2, height / 2], np.float32)
    photo = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    arrays: Any = (pose, intrinsics, photo, np.zeros(3, np.float32))
    return jax.device_put(View(Camera(arrays[0], arrays[1], width, height), arrays[2], None, arrays[3]))


def _median(config: GpuBench, function: Callable[..., Any], turns: list[tuple[Any, ...]]) -> float:
    """Seconds per call."""
    import jax

    for args in turns:
        jax.block_until_ready(function(*args))
    times = []
    for _ in range(config.rounds):
        start = time.perf_counter()
        last = None  # one result at a time: memory is that of a training
        for args in turns:
            last = function(*args)
        jax.block_until_ready(last)
        times.append((time.perf_counter() - start) / len(turns))
    return statistics.median(times)


def _window(config: GpuBench, pipeline: Any, start: Any, views: list[Any], room: int) -> float:
    """Seconds per window of all devices: publication of one unit beside forward and backward of the next.

    The state ``start`` is used up.
    """
    import jax
    import numpy as np

    from odin_jax import placement
    from odin_jax.executor import Programs, scalar
    from odin_jax.fused import GRAIN, Fused
    from odin_jax.parallel.mesh import Ranks
    from odin_jax.publish import room_for
    from odin_jax.rooms import PairRooms

    ranks, rng = Ranks(), np.random.default_rng(0)
    state, rows = placement.place(ranks, pipeline, start), len(start.alive)
    programs = Programs(ranks, pipeline, "psum", placement.kinds(pipeline, start))
    executor, fields = Fused(programs, PairRooms()), programs.fields(2)
    active = rng.random(rows) < config.active
    urgent = active & (rng.random(rows) < config.urgent)
    first, rest = (room_for(int(mask.sum()), rows, GRAIN) for mask in (urgent, active & ~urgent))
    window = executor._window(room, first, rest, fields)
    words = [ranks.same(np.packbits(mask)) for mask in (active, np.ones(rows, bool), urgent)]

    def units() -> Iterator[Any]:
        for turn in range(config.inputs):
            chosen = [jax.device_get(views[(turn * config.views + slot) % len(views)]) for slot in range(config.views)]
            yield ranks.own([tuple(chosen)] * len(ranks.local))

    turns = list(units())
    produced = executor._alone(room)(state, turns[0], scalar(1))
    inputs = programs.inputs()(state, scalar(2))
    times = []
    for _ in range(config.rounds + 1):
        jax.block_until_ready((state, produced))
        start = time.perf_counter()
        for unit in turns:
            state, produced, _late = window(state, produced.grads, *words, inputs, unit, scalar(2))
        jax.block_until_ready((state, produced))
        times.append((time.perf_counter() - start) / len(turns))
    return statistics.median(times[1:])  # the first round compiles


def _trained(config: GpuBench) -> dict[str, float]:
    """Throughput and quality of a training of the scene."""
    from odin_jax.record import Clock
    from odin_jax.runs import read_json
    from odin_jax.session import train
    from odin_jax.train_config import TrainConfig

    with tempfile.TemporaryDirectory() as temporary:
        out = config.out or Path(temporary)
        run = TrainConfig(scene=config.scene or Path(), out=out, iterations=config.iterations, lpips=False)
        started = time.perf_counter()
        if train(dataclasses.replace(run, tensorboard=False), Clock.of_process()):
            raise UserError(f"the training of {config.scene} was interrupted")
        seconds = time.perf_counter() - started
        record = read_json(out / "record.json")
    return {"psnr": record["psnr"], "seconds": seconds, "views_per_s": config.iterations * run.batch / seconds}


def _table(results: list[dict[str, Any]], kind: str, device: str | None) -> Any:
    """Milliseconds, and the share of the roofline where the device is described."""
    from rich.table import Table

    from odin_jax.gpu.roofline import Work

    names = ("forward", "forward_backward", "update", "window")
    table = Table("image", "rows", "pairs", *(f"{name.replace('_', ' + ')} ms" for name in names),
                  title=kind if device else f"{kind} (not described, so without a roofline)")
    for result in results:
        cells = []
        for name in names:
            spent = result["ms"][name]
            if device and name in result["bytes"]:
                least = Work(result["bytes"][name], result["flops"][name]).seconds(device) * 1e3
                cells.append(f"{spent:.2f} ({least / spent:.0%})")
            else:
                cells.append(f"{spent:.2f}")
        table.add_row(f"{result['width']}×{result['height']}", f"{result['rows']:,}", f"{result['pairs']:,}", *cells)
    return table
