"""Schedule the views of a capture ahead of time and write the plan as JSON."""

from __future__ import annotations

import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import odin_jax  # noqa: F401 makes `sched` this project's scheduler
from odin_jax.planning import training_capture
from sched.build import Survey, make_plan, survey
from sched.capture import Capture, load_tracks
from sched.cluster import Cluster
from sched.errors import PlanError
from sched.phases import NOMINAL, PhaseProfile, load_profile
from sched.plan import Plan, PlanOptions
from sched.plan_file import save_plan
from sched.simulate import Scopes, Timeline, simulate
from sched.windows import StructuralRule
from splat.scene.load import load_scene

DEFAULTS = PlanOptions()


@dataclass(frozen=True)
class PlanConfig:
    """Schedule the views of a capture ahead of time and write the plan as JSON."""

    scene: Path  # a capture, or .npz with view_ptr and point_ids alone
    out: Path = Path("plan.json")  # plan file to write
    batch: int = DEFAULTS.batch  # views per task unit, over all ranks
    regions: int = DEFAULTS.regions  # logical groups K
    top_k: int = DEFAULTS.top_k  # neighbours retained per view in the locality graph
    track_cap: float = DEFAULTS.track_cap  # percentile of track length above which a track is thinned
    epochs: int = DEFAULTS.epochs  # epochs with an order of their own; a longer run repeats them
    seed: int = DEFAULTS.seed  # of everything random in the plan
    graph: str = DEFAULTS.graph  # locality graph: tracks, geometry or none
    cohesion: float = DEFAULTS.cohesion  # weight of coupling within a unit against Eq. 2; 0 is Eq. 2 alone
    refine_sweeps: int = DEFAULTS.refine_sweeps  # rounds of local search per epoch; 0 is none
    coupling_limit: float = DEFAULTS.coupling_limit  # Jaccard similarity above which a window is blocking
    memory_gb: float | None = (
        DEFAULTS.memory_gb
    )  # for two units in flight per rank, 10⁹ bytes; None: no limit
    profile: Path | None = None  # measured phase profile (JSON); None: a nominal one
    structural: tuple[
        str, ...
    ] = ()  # structural events as EVENT:FIRST:LAST:EVERY in steps, e.g. densify:500:15000:100
    without: tuple[str, ...] = DEFAULTS.without  # ablation: lp, sds, sas, dds, das, hogwild
    test_every: int = 8  # every n-th photo is a test view and not planned; 0: none
    images: str | None = None  # folder of photos inside the scene; None: images, else input
    ranks: int = DEFAULTS.ranks  # ranks that share a unit's views
    hosts: int = 1  # hosts that the ranks are spread over, for the simulated timeline
    gbps: float = 160.0  # Gbit/s of each host's network port, for the simulated timeline
    plot: Path | None = None  # folder for PNGs: locality graph, coupling matrix, simulated timeline


def main(config: PlanConfig) -> None:
    """Write the plan and print what it is made of. Raises UserError or PlanError with one line for bad
    input.
    """
    capture = read_capture(config.scene, config.test_every, config.images)
    profile = NOMINAL if config.profile is None else load_profile(config.profile)
    options = PlanOptions(**{name: getattr(config, name) for name in vars(DEFAULTS)})
    options.check()
    if config.hosts < 1 or config.ranks % config.hosts:
        raise PlanError(f"--ranks {config.ranks} cannot be spread evenly over --hosts {config.hosts}")
    if not config.gbps > 0:
        raise PlanError(f"--gbps must be above 0, not {config.gbps}")
    start = time.perf_counter()
    known = survey(capture, options)
    graph_s = time.perf_counter() - start
    cluster = Cluster(config.hosts, config.ranks // config.hosts, inter_bytes_per_s=config.gbps * 1e9 / 8)
    plan = make_plan(
        capture, options, profile=profile, structural=_rules(config.structural), cluster=cluster, known=known
    )
    compile_s = time.perf_counter() - start - graph_s
    save_plan(plan, config.out)
    timelines = _simulate(plan, known, profile, cluster)
    console = Console()
    console.print(_summary(plan, graph_s, compile_s))
    console.print(_windows(plan))
    if timelines:
        console.print(
            _simulated(timelines, config, "nominal" if config.profile is None else config.profile.name)
        )
    for line in plan.warnings:
        console.print(f"note: {line}", style="yellow", soft_wrap=True)
    console.print(f"wrote {config.out}", soft_wrap=True)
    if config.plot is not None:
        for path in _plot(config.plot, plan, known, capture, timelines, config):
            console.print(f"wrote {path}", soft_wrap=True)


def read_capture(path: Path, test_every: int, images: str | None = None) -> Capture:
    """The training views of a scene, or every view of an ``.npz`` that has tracks only.

    ``images`` is the folder of photos inside a COLMAP scene; None: the usual ones.
    """
    if path.suffix == ".npz" and path.is_file():
        try:
            with np.load(path) as data:
                tracks_only = "head" not in data
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise PlanError(f"{path}: cannot be read as .npz ({error}); copy it again") from error
        if tracks_only:
            return load_tracks(path)
    return training_capture(load_scene(path, test_every=test_every, images=images))


def _rules(texts: tuple[str, ...]) -> tuple[StructuralRule, ...]:
    rules = []
    for text in texts:
        name, *numbers = text.split(":")
        if (
            len(numbers) != 3
            or not all(number.isdigit() for number in numbers)
            or numbers[2].strip("0") == ""
        ):
            raise PlanError(
                f"--structural {text!r} must be EVENT:FIRST:LAST:EVERY, e.g. densify:500:15000:100"
            )
        rules.append(StructuralRule(name, *map(int, numbers)))
    return tuple(rules)


def _simulate(plan: Plan, known: Survey, profile: PhaseProfile, cluster: Cluster) -> list[Timeline]:
    if known.scopes is None:
        return []
    scopes = Scopes(known.scopes, known.scopes, known.n_sampled, profile.rows / known.n_sampled)
    dds = not plan.options.leaves_out("dds")
    return [
        simulate(plan.units, plan.windows, scopes, profile, cluster, path=path, dds=dds)
        for path in ("sync", "quality")
    ]


def _summary(plan: Plan, graph_s: float, compile_s: float) -> Table:
    stats, n = plan.stats, plan.units_per_epoch
    sizes = np.bincount(plan.labels)
    rows = [
        ("training views", f"{len(plan.views)}, {stats.unseen_views} of them without tracks"),
        ("edges", f"{stats.edges}, at most {plan.options.top_k} chosen by each view"),
        ("groups", f"{len(sizes)} of {sizes.min()} to {sizes.max()} views"),
        ("units", f"{n} of {plan.options.batch} views per epoch, {len(plan.units) // n} epochs planned"),
        ("mean coupling of neighbours", f"{stats.coupling:.4f}, in random order {stats.random_coupling:.4f}"),
        (
            "mean share of rows the next unit reads",
            f"{stats.share:.3f}, in random order {stats.random_share:.3f}",
        ),
        ("graph construction", f"{graph_s:.3f} s"),
        ("schedule compilation", f"{compile_s:.3f} s"),
    ]
    table = Table(title="Plan", show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _windows(plan: Plan) -> Table:
    table = Table(
        "window", "reason", "count", "coupling", "expected overlap", title="Windows", title_justify="left"
    )
    reasons = [window.reason for window in plan.windows]
    for reason in sorted(set(reasons)):
        mine = [window for window in plan.windows if window.reason == reason]
        table.add_row(
            "blocking" if mine[0].blocking else "candidate",
            reason,
            str(len(mine)),
            f"{np.mean([w.coupling for w in mine]):.4f}",
            f"{1e3 * np.mean([w.seconds for w in mine]):.1f} ms",
        )
    for rule in plan.structural:
        table.add_row(
            "blocking",
            f"structural: {rule.event}",
            f"every {rule.every} steps",
            f"steps {rule.first}–{rule.last}",
            "",
        )
    return table


def _simulated(timelines: list[Timeline], config: PlanConfig, profile: str) -> Table:
    title = (
        f"Simulated: {config.ranks} ranks on {config.hosts} hosts, {config.gbps:g} Gbit/s, profile {profile}"
    )
    table = Table(
        "path", "views/s", "exposed wait per rank", "idle, least to most", title=title, title_justify="left"
    )
    for line in timelines:
        table.add_row(
            line.path,
            f"{line.samples_per_s:.3g}",
            f"{line.exposed_s.mean():.3g} s of {line.seconds:.4g} s",
            f"{line.idle_share.min():.1%} to {line.idle_share.max():.1%}",
        )
    return table


def _plot(
    folder: Path, plan: Plan, known: Survey, capture: Capture, timelines: list[Timeline], config: PlanConfig
) -> list[Path]:
    from sched.plots import plot_coupling, plot_graph, plot_timeline

    paths = [folder / "coupling.png"]
    plot_coupling(paths[0], plan, known.rlg)
    if capture.cameras is not None:
        paths.append(folder / "graph.png")
        plot_graph(paths[-1], plan, known.rlg, capture.cameras.centres)
    if timelines:
        paths.append(folder / "timeline.png")
        plot_timeline(paths[-1], timelines, config.ranks)
    return paths


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["plan", *sys.argv[1:]])
