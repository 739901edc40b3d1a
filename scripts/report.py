"""Print the records of runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from odin_jax.runs import RunFolder, read_json
from splat.errors import UserError

COLUMNS = (
    ("psnr", "{:.2f}"),
    ("ssim", "{:.3f}"),
    ("lpips", "{:.3f}"),
    ("n_primitives", "{:,}"),
    ("iterations", "{:,}"),
    ("samples_per_s", "{:.2f}"),
    ("wall_s", "{:.0f}"),
    ("cpu_s", "{:.0f}"),
    ("peak_rss_mb", "{:.0f}"),
)


@dataclass(frozen=True)
class ReportConfig:
    """Print the records of runs side by side."""

    dirs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # folders written by `odin train --out`


def main(config: ReportConfig) -> None:
    """One row per run. Raises UserError when a folder has no record."""
    if not config.dirs:
        raise UserError("no run is named; give one or more folders written by `odin train --out`")
    table = Table("run", *(name for name, _ in COLUMNS))
    for folder in config.dirs:
        entry = read_json(RunFolder(folder).record)
        for name, _ in COLUMNS:
            if not isinstance(entry.get(name), int | float | None):
                raise UserError(f"{RunFolder(folder).record}: {name} must be a number; restore it or train again")
        cells = [style.format(entry[name]) if entry.get(name) is not None else "–" for name, style in COLUMNS]
        table.add_row(str(folder), *cells)
    Console().print(table)


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["report", *sys.argv[1:]])
