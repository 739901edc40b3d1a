"""The configuration of a training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from odin_jax.field_types import wrong_field
from splat.errors import UserError
from splat.pipelines.dash_config import DashConfig
from splat.pipelines.gs2d_config import Gs2dConfig
from splat.pipelines.gs3d_config import Gs3dConfig
from splat.pipelines.taming_config import TamingConfig


@dataclass(frozen=True)
class TrainConfig:
    """Train a scene. Everything a run does follows from these fields, the photos and the seed."""

    scene: Path  # capture: a COLMAP folder, transforms.json, a Blender folder or an .npz
    out: Path  # folder for the results; continued when it holds this run
    config: Path | None = None  # TOML file of options (configs/ has presets); what the command line gives wins
    pipeline: str = "3dgs"  # 3dgs, 2dgs, taming, dash, or package.module:factory for a pipeline from elsewhere
    iterations: int = 30_000  # optimizer steps
    downscale: float = 1  # divide the photos' sides by this
    batch: int = 1  # views per optimizer step
    cap: int | None = None  # most Gaussians there may ever be; None: 20 × iterations below 7,000, else no limit
    seed: int = 0  # all random numbers follow from it
    resume: str = "auto"  # auto, never, or the path of a run or checkpoint to continue from
    test_every: int = 8  # every n-th photo by name is kept for testing; 0: none
    images: str | None = None  # folder of photos inside the scene; None: images, else input
    alpha: Literal["mask", "background"] | None = None  # meaning of an alpha channel; None: by the kind of scene
    max_points: int | None = None  # start from at most so many SfM points; None: all
    background: Literal["mean", "black", "white", "random"] = "mean"  # colour behind the scene; mean: of the photos
    checkpoint_every: int = 1000  # steps between checkpoints
    keep_checkpoints: int = 3  # newest checkpoints kept
    log_every: int = 100  # steps between TensorBoard scalars
    image_every: int = 1000  # steps between TensorBoard images; 0: none
    photo_cache_mb: int = 1024  # host memory for decoded photos, MB
    tensorboard: bool = True  # write tensorboard/ into the run's folder
    lpips: bool = True  # measure LPIPS (VGG) on the test views at the end, where they have 16 pixels a side
    cache_dir: Path | None = None  # compiled programs are kept here; None: the user's cache folder
    path: Literal["sync-dense", "sync", "quality", "throughput"] | None = None  # what units wait for; None: quality
    tau: float = 0.2  # throughput: share of rows, and of the mean gradient, up to which rows are read late, 0..1
    parallel: Literal["dp", "mp"] = "dp"  # dp: a rank has all rows and some views; mp: some rows and some pixels
    placement: Literal["random", "spatial", "access"] = "random"  # mp: rows by chance, by place, by the views' use
    pixels: Literal["strips", "images"] = "strips"  # mp: what ranks share of a unit's images: tile rows or whole ones
    exchange: Literal["psum", "ordered"] = "psum"  # sum over ranks: as fast as can be, or bit-reproducible
    executor: Literal["auto", "fused", "lanes"] = "auto"  # fused: one program; lanes: two threads; auto: by device
    plan: Path | None = None  # schedule written by `odin plan`; None: made at the start
    regions: int = 4  # groups K of strongly coupled views in the schedule
    # Parts of the scheduling to leave out, to see what they bring: lp groups of views, sds order of units, sas which
    # windows block, dds views to ranks, das validation, hogwild groups, order and validation
    ablate: tuple[Literal["lp", "sds", "sas", "dds", "das", "hogwild"], ...] = ()
    hosts_from: Literal["auto", "slurm", "mpi", "env"] | None = "auto"  # where the processes of the run are named
    coordinator: str | None = None  # HOST:PORT of process 0
    num_processes: int | None = None  # processes of the run
    process_id: int | None = None  # which of them this is, from 0
    devices: int | None = None  # simulated CPU devices of this process; None: the devices there are
    # options of the 3DGS pipeline; defaults that count steps shrink to fit below 30,000 iterations
    gs3d: Gs3dConfig = dataclasses.field(default_factory=Gs3dConfig)
    # options of the 2DGS pipeline, in the same way
    gs2d: Gs2dConfig = dataclasses.field(default_factory=Gs2dConfig)
    # options of the TamingGS pipeline, in the same way
    taming: TamingConfig = dataclasses.field(default_factory=TamingConfig)
    # options of the DashGS pipeline, in the same way
    dash: DashConfig = dataclasses.field(default_factory=DashConfig)


# field with the options of each pipeline, and their class
OPTIONS = {"3dgs": "gs3d", "2dgs": "gs2d", "taming": "taming", "dash": "dash"}
KINDS = {"gs3d": Gs3dConfig, "gs2d": Gs2dConfig, "taming": TamingConfig, "dash": DashConfig}


AT_LEAST = {"iterations": 1, "batch": 1, "cap": 1, "seed": 0, "test_every": 0, "max_points": 1,
            "checkpoint_every": 1, "keep_checkpoints": 1, "log_every": 1, "image_every": 0,
            "photo_cache_mb": 1, "regions": 1, "devices": 1}
PATHS = ("scene", "out", "config", "cache_dir", "plan")  # fields that are paths
SEEDS = 2**32  # a pipeline may keep the seed as uint32
SHARED = ("iterations", "batch", "cap")  # fields of the pipeline that the run's own fields decide


def resolved(config: TrainConfig) -> TrainConfig:
    """The configuration with everything decided: absolute path, schedule fitted to the length.

    Raises UserError for a value that cannot work.
    """
    for name, least in AT_LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    if config.seed >= SEEDS:
        raise UserError(f"--seed {config.seed}: must be below {SEEDS}")
    if not 0 <= config.tau <= 1:
        raise UserError(f"--tau {config.tau}: must lie between 0 and 1")
    check_pipeline(config.pipeline)
    _check_options(config)
    if not config.scene.exists():
        raise UserError(f"--scene {config.scene}: no such file or folder; give a capture's folder or .npz")
    field = OPTIONS.get(config.pipeline, "gs3d")
    options = getattr(config, field)
    fitted = dataclasses.replace(options.fitted(config.iterations), iterations=config.iterations,
                                 batch=config.batch, cap=config.cap,
                                 white_background=options.white_background or config.background == "white")
    if config.plan is not None and not config.plan.is_file():
        raise UserError(f"--plan {config.plan}: no such file; write one with odin plan, or leave the option out")
    plan = None if config.plan is None else config.plan.resolve()
    return dataclasses.replace(config, scene=config.scene.resolve(), plan=plan, **{field: fitted})


def check_pipeline(name: str) -> None:
    """Raise UserError for a name that is none of ours and no ``package.module:factory``."""
    if name not in OPTIONS and ":" not in name:
        raise UserError(f"--pipeline {name}: unknown; known are {', '.join(OPTIONS)}, or give package.module:factory")


def _check_options(config: TrainConfig) -> None:
    """Raise UserError for options of another pipeline, and for those that the run's own options decide."""
    for field, kind in KINDS.items():
        options, mine = getattr(config, field), OPTIONS.get(config.pipeline, "gs3d") == field
        for name in SHARED if mine else ():
            if getattr(options, name) != getattr(kind, name):
                raise UserError(f"--{field}.{name} follows from the run: give --{name} instead")
        if not mine and options != kind():
            raise UserError(f"--{field}.* are options of another pipeline than {config.pipeline}; leave them out or "
                            "give --pipeline")


def to_json(config: TrainConfig) -> dict[str, Any]:
    """The resolved configuration as JSON values."""
    return {
        name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
    }


def from_json(values: dict[str, Any], where: Path) -> TrainConfig:
    """The inverse of ``to_json``. Raises UserError with the field when the file does not fit this version."""
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UserError(
            f"{where}: unknown field {unknown[0]!r}; it was written by another version of this program"
        )
    try:
        paths: dict[str, Any] = {name: Path(values[name]) if values.get(name) else None for name in PATHS}
        options: dict[str, Any] = {name: kind(**values.get(name, {})) for name, kind in KINDS.items()}
        rest = {name: value for name, value in values.items() if name not in (*options, "ablate", *paths)}
        config = TrainConfig(**paths, **options, ablate=tuple(values.get("ablate", ())), **rest)
    except (KeyError, TypeError) as error:
        reason = f"{where}: does not fit this version of the program ({error}); train again"
        raise UserError(reason) from error
    wrong = wrong_field(config)
    if wrong:
        raise UserError(f"{where}: the value of {wrong} is of the wrong kind; restore it or train again")
    return config
