"""``odin train`` from the options to the record: set up, train, measure, write."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from odin_jax import cache, cameras_json, pipelines, record, train_config
from odin_jax.checkpoint import Checkpoints
from odin_jax.evaluate import Painter, evaluate, side_by_side
from odin_jax.feed import camera_of, plain_background
from odin_jax.interrupt import Interrupt
from odin_jax.loaded import LoadedRun
from odin_jax.progress import Progress, Scalars, StepNumbers
from odin_jax.record import Clock
from odin_jax.runs import RunFolder, read_json, start_point, write_json
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position, Trainer, drawable, exported, fresh, restored
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.ply import write_ply
from splat.pipelines.protocol import Pipeline
from splat.scene.load import load_scene
from splat.scene.types import Scene, load_photo


def train(config: TrainConfig, clock: Clock | None = None) -> int:
    """Run or continue a training; the exit code: 0 when complete, 128 + signal when interrupted and saved.

    ``clock`` tells when the run's time began; None: now. Raises UserError for bad input and Diverged when the numbers
    stop being finite.
    """
    clock = clock or Clock()
    config = train_config.validated(config)
    run = RunFolder(config.out)
    with run.claimed():
        source = start_point(run, config.resume, train_config.to_json(config))
        if source is not None and _complete(run, source, config):
            print(f"{run.path} is complete: {config.iterations} steps, record in {run.record}")
            return 0
        cache.enable(config.cache_dir)
        scene = scene_of(config)
        for line in scene.warnings:
            print(f"note: {line}")
        write_json(run.config, train_config.to_json(config))
        cameras_json.write(run.cameras, scene)
        return _train(config, run, scene, pipelines.build(config), source, clock)


def scene_of(config: TrainConfig) -> Scene:
    """The capture of a configuration. Raises UserError when it cannot be trained on."""
    scene = load_scene(config.scene, downscale=config.downscale, test_every=config.test_every, seed=config.seed,
                       max_points=config.max_points, background=tuple(plain_background(config.background).tolist()),
                       alpha=config.alpha, images=config.images)
    if not scene.train:
        raise UserError(f"--scene {config.scene}: no training view is left beside {len(scene.test)} test views; "
                        "give more photos or --test-every 0")
    if config.background == "random" and scene.alpha == "background" and any(p.has_alpha for p in scene.photos):
        raise UserError("--background random does not go with photos whose alpha is composited over one colour; "
                        "use --alpha mask or --background white")
    return scene


def _train(config: TrainConfig, run: RunFolder, scene: Scene, pipeline: Pipeline,
           source: tuple[Path, int] | None, clock: Clock) -> int:
    if source is None:
        position = fresh(pipeline, scene, config.seed, clock)
    else:
        position = restored(pipeline, scene, config.seed, source, clock)
        print(f"continuing after step {position.step} of {source[0]}")
    ours = source is not None and source[0].resolve() == run.checkpoints.resolve()
    checkpoints = Checkpoints(run.checkpoints, config.keep_checkpoints)
    trainer = Trainer(config, scene, pipeline, position, checkpoints, position.step if ours else None)
    with Interrupt() as interrupt:
        try:
            numbers = _loop(config, run, scene, pipeline, trainer, interrupt)
        finally:
            checkpoints.finish()
    if interrupt.signal is not None and position.step < config.iterations:
        print(f"stopped at step {position.step} of {config.iterations}, saved; the same command continues")
        return 128 + interrupt.signal
    finish(config, run, scene, pipeline, position, numbers)
    return 0


def _loop(config: TrainConfig, run: RunFolder, scene: Scene, pipeline: Pipeline, trainer: Trainer,
          interrupt: Interrupt) -> dict[str, float]:
    """Train with progress and TensorBoard; the numbers of the loop that the record keeps."""
    first = trainer.position.step + 1
    scalars = Scalars(run.tensorboard if config.tensorboard else None, first)
    shown = (scene.test or scene.train)[0]
    with Progress(first, config.iterations) as progress:

        def after_step(numbers: StepNumbers, state: Any) -> None:
            progress.step(numbers)
            if numbers.step % config.log_every == 0:
                scalars.step(numbers, progress)
            if config.tensorboard and config.image_every and numbers.step % config.image_every == 0:
                painter = Painter(pipeline, drawable(state), plain_background(config.background))
                pixels = side_by_side(load_photo(scene, shown)[0], painter(camera_of(scene.photos[shown])))
                scalars.image("photo and render", pixels, numbers.step)

        trainer.run(interrupt, after_step)
        scalars.close()
        return progress.numbers()


def finish(config: TrainConfig, run: RunFolder, scene: Scene, pipeline: Pipeline, position: Position,
           numbers: dict[str, float]) -> dict[str, Any]:
    """Write the PLY, the comparisons and the record of a trained state, and print what came out."""
    costs = {"wall_s": position.clock.wall_s(), "cpu_s": position.clock.cpu_s()}
    gaussians = exported(position.state)
    write_ply(gaussians, run.ply)
    entry = {"iterations": position.step, "batch": config.batch, "seed": config.seed, "pipeline": pipeline.name,
             "scene": scene.name, "n_primitives": gaussians.count, "train_views": len(scene.train),
             "test_views": len(scene.test), **costs,
             "samples_per_s": position.step * config.batch / max(costs["wall_s"], 1e-9), **numbers,
             "peak_rss_mb": record.peak_rss_mb(), "devices": record.devices(), "host_cpus": os.cpu_count(),
             "versions": record.versions()}
    entry = measured(config, run, scene, pipeline, gaussians, entry)
    print(f"{run.record}: {summary_line(entry)}")
    return entry


def measured(config: TrainConfig, run: RunFolder, scene: Scene, pipeline: Pipeline, gaussians: Gaussians,
             entry: dict[str, Any]) -> dict[str, Any]:
    """The record ``entry`` completed with metrics of the test views; written, with the comparisons, to the run."""
    start, cpu_start = time.perf_counter(), time.process_time()
    painter = Painter(pipeline, gaussians, plain_background(config.background))
    views = evaluate(painter, scene, scene.test, config.lpips, run.renders)
    if not scene.test:
        evaluate(painter, scene, scene.train[:4], False, run.renders)
    complete = {**entry, **record.summary(views), "views": views,
                "eval_wall_s": time.perf_counter() - start, "eval_cpu_s": time.process_time() - cpu_start}
    write_json(run.record, complete)
    return complete


def remeasure(loaded: LoadedRun, lpips: bool) -> dict[str, Any]:
    """Measure the PLY of a run again and update its record, of which everything but the metrics stays."""
    before = read_json(loaded.folder.record) if loaded.folder.record.exists() else {}
    config = dataclasses.replace(loaded.config, lpips=lpips)
    entry = {"pipeline": loaded.pipeline.name, "n_primitives": loaded.gaussians.count, **before}
    scene = scene_of(config)
    return measured(config, loaded.folder, scene, loaded.pipeline, loaded.gaussians, entry)


def summary_line(entry: dict[str, Any]) -> str:
    """PSNR, SSIM, LPIPS, Gaussians, time: one line of a record."""
    shown = [f"{name.upper()} {entry[name]:.{digits}f}{unit}" for name, digits, unit in
             (("psnr", 2, " dB"), ("ssim", 3, ""), ("lpips", 3, "")) if entry.get(name) is not None]
    line = ", ".join([*(shown or ["no test views"]), f"{entry['n_primitives']:,} Gaussians"])
    if "iterations" not in entry:
        return line
    return f"{line}, {entry['iterations']} steps in {entry['wall_s']:.0f} s ({entry['cpu_s']:.0f} CPU s)"


def _complete(run: RunFolder, source: tuple[Path, int], config: TrainConfig) -> bool:
    ours = source[0].resolve() == run.checkpoints.resolve()
    return (ours and source[1] >= config.iterations and run.record.exists()
            and read_json(run.record).get("iterations") == source[1])
