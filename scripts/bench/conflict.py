"""Conflict that scheduling leaves: mean share of a unit's primitives that the next unit reads, random and
scheduled.

Primitives are SfM points; a unit reads the points in the frusta of its views (widened by 5 % of the image on
each side for the primitives' footprint). All registered views are scheduled. The last line printed is one
JSON object.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import odin_jax  # noqa: F401 makes `sched` this project's scheduler
from odin_jax.options import parse
from sched.build import make_plan, mean_share, survey
from sched.capture import Capture
from sched.errors import PlanError
from sched.geometry import in_frusta
from sched.order import random_order
from sched.plan import PlanOptions
from sched.plots import save_figure
from scripts.plan import read_capture

DEFAULTS = PlanOptions()
RANDOM_EPOCHS = 32


@dataclass(frozen=True)
class ConflictBench:
    """Conflict that scheduling leaves on a capture."""

    scene: Path  # a capture with cameras and SfM points
    batch: tuple[int, ...] = (2, 4, 8)  # views per unit
    regions: int = DEFAULTS.regions  # logical groups K
    epochs: int = DEFAULTS.epochs  # planned epochs that the mean is taken over
    seed: int = 0  # of the plans and of the random orders
    plot: Path | None = None  # PNG to write


def main(argv: list[str]) -> int:
    """Measure each batch size; 0 on success."""
    config = parse(ConflictBench, argv, "odin bench conflict")
    if not config.batch:
        raise PlanError("--batch names no size; give one or more, e.g. --batch 2 4 8")
    capture = read_capture(config.scene, test_every=0)
    if capture.cameras is None or capture.points is None:
        raise PlanError(
            f"{config.scene}: has tracks only; the conflict is counted in frusta, which need cameras"
        )
    scopes = in_frusta(capture.cameras, capture.points)
    rows = [_measure(capture, scopes, batch, config) for batch in config.batch]
    print(f"{config.scene.name}: {capture.n_views} views, {len(capture.points)} points, K = {config.regions}")
    print(f"{'batch':>6} {'random':>8} {'Eq. 2':>8} {'scheduled':>10} {'group sizes':>14}")
    for row in rows:
        low, high = min(row["group_sizes"]), max(row["group_sizes"])
        print(
            f"{row['batch']:>6} {row['random']:>8.3f} {row['greedy']:>8.3f} {row['scheduled']:>10.3f} "
            f"{f'{low}–{high}':>14}"
        )
    if config.plot is not None:
        _plot(config.plot, config.scene.name, rows)
    print(json.dumps({"scene": config.scene.name, "rows": rows}))
    return 0


def _measure(capture: Capture, scopes: np.ndarray, batch: int, config: ConflictBench) -> dict:
    options = PlanOptions(batch=batch, regions=config.regions, epochs=config.epochs, seed=config.seed)
    options.check()
    known = survey(capture, options)
    plan = make_plan(capture, options, known=known)
    greedy = make_plan(capture, replace(options, refine_sweeps=0), known=known)
    chance = random_order(capture.n_views, batch, RANDOM_EPOCHS, config.seed)
    return {
        "batch": batch,
        "random": round(mean_share(scopes, chance.units), 4),
        "scheduled": round(mean_share(scopes, plan.units), 4),
        "greedy": round(mean_share(scopes, greedy.units), 4),
        "group_sizes": np.bincount(plan.labels).tolist(),
    }


def _plot(path: Path, name: str, rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    at = np.arange(len(rows))
    for i, (key, label) in enumerate(
        (
            ("random", "random order"),
            ("greedy", "scheduled by Eq. 2 on tracks"),
            ("scheduled", "and refined on frusta"),
        )
    ):
        bars = ax.bar(at + 0.27 * (i - 1), [row[key] for row in rows], 0.25, label=label)
        ax.bar_label(bars, fmt="%.2f", fontsize=8)
    ax.set_xticks(at, [f"B = {row['batch']}" for row in rows])
    ax.set(
        ylim=(0, 1.12),
        ylabel="mean share of a unit's rows that the next unit reads",
        title=f"{name}: conflict between neighbouring units",
    )
    ax.legend(loc="upper center", ncols=3, fontsize=8)
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
