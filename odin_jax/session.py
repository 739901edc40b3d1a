"""``odin train`` from the options to the record: set up, train, measure, write."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax import cache, cameras_json, hooks, pipelines, record, train_config
from odin_jax.account import Account
from odin_jax.backdrop import backdrop, composite_colour
from odin_jax.checkpoint import Checkpoints
from odin_jax.engines import engine_of
from odin_jax.evaluate import Painter, evaluate, side_by_side
from odin_jax.feed import camera_of
from odin_jax.interrupt import Interrupt
from odin_jax.loaded import LoadedRun
from odin_jax.parallel import share
from odin_jax.parallel.hosts import find_hosts
from odin_jax.parallel.join import Team, joined
from odin_jax.parallel.same_scene import check_scene
from odin_jax.progress import Progress, Scalars, StepNumbers
from odin_jax.record import Clock
from odin_jax.runs import RunFolder, differences, read_json, start_point, write_json
from odin_jax.structure import StructureLog
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
    leads: bool = True  # whether this process prints and writes what is written once

    def painter(self, gaussians: Gaussians) -> Painter:
        """Renders these rows over the background that evaluation uses."""
        return Painter(self.pipeline, gaussians, backdrop(self.config, self.scene))


def train(config: TrainConfig, clock: Clock | None = None) -> int:
    """Run or continue a training; the exit code: 0 when complete, 128 + signal when interrupted and saved.

    Every process of a run calls it. ``clock`` tells when the run's time began; None: now. Raises UserError for bad
    input and Diverged when the numbers stop being finite.
    """
    clock = clock or Clock()
    hosts = find_hosts(config.hosts_from, config.coordinator, config.num_processes, config.process_id, os.environ)
    with joined(hosts, config.devices) as team:
        config = train_config.resolved(config)
        run = RunFolder(config.out)
        with run.claimed() if team.leads else contextlib.nullcontext():
            return _run(config, run, team, clock)


def _run(config: TrainConfig, run: RunFolder, team: Team, clock: Clock) -> int:
    source = _source(config, run, team)
    if source is not None and share.from_first(team.leads and _complete(run, source, config)):
        if team.leads:
            print(f"{run.path} is complete: {config.iterations} steps, record in {run.record}")
        return 0
    cache.enable(config.cache_dir)
    scene = scene_of(config)
    check_scene(scene)
    before = source and source[0].parent / run.survey.name
    pipeline = hooks.surveyed(pipelines.build(config), scene, before, run.survey, team.leads)
    session = Session(config, run, scene, pipeline, team.leads)
    if team.leads:
        for line in scene.warnings:
            print(f"note: {line}")
        print(f"{len(scene.photos)} photos, {len(scene.train)} to train on and {len(scene.test)} to test; "
              f"{len(scene.points):,} points", flush=True)
        write_json(run.config, train_config.to_json(config))
        cameras_json.write(run.cameras, scene)
    return _train(session, team, _position(session, source, clock), _is_ours(run, source))


def _source(config: TrainConfig, run: RunFolder, team: Team) -> tuple[Path, int] | None:
    """The checkpoint to continue from, as the first process finds it; all processes must train the same."""
    resolved, found = train_config.to_json(config), None
    if team.leads:
        found = start_point(run, config.resume, resolved)
    first, found = share.from_first([resolved, found and [str(found[0]), found[1]]])
    unlike = differences(first, resolved)
    if unlike:
        raise UserError(f"process {team.process} was started with other options than process 0 "
                        f"({'; '.join(unlike[:4])}); give all processes the same command")
    return found and (Path(found[0]), found[1])


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
    if config.batch > len(scene.train):
        raise UserError(f"--batch {config.batch}: the capture has {len(scene.train)} training views; give no more than "
                        "these")
    if config.background == "random" and composited:
        raise UserError("--background random does not go with photos whose alpha is composited over one "
                        "colour; use --alpha mask or --background white")
    return scene


def _position(session: Session, source: tuple[Path, int] | None, clock: Clock) -> Position:
    if source is None:
        return fresh(session.pipeline, session.scene, session.config.seed, clock)
    position = restored(session.pipeline, session.scene, session.config.seed, source, clock)
    if session.leads:
        print(f"continuing after step {position.step} of {source[0]}")
    return position


def _train(session: Session, team: Team, position: Position, saved: bool) -> int:
    config, run, leads = session.config, session.run, session.leads
    checkpoints = Checkpoints(run.checkpoints, config.keep_checkpoints) if leads else None
    account = Account(run if leads else None, position.step, position.step < config.iterations)
    engine = engine_of(config, session.scene, session.pipeline, position, account)
    trainer = Trainer(config, session.pipeline, engine, position, checkpoints, position.step if saved else None)
    with Interrupt(quiet=not leads) as interrupt:
        try:
            numbers, stopped = _loop(session, team, trainer, interrupt)
        finally:
            if checkpoints is not None:
                checkpoints.finish()
    numbers.update(account.close(share.from_every))
    if stopped and position.step < config.iterations:
        if leads:
            print(f"stopped at step {position.step} of {config.iterations}, saved; the same command continues")
        return 128 + (interrupt.signal or signal.SIGTERM)
    if leads:
        print(f"measuring {len(session.scene.test)} test views", flush=True)
        try:
            entry = _finish(session, position, numbers)
        except KeyboardInterrupt:
            print("stopped while measuring; the training is saved, the same command measures it")
            return 128 + signal.SIGINT
        print(f"{run.record}: {summary_line(entry)}")
    return 0


def _loop(session: Session, team: Team, trainer: Trainer, interrupt: Interrupt) -> tuple[dict[str, Any], bool]:
    """Train with progress and TensorBoard; the numbers that the record keeps, and whether it was stopped."""
    config, leads = session.config, session.leads
    first = trainer.position.step + 1
    scalars = Scalars(session.run.tensorboard if config.tensorboard and leads else None, first)
    with Progress(first, config.iterations, quiet=not leads) as progress:

        def after_step(numbers: StepNumbers) -> None:
            progress.step(numbers)
            team.reached(numbers.step)
            if numbers.step % config.log_every == 0:
                scalars.step(numbers, progress)

        def picture(step: int, state: Any) -> None:
            if leads:
                scalars.image("photo and render", _sample(session, state), step)

        structure = StructureLog(session.run if leads else None, session.pipeline, first - 1)
        stopped = trainer.run(interrupt, after_step, picture if config.tensorboard else None, structure)
        scalars.close()
        return progress.numbers(), stopped


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
    if not all(isinstance(entry.get(name), int | float) for name in ("iterations", "wall_s", "cpu_s")):
        return line
    return f"{line}, {entry['iterations']} steps in {entry['wall_s']:.0f} s ({entry['cpu_s']:.0f} CPU s)"


def _is_ours(run: RunFolder, source: tuple[Path, int] | None) -> bool:
    return source is not None and source[0].resolve() == run.checkpoints.resolve()


def _complete(run: RunFolder, source: tuple[Path, int], config: TrainConfig) -> bool:
    """Whether the folder's own newest checkpoint is the last step and its record was written after it."""
    return (_is_ours(run, source) and source[1] >= config.iterations and run.record.exists()
            and read_json(run.record).get("iterations") == source[1])
