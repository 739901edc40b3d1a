"""Pictures of a plan. matplotlib is imported only when one is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sched.errors import PlanError
from sched.plan import Plan
from sched.rlg import Rlg
from sched.simulate import Span, Timeline

DRAWN_EDGES = 4000
BINS = 512
PHASE_COLOURS = {
    "scope": "#b7b7b7",
    "preprocess": "#9ecae1",
    "render": "#3182bd",
    "backward": "#08519c",
    "update": "#74c476",
    "exchange": "#e6550d",
    "urgent geometry": "#d62728",
    "urgent colour": "#ff9896",
    "rest": "#fdae6b",
}


def _figure(width: float, height: float, columns: int = 1):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")


def save_figure(figure, path: Path) -> None:
    """Write a figure as PNG and close it. Raises PlanError when the file cannot be written."""
    from matplotlib import pyplot

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise PlanError(f"--plot: {path} cannot be written ({error.strerror}); choose another place") from error
    pyplot.close(figure)


def plot_graph(path: Path, plan: Plan, rlg: Rlg, centres: np.ndarray) -> None:
    """The locality graph over camera positions [V, 3] seen along their thinnest direction, coloured by
    group.
    """
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap

    centred = centres - centres.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    place = centred @ axes.T
    edges = rlg.weights.tocoo()
    upper = np.flatnonzero(edges.row < edges.col)
    upper = upper[np.argsort(edges.data[upper])][-DRAWN_EDGES:]
    figure, ax = _figure(8.5, 6.5)
    lines = LineCollection(
        [place[[edges.row[i], edges.col[i]]] for i in upper],
        array=edges.data[upper],
        cmap=ListedColormap(colormaps["Greys"](np.linspace(0.25, 1, 256))),
        linewidths=0.4 + 2 * edges.data[upper],
        clim=(0, max(float(edges.data.max(initial=0)), 0.1)),
        zorder=1,
    )
    ax.add_collection(lines)
    for group in range(plan.labels.max() + 1):
        mine = plan.labels == group
        ax.scatter(
            *place[mine].T,
            s=36,
            color=f"C{group % 10}",
            edgecolors="white",
            linewidths=0.5,
            zorder=2,
            label=f"group {group}: {int(mine.sum())} views",
        )
    figure.colorbar(lines, ax=ax, shrink=0.7, label="coupling w (Jaccard similarity of tracks)")
    ax.set(
        xlabel="camera position, first principal axis (world units)",
        aspect="equal",
        ylabel="second principal axis (world units)",
        title=f"Locality graph: {len(upper)} of {plan.stats.edges} edges drawn, the strongest",
    )
    ax.legend(loc="best", fontsize=8)
    save_figure(figure, path)


def plot_coupling(path: Path, plan: Plan, rlg: Rlg) -> None:
    """Largest coupling between the views at two places of the order: by name, and by the first epoch's
    plan.
    """
    from matplotlib.patches import Rectangle

    first = plan.units[: plan.units_per_epoch]
    _, at_first = np.unique(first.ravel(), return_index=True)
    fresh = np.sort(at_first)  # places of the views that are no repeats
    ends = np.searchsorted(fresh, np.arange(len(first) + 1) * first.shape[1])
    orders = (
        ("views by name", np.arange(rlg.n_views)),
        ("first epoch of the plan; outlined: each unit against the next", first.ravel()[fresh]),
    )
    figure, axes = _figure(13, 5.8, 2)
    edges = rlg.weights.tocoo()
    size = min(rlg.n_views, BINS)
    top = max(float(edges.data.max(initial=0)), 1e-3)
    for ax, (title, order) in zip(axes, orders, strict=True):
        at = np.empty(rlg.n_views, np.int64)
        at[order] = np.arange(rlg.n_views) * size // rlg.n_views
        image = np.zeros((size, size))
        np.maximum.at(image, (at[edges.row], at[edges.col]), edges.data)
        drawn = ax.imshow(
            image,
            cmap="magma_r",
            vmin=0,
            vmax=top,
            interpolation="nearest",
            extent=(0, rlg.n_views, rlg.n_views, 0),
        )
        ax.set(title=title, xlabel="place of the view in the order", ylabel="place of the view in the order")
    for start, middle, end in zip(ends, ends[1:], ends[2:], strict=False):
        for corner, sides in (
            ((middle, start), (end - middle, middle - start)),
            ((start, middle), (middle - start, end - middle)),
        ):
            axes[1].add_patch(Rectangle(corner, *sides, fill=False, edgecolor="#1f77b4", linewidth=0.8))
    figure.colorbar(drawn, ax=list(axes), label="coupling w (Jaccard similarity of tracks)")
    figure.suptitle(f"Coupling matrix, {plan.options.batch} views per unit")
    save_figure(figure, path)


def plot_timeline(path: Path, timelines: list[Timeline], ranks: int, shown_units: int = 8) -> None:
    """Lanes of the first ``shown_units`` units of several simulated runs, one above the other, on one time
    axis.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    parts = [[span for span in t.spans if span.unit < shown_units] for t in timelines]
    end = max(span.end for spans in parts for span in spans)
    lanes = ranks + 1
    figure, axes = pyplot.subplots(
        len(timelines),
        1,
        figsize=(14, 1.2 + 0.34 * lanes * len(timelines) + len(timelines)),
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for ax, timeline, spans in zip(axes[:, 0], timelines, parts, strict=True):
        for span in spans:
            _bar(ax, span, ranks)
        ax.set_yticks(range(lanes), [f"rank {rank}" for rank in range(ranks)] + ["communication"])
        ax.set_ylim(lanes - 0.4, -0.6)
        ax.set_xlim(0, end * 1.01)
        ax.set_title(
            f"{timeline.path}: {timeline.samples_per_s:.3g} views/s over the whole plan, exposed wait "
            f"{timeline.exposed_s.mean():.3g} s per rank of {timeline.seconds:.4g} s",
            fontsize=10,
        )
    axes[-1, 0].set_xlabel(f"simulated time (s), first {shown_units} units; numbers are units")
    used = {span.phase for spans in parts for span in spans}
    figure.legend(
        handles=[Patch(color=c, label=p) for p, c in PHASE_COLOURS.items() if p in used],
        loc="outside right upper",
        fontsize=9,
    )
    save_figure(figure, path)


def _bar(ax, span: Span, ranks: int) -> None:
    lane = ranks if span.rank < 0 else span.rank
    ax.barh(
        lane,
        span.end - span.start,
        left=span.start,
        height=0.8,
        color=PHASE_COLOURS.get(span.phase, "#636363"),
        edgecolor="white",
        linewidth=0.3,
    )
    if span.phase in ("backward", "exchange", "rest"):
        ax.text(
            (span.start + span.end) / 2,
            lane,
            str(span.unit),
            ha="center",
            va="center",
            fontsize=6,
            color="white" if span.phase == "backward" else "black",
            clip_on=True,
        )
