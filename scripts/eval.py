"""Measure a trained scene on its test views and write the numbers into its record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from odin_jax import session
from odin_jax.loaded import open_run


@dataclass(frozen=True)
class EvalConfig:
    """Measure a trained scene on its test views: PSNR, SSIM and LPIPS of 8-bit renders."""

    dir: Annotated[Path, tyro.conf.Positional]  # folder written by `odin train --out`
    scene: Path | None = None  # the capture, when it has moved since the training
    downscale: float | None = None  # divide the photos' sides by this; None: as trained
    lpips: bool = True  # measure LPIPS (VGG) too


def main(config: EvalConfig) -> None:
    """Update record.json and renders/, print one line per view and the means."""
    run = open_run(config.dir, config.scene, config.downscale)
    entry = session.remeasure(run, config.lpips)
    for view in entry["views"]:
        numbers = "  ".join(f"{name} {view[name]:.4f}" for name in ("psnr", "ssim", "lpips") if name in view)
        print(f"{view['name']}: {numbers}")
    print(f"{run.folder.record}: {session.summary_line(entry)}")


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["eval", *sys.argv[1:]])
