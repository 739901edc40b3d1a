"""A trained scene read back from its folder: Gaussians, configuration, pipeline, cameras."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odin_jax import cameras_json, pipelines, train_config
from odin_jax.backdrop import composite_colour
from odin_jax.runs import RunFolder, read_json
from odin_jax.train_config import TrainConfig
from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.ply import read_ply
from splat.pipelines.protocol import Pipeline


@dataclass(frozen=True)
class LoadedRun:
    """What evaluation, rendering, export and the viewer need of a run."""

    folder: RunFolder
    config: TrainConfig
    pipeline: Pipeline
    gaussians: Gaussians

    def backdrop(self) -> np.ndarray:
        """[3] float32 colour that the run was evaluated on, from its record; black where there is none."""
        entry = read_json(self.folder.record) if self.folder.record.exists() else {}
        try:
            colour = np.asarray(entry.get("background", composite_colour(self.config)), np.float32)
        except (TypeError, ValueError):
            colour = np.empty(0)
        if colour.shape != (3,) or not np.isfinite(colour).all():
            raise UserError(f"{self.folder.record}: background must be three numbers; restore it or train again")
        return colour

    def cameras(self, split: str | None = None) -> list[tuple[str, Camera]]:
        """(name, camera) of cameras.json, of one split or all. Raises UserError when the file is missing."""
        return cameras_json.read(self.folder.cameras, split)


def open_run(path: Path, scene: Path | None = None, downscale: float | None = None) -> LoadedRun:
    """Read the run folder ``path``; ``scene`` and ``downscale`` replace what its configuration says.

    A folder without config.json (an import, another trainer's output) is a 3DGS scene, or one of 2DGS if its rows have
    two scales. Raises UserError when there is no folder or no point_cloud.ply in it.
    """
    run = RunFolder(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; give the --out folder of `odin train` or `odin import`")
    config = train_config.from_json(read_json(run.config), run.config) if run.config.exists() else None
    if not run.ply.exists() and run.checkpoints.is_dir():
        raise UserError(f"{path} holds a training that is not finished; give its `odin train` command again to "
                        "continue it")
    gaussians = read_ply(run.ply)
    if config is None:
        flat = gaussians.log_scales.shape[1] == 2
        config = TrainConfig(scene=scene or path, out=path, pipeline="2dgs" if flat else "3dgs")
    changes = {"scene": scene, "downscale": downscale}
    config = dataclasses.replace(
        config, **{name: value for name, value in changes.items() if value is not None}
    )
    return LoadedRun(run, config, pipelines.build(config), gaussians)
