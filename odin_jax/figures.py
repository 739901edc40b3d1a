"""Pictures of explained runs. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odin_jax.explain import ACTIONS, Explained, Windows
from splat.errors import UserError
from splat.io.files import atomic_write

if TYPE_CHECKING:
    from odin_jax.locality import ViewShares

BINS = 60  # most columns of the decisions, and points of the running medians
MEDIAN_OF = 8  # steps, at least, behind a point of a running median
DPI = 100
COLOURS = {  # of what the compute lane did and waited for, from the bottom of a stack to its top
    "forward and backward": "#08519c", "window": "#3182bd", "scope": "#6baed6", "update": "#74c476",
    "wait: word": "#9e9ac8", "wait: gate": "#8c6d31", "wait: urgent geometry": "#d62728",
    "wait: urgent colour": "#ff9896", "wait: rest": "#fdae6b", "wait: whole": "#e6550d"}
OTHER = "#7b4173"
RESIDUAL, HIDDEN, EXPOSED = "#bdbdbd", "#31a354", "#e6550d"
ACTION_COLOURS = {"proceed": "#31a354", "partial": "#6baed6", "delayed": "#9e9ac8", "barrier": "#e6550d"}
PICTURES = ("waits.png", "decisions.png", "scopes.png", "idle.png")


def draw(folder: Path, run: Explained, baseline: Explained | None) -> list[Path]:
    """Write all pictures of a run with windows into ``folder``; their paths.

    Raises UserError when the folder cannot be written.
    """
    windows = run.windows
    assert windows is not None
    figures = (plot_waits([one for one in (baseline, run) if one is not None]),
               plot_decisions(windows), plot_scopes(windows), plot_idle(windows))
    return saved(folder, dict(zip(PICTURES, figures, strict=True)))


def saved(folder: Path, pictures: dict[str, Any]) -> list[Path]:
    """Write figures by name into ``folder``; their paths. Raises UserError when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; copy the run to where you may write") from error
    for name, figure in pictures.items():
        with atomic_write(folder / name) as file:
            figure.savefig(file, format="png", dpi=DPI)
    return [folder / name for name in pictures]


def draw_locality(folder: Path, shares: ViewShares) -> Path:
    """Write the shares of rows of single views into ``folder``; the path. Raises UserError where it cannot."""
    return saved(folder, {"locality.png": plot_locality(shares)})[0]


def plot_locality(shares: ViewShares) -> Any:
    """Share of the living rows that single views may touch, update and update by much (paper Fig. 3)."""
    figure, (left, right) = blank(10, 4, 2)
    parts = (("geometry", shares.geometry, "#08519c"), ("computational", shares.computation, "#31a354"),
             (f"importance (τ = {shares.tau:g})", shares.importance, "#d62728"))
    order = np.argsort(-shares.geometry, kind="stable")
    for at, (label, values, colour) in enumerate(parts):
        left.bar_label(left.bar(at, values.mean(), color=colour), fmt="%.2f", fontsize=8)
        right.plot(values[order], ".-", color=colour, label=label)
    left.set_xticks(range(3), [label for label, _, _ in parts])
    left.set(ylabel="share of living rows", ylim=(0, 1.02), title=f"Mean over {len(order)} views, step {shares.step:,}")
    right.set(xlabel="views, most rows first", ylim=(0, 1.02), title="Each view")
    right.legend(fontsize=8)
    return figure


def plot_waits(runs: Sequence[Explained]) -> Any:
    """Where a window's time goes, one bar per run; what stays exposed of the communication (paper Fig. 19)."""
    figure, (left, right) = blank(12, 4.6, 2)
    stacks = [_stack(run.windows) for run in runs if run.windows is not None]
    labels = sorted({label for stack in stacks for label in stack}, key=_height)
    for at, stack in enumerate(stacks):
        bottom = 0.0
        for label in labels:
            left.bar(at, stack.get(label, 0.0), 0.6, bottom=bottom, color=_colour(label),
                     label=label if at == 0 else None)
            bottom += stack.get(label, 0.0)
    for at, run in enumerate(runs):
        assert run.windows is not None
        bars = (("exposed wait", run.windows.exposed, EXPOSED),
                ("communication not waited for", run.windows.hidden, HIDDEN),
                ("residual", run.windows.residual, RESIDUAL))
        for place, (label, seconds, colour) in enumerate(bars):
            bar = right.bar(at + 0.26 * (place - 1), 1e3 * seconds.mean(), 0.25, color=colour,
                            label=label if at == 0 else None)
            right.bar_label(bar, fmt="%.3g", fontsize=8)
    left.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    titles = ("compute lane of the first process", "communication: waited for or not")
    for ax, title in zip((left, right), titles, strict=True):
        ax.set(title=title, ylabel="mean per window (ms)")
        ax.set_xticks(range(len(runs)), [run.name for run in runs])
        ax.set_xlim(-0.7, len(runs) - 0.3)
    return figure


def plot_decisions(windows: Windows) -> Any:
    """Share of each decision among the windows, over training."""
    figure, (ax,) = blank(9, 4, 1)
    edges, bins = _bins(windows.step, 1)
    total = np.maximum(np.bincount(bins, minlength=len(edges) - 1), 1)
    bottom = np.zeros(len(edges) - 1)
    for action in ACTIONS:
        taken = windows.action == action
        share = np.bincount(bins[taken], minlength=len(bottom)) / total
        label = f"{action}: {int(taken.sum())}"
        ax.bar(edges[:-1], share, np.diff(edges), bottom, align="edge", color=ACTION_COLOURS[action], label=label)
        bottom += share
    ax.set(xlabel="step", ylabel="share of windows", xlim=(edges[0], edges[-1]), ylim=(0, 1),
           title="Decisions at the validation points")
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def plot_scopes(windows: Windows) -> Any:
    """Share of the living rows in the scopes of whole units, over training (after paper Fig. 3)."""
    figure, (ax,) = blank(9, 4, 1)
    edges, bins = _bins(windows.step, MEDIAN_OF)
    lines = (("geometry: the next unit may read", windows.geometry, "#08519c"),
             ("computational: the unit updated", windows.computational, "#31a354"),
             ("published before the next unit began", windows.rows["urgent"] / np.maximum(windows.rows["alive"], 1),
              "#d62728"))
    for label, share, colour in lines:
        known = np.isfinite(share)
        filled = np.unique(bins[known])
        medians = [np.median(share[known & (bins == at)]) for at in filled]
        ax.scatter(windows.step[known], share[known], s=9, color=colour, alpha=0.35, linewidths=0)
        ax.plot((edges[filled] + edges[filled + 1]) / 2, medians, color=colour, label=label)
    ax.set(xlabel="step", ylabel="share of living rows", ylim=(0, 1.02),
           title="Scopes of units: every window, and the median")
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def plot_idle(windows: Windows) -> Any:
    """Share of time that each rank stood idle (paper Fig. 1 bottom): slower ranks, and all else but its views."""
    figure, (ax,) = blank(max(5.0, 3 + 0.5 * windows.seconds.shape[1]), 4, 1)
    ranks = np.arange(windows.seconds.shape[1])
    skew, idle = windows.skew, windows.idle
    ax.bar(ranks, 100 * skew, color=EXPOSED, label="waiting for slower ranks")
    top = ax.bar(ranks, 100 * (idle - skew), bottom=100 * skew, color=RESIDUAL,
                 label="exchange, updates, host work")
    ax.bar_label(top, labels=[f"{share:.0%}" for share in idle], fontsize=8)
    ax.set(xlabel="rank", ylabel="share of time (%)", title="Outside forward and backward", ylim=(0, 105))
    ax.set_xticks(ranks)
    ax.legend(fontsize=8)
    return figure


def _stack(windows: Windows) -> dict[str, float]:
    """Mean milliseconds per window of all that makes up the wall time."""
    parts = {**windows.compute, **{f"wait: {name}": seconds for name, seconds in windows.waits.items()},
             "residual": windows.residual}
    return {label: 1e3 * float(seconds.mean()) for label, seconds in parts.items()}


def _height(label: str) -> tuple[int, str]:
    """Sorts the parts of a stack: those of COLOURS, others by name, and the residual on top."""
    known = [*COLOURS]
    return (known.index(label) if label in COLOURS else len(known) + (label == "residual"), label)


def _colour(label: str) -> str:
    return RESIDUAL if label == "residual" else COLOURS.get(label, OTHER)


def _bins(step: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges [m + 1] of at most BINS equal ranges of ``least`` or more steps, and the range of each step [n]."""
    first, last = int(step.min()), int(step.max()) + 1
    edges = np.linspace(first, last, max(1, min(BINS, (last - first) // least)) + 1)
    return edges, np.clip(np.searchsorted(edges, step, side="right") - 1, 0, len(edges) - 2)


def blank(width: float, height: float, columns: int) -> tuple[Any, Any]:
    """A figure of so many inches and its axes [columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]
