"""Compile the programs of a training for a cluster of GPUs, and say whether exchanges overlap and memory suffices.

No GPU is needed, but jax's CUDA wheels are (docs/gpu.md). Exit code 1 where something is wrong.
"""

from __future__ import annotations

import sys

from odin_jax.gpu import cluster
from odin_jax.gpu.check import CheckConfig, check, largest, usable, validate


def main(config: CheckConfig) -> int:
    """Exit code: 0 when all is well, 1 with the reasons on stderr when not."""
    validate(config)
    cluster.prepare()
    from rich.console import Console

    from odin_jax.gpu import report

    console = Console()
    if config.out:
        config.out.mkdir(parents=True, exist_ok=True)
    if config.largest:
        for optimizer in ("adam", "sparse_adam"):
            rows, peak = largest(config, optimizer)
            console.print(f"{optimizer}: {rows:,} rows fit, {peak / 1e9:.1f} of {usable(config.device) / 1e9:.1f} GB")
        return 0
    outcomes = [check(config, exchange) for exchange in config.exchange]
    report.show(config, outcomes, console)
    if config.out:
        report.write(config.out, config, outcomes)
    problems = [text for outcome in outcomes for text in outcome.problems]
    for text in problems:
        print(f"gpu-check: {text}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    from odin_jax.cli import main as odin

    odin(["gpu-check", *sys.argv[1:]])
