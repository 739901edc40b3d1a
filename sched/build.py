"""From a capture to a plan: graph construction, then LP, SDS, refinement and SAS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sched.capture import Capture
from sched.cluster import Cluster
from sched.errors import PlanError
from sched.geometry import geometry_rlg, in_frusta
from sched.order import Order, random_order, scheduled_order
from sched.partition import Partition, embed, partition
from sched.phases import NOMINAL, PhaseProfile, phase_graph
from sched.plan import Plan, PlanOptions, PlanStats
from sched.refine import refine, sample_rows
from sched.rlg import Rlg, empty_rlg, track_rlg
from sched.rowsets import shared, union
from sched.windows import StructuralRule, WindowRules, plan_windows, unit_coupling


@dataclass(frozen=True)
class Survey:
    """A capture with what is derived from it before scheduling."""

    rlg: Rlg
    scopes: (
        np.ndarray | None
    )  # [V, W] packed sampled SfM points in each frustum; None without cameras or points
    n_sampled: int  # points behind ``scopes``


def survey(capture: Capture, options: PlanOptions) -> Survey:
    """Graph construction: the locality graph and, where cameras and points are known, the views' geometric
    scopes.
    """
    scopes, sampled = None, 0
    if capture.cameras is not None and capture.points is not None and len(capture.points):
        rows = sample_rows(len(capture.points), options.seed)
        scopes, sampled = in_frusta(capture.cameras, capture.points[rows]), len(rows)
    if options.graph == "none":
        return Survey(empty_rlg(capture.n_views), scopes, sampled)
    if options.graph == "geometry":
        if capture.cameras is None or capture.points is None or not len(capture.points):
            raise PlanError("--graph geometry needs cameras and SfM points; this capture has tracks only")
        return Survey(geometry_rlg(capture.cameras, capture.points, top_k=options.top_k), scopes, sampled)
    rlg = track_rlg(capture, top_k=options.top_k, cap_percentile=options.track_cap)
    return Survey(rlg, scopes, sampled)


def make_plan(
    capture: Capture,
    options: PlanOptions | None = None,
    *,
    profile: PhaseProfile = NOMINAL,
    structural: tuple[StructuralRule, ...] = (),
    cluster: Cluster | None = None,
    known: Survey | None = None,
) -> Plan:
    """The plan for a capture. The same arguments give the same plan. Raises ``PlanError`` for bad input.

    ``known`` is ``survey(capture, options)`` if it is at hand; ``structural`` are the pipeline's structural
    events; with a ``cluster`` the expected length of windows includes the transfer.
    """
    options = options or PlanOptions()
    options.check()
    scene = known or survey(capture, options)
    regions = 1 if options.leaves_out("lp") else options.regions
    place = embed(scene.rlg, options.seed)
    groups = partition(scene.rlg, regions, options.batch, place)
    order = _order(scene, groups, place, options)
    hogwild = "hogwild" in options.without
    memory = float("inf") if options.memory_gb is None or hogwild else options.memory_gb * 1e9
    rules = WindowRules(
        float("inf") if hogwild else options.coupling_limit,
        memory,
        options.ranks,
        options.leaves_out("sas"),
    )
    windows = plan_windows(
        order.units, scene.rlg, profile, rules, scopes=scene.scopes, n_points=scene.n_sampled, cluster=cluster
    )
    graph = phase_graph(profile.pipeline, profile.regime)
    return Plan(
        options,
        capture.digest(),
        capture.names,
        groups.labels,
        groups.coupling,
        order.units,
        order.groups,
        order.units_per_epoch,
        order.n_repeats,
        order.repeat_unit,
        windows,
        structural,
        graph.launch,
        graph.observes,
        _stats(scene, order, windows, options),
        tuple(_warnings(capture, scene, groups, order, options)),
    )


def _order(scene: Survey, groups: Partition, place: np.ndarray, options: PlanOptions) -> Order:
    n_views = scene.rlg.n_views
    if options.leaves_out("sds"):
        return random_order(n_views, options.batch, options.epochs, options.seed)
    order = scheduled_order(
        scene.rlg, groups, options.batch, options.epochs, options.seed, place=place, cohesion=options.cohesion
    )
    if scene.scopes is None or not options.refine_sweeps:
        return order
    return refine(order, scene.scopes, options.refine_sweeps, options.seed)


def mean_share(scopes: np.ndarray, units: np.ndarray) -> float:
    """Mean over the transitions of a sequence of units [n, B] of the share of a unit's rows that the next
    one reads.
    """
    if len(units) < 2:
        return float("nan")
    unions = np.stack([union(scopes[unit]) for unit in units])
    return float(shared(unions[:-1], unions[1:]).mean())


def _stats(scene: Survey, order: Order, windows: tuple, options: PlanOptions) -> PlanStats:
    n_views = scene.rlg.n_views
    epochs = min(options.epochs, max(1, 20_000 // n_views))  # enough windows for a mean
    units = random_order(n_views, options.batch, epochs, options.seed + 1).units
    if len(units) == 1:
        units = np.concatenate([units, units])
    chance = float(unit_coupling(scene.rlg, units[:-1], units[1:]).mean())
    share = (
        (np.nan, np.nan)
        if scene.scopes is None
        else (float(np.mean([w.share for w in windows])), mean_share(scene.scopes, units))
    )
    return PlanStats(
        int(scene.rlg.weights.nnz) // 2,
        int(scene.rlg.unseen.sum()),
        float(np.mean([w.coupling for w in windows])),
        chance,
        *share,
    )


def _warnings(
    capture: Capture, scene: Survey, groups: Partition, order: Order, options: PlanOptions
) -> list[str]:
    lines = []
    wanted = 1 if options.leaves_out("lp") else options.regions
    if groups.n_groups < wanted:
        lines.append(
            f"{wanted} groups asked for, but an epoch has only {order.units_per_epoch} units: "
            f"{groups.n_groups} groups made"
        )
    if scene.rlg.unseen.any() and options.graph != "none":
        first = capture.names[int(scene.rlg.unseen.argmax())]
        lines.append(
            f"{int(scene.rlg.unseen.sum())} views have no tracks (first: {first}); "
            "nothing is known of their coupling, the runtime validates them"
        )
    if order.n_repeats:
        lines.append(
            f"{capture.n_views} views are no multiple of the batch {options.batch}: one unit per epoch "
            f"repeats {order.n_repeats} views"
        )
    return lines
