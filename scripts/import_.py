"""Make a run folder from a Gaussian scene of any trainer, so that it can be viewed and exported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from odin_jax.runs import OUTPUTS, RunFolder
from odin_jax.scene_files import read_scene_file
from splat.errors import UserError
from splat.io.ply import write_ply


@dataclass(frozen=True)
class ImportConfig:
    """Make a run folder from a .ply or .splat of any trainer."""

    file: Annotated[Path, tyro.conf.Positional]  # a .ply in the 3DGS layout or a .splat
    out: Path  # folder to make; it must not hold a run


def main(config: ImportConfig) -> None:
    """Write OUT/point_cloud.ply. Raises UserError for a bad file or a folder that holds results."""
    run = RunFolder(config.out)
    gaussians = read_scene_file(config.file)
    with run.claimed():
        held = [name for name in (*OUTPUTS, "config.json") if (run.path / name).exists()]
        if held:
            raise UserError(f"--out {run.path} already holds {held[0]}; choose another folder")
        write_ply(gaussians, run.ply)
    print(f"{run.ply}: {gaussians.count:,} Gaussians")


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["import", *sys.argv[1:]])
