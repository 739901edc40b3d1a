"""Bytes that a step exchanges: data parallelism, and mixed parallelism with each placement of the rows.

``odin bench placement --scene PATH --start RUN --out DIR`` goes on from a trained run for a few steps on simulated
devices with every regime and count of ranks, and leaves the runs, ``placement.json`` and ``placement.md``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax.options import parse
from odin_jax.runs import read_json, write_json
from scripts.bench._markdown import markdown_table, ratio_cell
from scripts.bench.overlap import windows_of
from splat.errors import UserError

REGIMES = {"dp": ["--parallel", "dp"],
           **{name: ["--parallel", "mp", "--placement", name] for name in ("random", "spatial", "access")}}
HEADINGS = ("ranks", "regime", "MB per rank and step", "of dp", "s per step")


@dataclass(frozen=True)
class PlacementBench:
    """Count the bytes that a step exchanges."""

    scene: Path  # capture
    start: Path  # run folder whose newest checkpoint all runs start from
    out: Path  # folder for the runs and the table
    ranks: tuple[int, ...] = (2, 4)  # simulated devices
    regimes: tuple[str, ...] = tuple(REGIMES)  # of dp, random, spatial, access
    path: str = "sync"  # what units wait for
    iterations: int = 24  # optimizer steps of each run
    skip: int = 12  # first steps left out of the numbers: programs are compiled and owners learnt there
    batch: int = 4  # views per optimizer step
    downscale: float = 2  # divide the photos' sides by this


def main(argv: list[str]) -> int:
    """Write placement.json and .md and print the JSON as the last line. Raises UserError when a run fails."""
    config = parse(PlacementBench, argv, "odin bench placement")
    unknown = [name for name in config.regimes if name not in REGIMES]
    if unknown:
        raise UserError(f"--regimes {unknown[0]}: must be of {', '.join(REGIMES)}")
    if config.iterations <= config.skip + 1:
        raise UserError(f"--iterations {config.iterations}: must be above --skip {config.skip} and one more")
    config.out.mkdir(parents=True, exist_ok=True)
    rows = [_row(config, ranks, regime) for ranks in config.ranks for regime in config.regimes]
    dense = {row["ranks"]: row["sent_mb"] for row in rows if row["regime"] == "dp"}
    for row in rows:
        row["of_dp"] = row["sent_mb"] / dense[row["ranks"]] if row["ranks"] in dense else None
    write_json(config.out / "placement.json", rows)
    (config.out / "placement.md").write_text(table(rows))
    print(table(rows))
    print(json.dumps(rows))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(HEADINGS, [
        [str(row["ranks"]), row["regime"], f"{row['sent_mb']:.2f}", ratio_cell(row["of_dp"]), f"{row['step_s']:.2f}"]
        for row in rows])


def _row(config: PlacementBench, ranks: int, regime: str) -> dict[str, Any]:
    out = config.out / f"{regime}-{ranks}"
    if not (out / "record.json").exists():
        first = read_json(config.start / "record.json")["iterations"]
        command = [sys.executable, "-m", "odin_jax.cli", "train", "--scene", str(config.scene), "--out", str(out),
                   "--devices", str(ranks), "--batch", str(config.batch), "--downscale", str(config.downscale),
                   "--iterations", str(first + config.iterations), "--resume", str(config.start), "--path", config.path,
                   "--no-lpips", "--no-tensorboard", "--gs3d.densify-until", "1", *REGIMES[regime]]
        with (config.out / f"{regime}-{ranks}.log").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code:
            raise UserError(f"training {regime} on {ranks} ranks failed with exit code {code}; see {log.name}")
    lines = windows_of(out, config.skip)
    row = {"ranks": ranks, "regime": regime, "step_s": statistics.median(line["wall_s"] for line in lines),
           "sent_mb": statistics.mean(sum(line["sent_bytes"].values()) for line in lines) / 1e6}
    print(json.dumps(row), flush=True)
    return row
