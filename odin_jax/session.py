"""``odin train`` from the options to the record: set up, train, measure, write."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax import cache, cameras_json, pipelines, record, train_config
from odin_jax.backdrop import backdrop, composite_colour
from odin_jax.checkpoint import Checkpoints
from odin_jax.evaluate import Painter, evaluate, side_by_side
from odin_jax.feed import camera_of
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

UNTESTED_SHOWN = 4  # training views to compare where a scene has no test views


@dataclass(frozen=True)
class Session:
    """What every part of a run needs."""

    config: TrainConfig
    run: RunFolder
    scene: Scene
    pipeline: Pipeline

    def painter(self, gaussians: Gaussians) -> Painter:
        """Renders these rows over the background that evaluation uses."""
        return Painter(self.pipeline, gaussians, backdrop(self.config, self.scene))


def train(config: TrainConfig, clock: Clock | None = None) -> int:
    """Run or continue a training; the exit code: 0 when complete, 128 + signal when interrupted and saved.

    ``clock`` tells when the run's time began; None: now. Raises UserError for bad input and Diverged when the
    numbers stop being finite.
    """
    clock = clock or Clock()
    config = train_config.resolved(config)
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
        session = Session(config, run, scene, pipelines.build(config))
        position = _position(session, source, clock)
        write_json(run.config, train_config.to_json(config))
        cameras_json.write(run.cameras, scene)
        return _train(session, position, _is_ours(run, source))


def scene_of(config: TrainConfig) -> Scene:
    """The capture of a configuration. Raises UserError when it cannot be trained on."""
    red, green, blue = composite_colour(config).tolist()
    scene = load_scene(config.scene, downscale=config.downscale, test_every=config.test_every,
                       seed=config.seed, max_points=config.max_points, background=(red, green, blue),
                       alpha=config.alpha, images=config.images)
    if not scene.train:
        raise UserError(f"--scene {config.scene}: no training view is left beside {len(scene.test)} test "
                        "views; give more photos or --test-every 0")
    composited = scene.alpha == "background" and any(photo.has_alpha for photo in scene.photos)
    if config.background == "random" and composited:
        raise UserError("--background random does not go with photos whose alpha is composited over one "
                        "colour; use --alpha mask or --background white")
    return scene


def _position(session: Session, source: tuple[Path, int] | None, clock: Clock) -> Position:
    if source is None:
        return fresh(session.pipeline, session.scene, session.config.seed, clock)
    position = restored(session.pipeline, session.scene, session.config.seed, source, clock)
    print(f"continuing after step {position.step} of {source[0]}")
    return position


def _train(session: Session, position: Position, saved: bool) -> int:
    config, run = session.config, session.run
    checkpoints = Checkpoints(run.checkpoints, config.keep_checkpoints)
    trainer = Trainer(config, session.scene, session.pipeline, position, checkpoints,
                      position.step if saved else None)
    with Interrupt() as interrupt:
        try:
            numbers = _loop(session, trainer, interrupt)
        finally:
            checkpoints.finish()
    if interrupt.signal is not None and position.step < config.iterations:
        print(f"stopped at step {position.step} of {config.iterations}, saved; the same command continues")
        return 128 + interrupt.signal
    entry = _finish(session, position, numbers)
    print(f"{run.record}: {summary_line(entry)}")
    return 0


def _loop(session: Session, trainer: Trainer, interrupt: Interrupt) -> dict[str, float]:
    """Train with progress and TensorBoard; the numbers of the loop that the record keeps."""
    config = session.config
    first = trainer.position.step + 1
    scalars = Scalars(session.run.tensorboard if config.tensorboard else None, first)
    with Progress(first, config.iterations) as progress:

        def after_step(numbers: StepNumbers, state: Any) -> None:
            progress.step(numbers)
            if numbers.step % config.log_every == 0:
                scalars.step(numbers, progress)
            if config.tensorboard and config.image_every and numbers.step % config.image_every == 0:
                scalars.image("photo and render", _sample(session, state), numbers.step)

        trainer.run(interrupt, after_step)
        scalars.close()
        return progress.numbers()


def _sample(session: Session, state: Any) -> Any:
    """Photo and render of the first test view, in the shape that the state's capacity has."""
    index = (session.scene.test or session.scene.train)[0]
    image = session.painter(drawable(state))(camera_of(session.scene.photos[index]))
    return side_by_side(load_photo(session.scene, index)[0], image)


def _finish(session: Session, position: Position, numbers: dict[str, float]) -> dict[str, Any]:
    """Write the PLY, the comparisons and the record of a trained state; the record."""
    wall_s, cpu_s, peak = position.clock.wall_s(), position.clock.cpu_s(), record.peak_rss_mb()
    gaussians = exported(position.state)
    write_ply(gaussians, session.run.ply)
    config, scene = session.config, session.scene
    entry = {"iterations": position.step, "batch": config.batch, "seed": config.seed,
             "pipeline": session.pipeline.name, "scene": scene.name, "n_primitives": gaussians.count,
             "background": backdrop(config, scene).tolist(),
             "train_views": len(scene.train), "test_views": len(scene.test),
             "samples_per_s": position.step * config.batch / max(wall_s, 1e-9), **numbers,
             "wall_s": wall_s, "cpu_s": cpu_s, "peak_rss_mb": peak,
             "devices": record.devices(), "host_cpus": os.cpu_count(), "versions": record.versions()}
    return _measured(session, gaussians, entry)


def _measured(session: Session, gaussians: Gaussians, entry: dict[str, Any]) -> dict[str, Any]:
    """The record ``entry`` completed with metrics of the test views; written, with the comparisons."""
    start, cpu_start = time.perf_counter(), time.process_time()
    scene, renders = session.scene, session.run.renders
    painter = session.painter(gaussians)
    views = evaluate(painter, scene, scene.test, session.config.lpips, renders)
    if not views:
        evaluate(painter, scene, scene.train[:UNTESTED_SHOWN], False, renders)
    complete = {**entry, **record.summary(views), "views": views, "eval_wall_s": time.perf_counter() - start,
                "eval_cpu_s": time.process_time() - cpu_start}
    write_json(session.run.record, complete)
    return complete


def remeasure(loaded: LoadedRun, lpips: bool) -> dict[str, Any]:
    """Measure the PLY of a run again and update its record; everything but the metrics stays."""
    before = read_json(loaded.folder.record) if loaded.folder.record.exists() else {}
    config = dataclasses.replace(loaded.config, lpips=lpips)
    session = Session(config, loaded.folder, scene_of(config), loaded.pipeline)
    entry = {**before, "pipeline": loaded.pipeline.name, "n_primitives": loaded.gaussians.count}
    return _measured(session, loaded.gaussians, entry)


def summary_line(entry: dict[str, Any]) -> str:
    """PSNR, SSIM, LPIPS, Gaussians, time: one line of a record."""
    styles = (("psnr", "PSNR {:.2f} dB"), ("ssim", "SSIM {:.3f}"), ("lpips", "LPIPS {:.3f}"))
    shown = [style.format(entry[name]) for name, style in styles if entry.get(name) is not None]
    line = ", ".join([*(shown or ["no test views"]), f"{entry['n_primitives']:,} Gaussians"])
    if "iterations" not in entry:
        return line
    return f"{line}, {entry['iterations']} steps in {entry['wall_s']:.0f} s ({entry['cpu_s']:.0f} CPU s)"


def _is_ours(run: RunFolder, source: tuple[Path, int] | None) -> bool:
    return source is not None and source[0].resolve() == run.checkpoints.resolve()


def _complete(run: RunFolder, source: tuple[Path, int], config: TrainConfig) -> bool:
    """Whether the folder's own newest checkpoint is the last step and its record was written after it."""
    return (_is_ours(run, source) and source[1] >= config.iterations and run.record.exists()
            and read_json(run.record).get("iterations") == source[1])
