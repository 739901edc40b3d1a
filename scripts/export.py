"""Write a trained scene as one file that viewers read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from odin_jax.loaded import open_run
from odin_jax.scene_files import write_scene_file


@dataclass(frozen=True)
class ExportConfig:
    """Write a trained scene as .ply (exact) or .splat (8-bit colours and rotations, no view dependence)."""

    dir: Annotated[Path, tyro.conf.Positional]  # folder written by `odin train --out`
    file: Annotated[
        Path, tyro.conf.Positional
    ]  # where to write; the ending, .ply or .splat, chooses the format


def main(config: ExportConfig) -> None:
    """Write the file and print its size. Raises UserError for another ending."""
    gaussians = open_run(config.dir).gaussians
    write_scene_file(gaussians, config.file)
    print(f"{config.file}: {gaussians.count:,} Gaussians, {config.file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["export", *sys.argv[1:]])
