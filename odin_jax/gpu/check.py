"""Whether a training is ready for a cluster of GPUs: its programs compiled for it, looked at and sized, without a GPU.

The programs are those of a run with one program per window. What must hold: a collective that has something to hide
behind starts before it and ends after it, memory suffices, nothing is 64 bits wide and nothing asks the host.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from odin_jax.gpu import cluster, flags
from odin_jax.gpu.look import Facts
from splat.errors import UserError

ROOM_STEP = 1.25  # from one room for pairs to the next (``splat.render.pair_bucket``)


@dataclass(frozen=True)
class CheckConfig:
    """A cluster and a training on it."""

    device: Literal["rtx4090", "h200"] = "rtx4090"  # kind of GPU
    hosts: int = 2  # hosts of the cluster
    gpus: int = 4  # GPUs of each host
    rows: int = 2_000_000  # capacity for primitives
    width: int = 1600  # of the photos, pixels
    height: int = 1064  # pixels
    views: int = 2  # of each GPU in a unit
    pipeline: str = "3dgs"  # as for odin train
    optimizer: Literal["adam", "sparse_adam"] = "adam"  # adam: every row is stepped; sparse_adam: visible rows
    path: Literal["sync", "quality", "throughput"] = "quality"  # sync: nothing overlaps, so nothing has to
    exchange: tuple[Literal["psum", "ordered"], ...] = ("psum", "ordered")  # exchanges to compile
    # programs to compile: a window, a publication with nothing beside it, a unit with nothing beside it, what is told
    # and decided between units, and rows that grow
    programs: tuple[Literal["window", "whole", "alone", "scope", "tell", "densify"], ...] = (
        "window", "whole", "scope", "tell", "densify")
    pairs: float = 5.0  # tile-row pairs of a view per row; a trained capture of 50 thousand rows has 5
    active: float = 0.6  # share of the rows that a unit has a gradient in
    urgent: float = 0.3  # share of these that the next unit reads
    largest: bool = False  # find the most rows that fit, for both optimizers, instead
    out: Path | None = None  # folder for the report as JSON and the programs as HLO; None: neither


@dataclass(frozen=True)
class Checked:
    """The outcome for one exchange."""

    exchange: str
    programs: list[Facts]
    problems: list[str]
    seconds: dict[str, float]  # that compiling took


def validate(config: CheckConfig) -> None:
    """Raise UserError for a value that cannot work."""
    for name in ("hosts", "gpus", "rows", "width", "height", "views"):
        if getattr(config, name) < 1:
            raise UserError(f"--{name} {getattr(config, name)}: must be at least 1")
    for name in ("active", "urgent"):
        if not 0 < getattr(config, name) < 1:
            raise UserError(f"--{name} {getattr(config, name)}: must be between 0 and 1")
    if config.hosts * config.gpus < 2:
        raise UserError("--hosts 1 --gpus 1: a single GPU exchanges nothing; give at least two")
    if not config.pairs > 0:
        raise UserError(f"--pairs {config.pairs}: must be more than 0")


def check(config: CheckConfig, exchange: str) -> Checked:
    """Compile the programs of one exchange and say what is wrong with them; ``cluster.prepare`` has to come first.

    Their scheduled HLO goes into the folder ``out``, which must exist.
    """
    from odin_jax.gpu import windows
    from odin_jax.gpu.look import facts

    ranks, pipeline = _training(config)
    names = config.programs
    if config.path == "sync":
        names = tuple(dict.fromkeys("alone" if name == "window" else name for name in names))
    found, problems, seconds = [], [], {}
    for call in windows.calls(ranks, pipeline, sizes(config), exchange, names):
        start = time.perf_counter()
        compiled = windows.compiled(call)
        seconds[call.name] = time.perf_counter() - start
        if config.out:
            (config.out / f"{exchange}-{call.name}.hlo").write_text(compiled.as_text())
        found.append(facts(call.name, compiled, windows.SCOPES, call.beside))
        problems += [f"{exchange}, {call.name}: {text}" for text in _problems(found[-1], call.overlaps, config.device)]
    return Checked(exchange, found, problems, seconds)


def sizes(config: CheckConfig) -> Any:
    """How much of everything there is, in sizes that programs are compiled for."""
    from odin_jax.fused import GRAIN
    from odin_jax.gpu.shapes import Sizes
    from odin_jax.publish import room_for
    from splat.render import pair_bucket

    rows = -(-config.rows // 8) * 8
    active = max(int(rows * config.active), 2)
    urgent = room_for(max(int(active * config.urgent), 1), rows, GRAIN)
    rest = room_for(max(active - int(active * config.urgent), 1), rows, GRAIN)
    return Sizes(rows, config.width, config.height, config.views, pair_bucket(int(rows * config.pairs)), urgent, rest,
                 room_for(active, rows, GRAIN))


def largest(config: CheckConfig, optimizer: str, tolerance: float = 0.02) -> tuple[int, int]:
    """(most rows whose programs fit the card, bytes of the highest peak), within ``tolerance``, for an optimizer.

    Memory is nearly linear in rows: two compilations give a line, each further one corrects it. Rows whose pairs the
    renderer's kernels cannot index do not fit either.
    """
    from odin_jax.gpu import windows
    from odin_jax.gpu.look import facts
    from odin_jax.gpu.roofline import FOOTPRINT
    from splat.raster.kernels import most_pairs
    from splat.surfel.pallas import N_COLUMNS

    columns = N_COLUMNS if config.pipeline == "2dgs" else FOOTPRINT
    limit, most = usable(config.device), int(most_pairs(columns) / (config.pairs * ROOM_STEP))
    names = ("alone" if config.path == "sync" else "window", "whole", "densify")

    def peak(rows: int) -> int:
        tried = dataclasses.replace(config, rows=rows, optimizer=optimizer)
        ranks, pipeline = _training(tried)
        calls = windows.calls(ranks, pipeline, sizes(tried), config.exchange[0], names)
        return max(facts(call.name, windows.compiled(call), windows.SCOPES, call.beside).bytes["peak"]
                   for call in calls)

    low, low_peak = config.rows, peak(config.rows)
    high, high_peak = 2 * low, peak(2 * low)
    fits = max(((rows, size) for rows, size in ((low, low_peak), (high, high_peak)) if size <= limit), default=(0, 0))
    for _ in range(4):
        wanted = low + (limit * (1 - tolerance / 2) - low_peak) * (high - low) / (high_peak - low_peak)
        guess = min(int(wanted), most)
        if guess == high:
            break
        low, low_peak, high, high_peak = high, high_peak, guess, peak(guess)
        if high_peak <= limit:
            fits = max(fits, (high, high_peak))
            if high_peak >= limit * (1 - tolerance):
                break
    return fits


def usable(device: str) -> int:
    """Bytes of a card that XLA may use."""
    return int(cluster.number(device, "device_memory_size") * flags.SHARE)


def _training(config: CheckConfig) -> tuple[Any, Any]:
    """Ranks on the described cluster, and the pipeline."""
    from odin_jax import pipelines
    from odin_jax.parallel.mesh import Ranks
    from odin_jax.train_config import OPTIONS, TrainConfig
    from splat.backend import compile_for

    compile_for("gpu")
    ranks = Ranks(cluster.devices(config.device, config.hosts, config.gpus))
    train = TrainConfig(scene=Path(), out=Path(), pipeline=config.pipeline, path=config.path)
    field = OPTIONS.get(config.pipeline)
    if field is not None:
        options = dataclasses.replace(getattr(train, field), batch=ranks.count * config.views,
                                      optimizer=config.optimizer)
        train = dataclasses.replace(train, **{field: options})
    return ranks, pipelines.build(train)


def _problems(found: Facts, overlaps: tuple[tuple[str, str, str], ...], device: str) -> list[str]:
    wrong = []
    for scope, kind, loop in overlaps:
        these = [each for each in found.exchanges if (each.scope, each.kind) == (scope, kind)]
        if not these:
            wrong.append(f"no {kind} of {scope} was found; the combiner may have joined it with another")
        wrong += [f"the {kind} of {scope} is synchronous" if not each.pair else
                  f"the {kind} of {scope} ends before {loop} begins" for each in these
                  if not each.pair or loop not in each.loops]
    wrong += [f"the {each.kind} of {each.scope or 'the program'} is synchronous" for each in found.exchanges
              if overlaps and not each.pair and (each.scope, each.kind) not in {of[:2] for of in overlaps}]
    peak, limit = found.bytes["peak"], usable(device)
    if peak > limit:
        wrong.append(f"needs {peak / 1e9:.1f} GB, {device} has {limit / 1e9:.1f} GB for XLA: fewer rows, smaller "
                     "photos, or sparse_adam")
    if overlaps and any(loop.trips is None for loop in found.loops):
        scopes = sorted({loop.scope or "the program" for loop in found.loops if loop.trips is None})
        wrong.append(f"the host is asked for the end of a loop of {', '.join(scopes)} in every round")
    if found.wide:
        wrong.append(f"{found.wide} instructions are 64 bits wide")
    if found.host:
        wrong.append(f"waits for the host in {', '.join(found.host)}")
    return wrong
