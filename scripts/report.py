"""Print the records of runs side by side, and explain where runs on several ranks spent their time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from odin_jax import figures, growth
from odin_jax.explain import Explained, Windows, compare, decisions, read_run
from odin_jax.runs import RunFolder
from splat.errors import UserError

if TYPE_CHECKING:
    from odin_jax.locality import ViewShares

MEASURES = (
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
    """Print the records of runs side by side, and explain where runs on several ranks spent their time."""

    dirs: Annotated[tuple[Path, ...], tyro.conf.Positional]  # folders written by `odin train --out`
    baseline: Path | None = None  # a run of --path sync on the same scene, batch and ranks, to compare with
    from_step: int = 1  # windows before this step are left out; the first ones hold compilation
    locality: int = 0  # training views to measure: which share of the rows each may touch and updates; takes a while


def main(config: ReportConfig) -> None:
    """One column per run, DIR/report/growth.png of each, then tables and more pictures of each run on several ranks.

    Raises UserError when a folder has no record or holds something damaged, or when runs cannot be compared.
    """
    if not config.dirs:
        raise UserError("no run is named; give one or more folders written by `odin train --out`")
    if config.from_step < 1:
        raise UserError(f"--from-step {config.from_step}: must be at least 1")
    if config.locality < 0:
        raise UserError(f"--locality {config.locality}: must be 0 or a number of views")
    runs = [read_run(path, config.from_step) for path in config.dirs]
    baseline = read_run(config.baseline, config.from_step) if config.baseline else None
    compared = [compare(run, baseline) for run in runs] if baseline else [None] * len(runs)
    console = Console()
    console.print(_records([*runs, *([baseline] if baseline else [])]))
    for run, numbers in zip(runs, compared, strict=True):
        if config.locality:
            from odin_jax.locality import view_shares  # needs JAX, which the rest of a report does without

            shares = view_shares(run.path, config.locality)
            console.print(_locality(shares))
            _say(console, f"wrote {figures.draw_locality(run.path / 'report', shares)}")
        for path in growth.draw(run.path / "report", RunFolder(run.path)):
            _say(console, f"wrote {path}")
        if run.windows is None:
            _say(console, f"{run.path}: no windows, the run had one device and waited for nobody")
            continue
        _say(console, "\n" + _window_line(run, run.windows, config.from_step))
        for table in (_decisions(run.windows), _waits(run.windows), _bytes(run.windows), _rows(run.windows)):
            console.print(table)
        _say(console, _rank_line(run, run.windows))
        if baseline and numbers:
            _say(console, f"against {baseline.name}: hidden share {numbers.hidden_share:.1%}, "
                          f"speed-up {numbers.speed_up:.3f}×")
        for path in figures.draw(run.path / "report", run, baseline):
            _say(console, f"wrote {path}")


def _records(runs: list[Explained]) -> Table:
    """A column per run, so that the names of folders stay whole."""
    table = Table("run", *(Column(escape(str(run.path)), overflow="fold", justify="right") for run in runs))
    for run in runs:
        for name, _ in MEASURES:
            if not isinstance(run.record.get(name), int | float | None):
                raise UserError(f"{RunFolder(run.path).record}: {name} must be a number; restore it or train again")
    for name, style in MEASURES:
        values = [run.record.get(name) for run in runs]
        table.add_row(name, *("–" if value is None else style.format(value) for value in values))
    return table


def _decisions(windows: Windows) -> Table:
    """Decisions with their reasons and counts."""
    table = Table("decision", "reason", "windows", "share")
    for action, reason, count in decisions(windows):
        table.add_row(action, escape(reason), f"{count:,}", f"{count / len(windows.step):.1%}")
    return table


def _waits(windows: Windows) -> Table:
    """Seconds of the first process's compute lane: computing, waiting for each part, neither."""
    table = Table("time of the first process", "seconds", "share", "ms per window", "most, ms")

    def add(name: str, seconds: np.ndarray) -> None:
        table.add_row(escape(name), f"{seconds.sum():.2f}", f"{seconds.sum() / max(windows.wall.sum(), 1e-9):.1%}",
                      f"{1e3 * seconds.mean():.2f}", f"{1e3 * seconds.max():.1f}")

    for name, seconds in windows.compute.items():
        add(name, seconds)
    table.add_section()
    for name, seconds in windows.waits.items():
        add(f"wait: {name}", seconds)
    add("exposed: all waits", windows.exposed)
    add("residual: neither", windows.residual)
    table.add_section()
    add("wall", windows.wall)
    add("communication not waited for", windows.hidden)
    return table


def _bytes(windows: Windows) -> Table:
    """Bytes and communication seconds by part."""
    table = Table("part sent", "MB per rank", "share", "MB per window", "lane busy, s")
    total = max(sum(float(sent.sum()) for sent in windows.sent.values()), 1e-9)
    for name in dict.fromkeys([*windows.sent, *windows.comm]):
        sent, busy = (parts.get(name, np.zeros(1)) for parts in (windows.sent, windows.comm))
        table.add_row(escape(name), f"{sent.sum() / 1e6:.2f}", f"{sent.sum() / total:.1%}",
                      f"{sent.sum() / 1e6 / len(windows.step):.3f}", f"{busy.sum():.2f}")
    return table


def _rows(windows: Windows) -> Table:
    """Shares of rows in the scopes of whole units."""
    table = Table("rows of a unit", "mean", "median", "least", "most")
    rows = windows.rows
    active = np.where(rows["active"] > 0, rows["active"], np.nan)
    for name, shares in (
        ("geometry: may be read / alive", windows.geometry), ("computational: updated / alive", windows.computational),
        ("published first / updated", rows["urgent"] / active), ("read late / updated", rows["delayed"] / active),
    ):
        known = shares[np.isfinite(shares)]
        values = (known.mean(), np.median(known), known.min(), known.max()) if len(known) else ()
        table.add_row(name, *([f"{value:.1%}" for value in values] or ["–"] * 4))
    return table


def _locality(shares: ViewShares) -> Table:
    """Shares of rows that single views touch and update (paper Fig. 3)."""
    table = Table(f"rows of a view after step {shares.step:,}", "mean", "median", "least", "most")
    rows = {"geometry: may be read": shares.geometry, "computational: has a gradient": shares.computation,
            f"importance: above {shares.tau:g} × the mean": shares.importance}
    for name, values in rows.items():
        spread = (values.mean(), np.median(values), values.min(), values.max())
        table.add_row(name, *(f"{value:.1%}" for value in spread))
    return table


def _window_line(run: Explained, windows: Windows, from_step: int) -> str:
    batch = run.record.get("batch")
    speed = f", {windows.samples_per_s(batch):.2f} samples/s" if isinstance(batch, int) else ""
    line = (f"{run.path}: {len(windows.step):,} windows after steps {windows.step[0]:,} to {windows.step[-1]:,} on "
            f"{windows.seconds.shape[1]} ranks{speed}")
    steps = run.record.get("iterations")
    alone = steps - from_step + 1 - len(windows.step) if isinstance(steps, int) else 0
    if alone <= 0:
        return line
    return line + f"\n{alone:,} of its {steps:,} steps ran on one device: they have no window and are not shown below"


def _rank_line(run: Explained, windows: Windows) -> str:
    idle, skew, processes = windows.idle, windows.skew, run.record.get("processes")
    shared = isinstance(processes, list) and len(processes) < len(idle)
    return (f"outside forward and backward: {idle.min():.1%} to {idle.max():.1%} of a rank's time, of it waiting for "
            f"slower ranks {skew.min():.1%} to {skew.max():.1%}"
            + (" (ranks of one process are timed together)" if shared else ""))


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["report", *sys.argv[1:]])
