"""The outcome of a check as tables for people and as JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from odin_jax.gpu import cluster, flags
from odin_jax.gpu.check import CheckConfig, Checked, usable
from odin_jax.gpu.look import Facts, Loop


def show(config: CheckConfig, outcomes: list[Checked], console: Console) -> None:
    """Print what was found."""
    console.print(f"{config.hosts} hosts × {config.gpus} {config.device} (compute capability "
                  f"{cluster.capability(config.device)}, {usable(config.device) / 1e9:.1f} GB for XLA); "
                  f"{config.pipeline}, {config.optimizer}, {config.rows:,} rows, {config.views} views of "
                  f"{config.width}×{config.height} per GPU")
    memory = Table("exchange", "program", "peak GB", "arguments", "new results", "temporaries", "held beside",
                   "largest temporary", "kernels", "loops", "asks host", title="programs")
    parts = Table("exchange", "program", "part", "collective", "MB", "kernels beside it", "loops beside it",
                  title="exchanges, from their start to their end")
    for outcome in outcomes:
        for found in outcome.programs:
            size, shape, _ = found.largest
            gb = {name: f"{count / 1e9:.2f}" for name, count in found.bytes.items()}
            fresh = f"{(found.bytes['results'] - found.bytes['aliased']) / 1e9:.2f}"
            memory.add_row(outcome.exchange, found.name, gb["peak"], gb["arguments"], fresh, gb["temporaries"],
                           gb["beside"], f"{size / 1e6:.0f} MB {shape}", str(found.kernels), str(len(found.loops)),
                           _unknown(found.loops))
            for each in found.exchanges:
                parts.add_row(outcome.exchange, found.name, each.scope or "-", each.kind, f"{each.bytes / 1e6:.2f}",
                              str(each.kernels) if each.pair else "synchronous", ", ".join(each.loops) or "-")
    console.print(memory)
    console.print(parts)


def _unknown(loops: list[Loop]) -> str:
    """Loops whose end the host has to ask for."""
    asking = [loop.scope or "-" for loop in loops if loop.trips is None]
    return ", ".join(sorted(set(asking))) or "no"


def as_json(config: CheckConfig, outcomes: list[Checked]) -> dict[str, Any]:
    """The outcome as JSON values."""
    def of_program(outcome: Checked, found: Facts) -> dict[str, Any]:
        return {"exchange": outcome.exchange, "compile_s": round(outcome.seconds[found.name], 1),
                **dataclasses.asdict(found)}

    asked = {name: str(value) if isinstance(value, Path) else value
             for name, value in dataclasses.asdict(config).items()}
    return {
        "config": asked, "limit_bytes": usable(config.device),
        "xla_flags": {name: value for name, (value, _) in flags.XLA.items()},
        "programs": [of_program(outcome, found) for outcome in outcomes for found in outcome.programs],
        "problems": [text for outcome in outcomes for text in outcome.problems],
    }


def write(folder: Path, config: CheckConfig, outcomes: list[Checked]) -> None:
    """``check.json`` in ``folder``."""
    (folder / "check.json").write_text(json.dumps(as_json(config, outcomes), indent=1) + "\n")
