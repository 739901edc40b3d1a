"""Training over isolated hosts with limited links: how much of the publication each path hides.

``odin bench overlap --scene PATH --hosts 2 --exposed 0.3 --out DIR`` trains the same schedule with every path between
real processes and writes DIR/overlap.json. With ``--exposed`` the links get the rate at which ``sync`` spends that
share of its time waiting for publications; ``--mbit`` gives the rate instead. Linux and root only (see ``hostlab``).
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax.options import parse
from odin_jax.runs import read_json, write_json
from scripts.bench.hostlab import hostlab
from splat.errors import UserError

FAST_MBIT = 10_000.0  # of the calibration: as good as no limit
PATHS = ("sync-dense", "sync", "quality", "throughput")
# Parts of a publication, and of the exchange of mixed parallelism; the other waits are for slower ranks.
PUBLICATION = ("urgent geometry", "urgent colour", "rest", "whole", "urgent", "attributes", "early attributes",
               "late attributes")


@dataclass(frozen=True)
class OverlapConfig:
    """Train over isolated hosts with limited links: how much of the publication each path hides."""

    scene: Path  # capture
    out: Path  # folder for the runs and overlap.json
    hosts: int = 2  # isolated hosts, one process and one core each
    exposed: float | None = 0.3  # share of its time that sync shall wait for publications; sets the rate
    mbit: float | None = None  # rate of each host's link, Mbit/s each way; instead of --exposed
    start: Path | None = None  # run folder whose newest checkpoint all runs start from; None: trained here first
    warmup: int = 600  # optimizer steps of that run, on a fast link
    iterations: int = 60  # steps measured per run, after those
    batch: int = 4  # views per optimizer step
    downscale: float = 2  # divide the photos' sides by this
    repeats: int = 2  # runs of each path, in turn
    paths: tuple[str, ...] = ("sync", "quality", "throughput")  # of sync-dense, sync, quality, throughput
    exchange: str = "psum"  # psum or ordered
    parallel: str = "dp"  # dp or mp
    placement: str = "random"  # of mp: random, spatial or access
    tau: float = 0.2  # of throughput
    timeout_s: float = 3600  # of one run
    skip: int = 8  # first windows left out of the numbers: programs are compiled there


def main(argv: list[str]) -> int:
    """Write overlap.json and print it as the last line. Raises UserError where the lab cannot run."""
    config = parse(OverlapConfig, argv, "odin bench overlap")
    _check(config)
    config.out.mkdir(parents=True, exist_ok=True)
    start = config.start or _warm_up(config)
    mbit = config.mbit or _calibrated(config, start)
    runs: dict[str, list[dict[str, float]]] = {path: [] for path in config.paths}
    for repeat in range(config.repeats):
        for path in config.paths:
            runs[path].append(_measured(config, start, path, mbit, f"{path}-{repeat}"))
            print(f"{path:12s} {json.dumps({k: round(v, 4) for k, v in runs[path][-1].items()})}", flush=True)
    result = _result(config, mbit, runs)
    write_json(config.out / "overlap.json", result)
    print(json.dumps(result))
    return 0


def _check(config: OverlapConfig) -> None:
    unknown = [path for path in config.paths if path not in PATHS]
    if unknown:
        raise UserError(f"--paths {unknown[0]}: must be of {', '.join(PATHS)}")
    if config.mbit is None and not (config.exposed and 0 < config.exposed < 0.95):
        raise UserError(f"--exposed {config.exposed}: must lie between 0 and 0.95, or give --mbit")
    for name in ("hosts", "warmup", "iterations", "batch", "repeats"):
        if getattr(config, name) < 1:
            raise UserError(f"--{name} {getattr(config, name)}: must be at least 1")
    if config.iterations <= config.skip:
        raise UserError(f"--iterations {config.iterations}: must be above --skip {config.skip}")


def _train(config: OverlapConfig, out: Path, mbit: float, steps: int, *options: str) -> None:
    """One training over the hosts, to ``steps`` optimizer steps."""
    args = ["train", "--scene", str(config.scene), "--out", str(out), "--iterations", str(steps), "--batch",
            str(config.batch), "--downscale", str(config.downscale), "--exchange", config.exchange, "--no-lpips",
            "--no-tensorboard", "--test-every", "8", "--checkpoint-every", "1000000", "--parallel", config.parallel,
            "--placement", config.placement, *options]
    with hostlab(config.hosts, mbit) as lab:
        lab.train(args, out.with_name(out.name + "-logs"), config.timeout_s)


def _warm_up(config: OverlapConfig) -> Path:
    """A trained start for all runs: the density control is over, rows and rooms no longer change."""
    out = config.out / "start"
    if not (out / "record.json").exists():
        print(f"training {config.warmup} steps for a common start", flush=True)
        _train(config, out, FAST_MBIT, config.warmup, "--path", "sync")
    return out


def _measured(config: OverlapConfig, start: Path, path: str, mbit: float, name: str) -> dict[str, float]:
    """Train from the common start; medians over the windows of the run."""
    out = config.out / name
    if not (out / "record.json").exists():
        first = read_json(start / "record.json")["iterations"]
        _train(config, out, mbit, first + config.iterations, "--path", path, "--tau", str(config.tau), "--resume",
               str(start), "--gs3d.densify-until", "1")
    return numbers(out, config.skip)


def windows_of(run: Path, skip: int) -> list[dict[str, Any]]:
    """The windows of a run folder without the first ``skip`` and the last, which no unit follows."""
    return [json.loads(line) for line in (run / "windows.jsonl").read_text().splitlines()][skip:-1]


def numbers(run: Path, skip: int) -> dict[str, float]:
    """Seconds per step, by what they went to, and PSNR of a run folder; the first ``skip`` windows are left out.

    ``wait_s`` and ``exposed_share``: for publications; ``ranks_s``: for slower ranks and what all tell each other.
    """
    lines = windows_of(run, skip)
    record = json.loads((run / "record.json").read_text())
    waits = [sum(line["waits_s"].get(part, 0.0) for part in PUBLICATION) for line in lines]
    ranks = [sum(line["waits_s"].values()) - wait for line, wait in zip(lines, waits, strict=True)]
    step = statistics.median(line["wall_s"] for line in lines)
    compute = statistics.median(max(line["seconds"]) for line in lines)
    return {"step_s": step, "compute_s": compute, "wait_s": statistics.median(waits),
            "ranks_s": statistics.median(ranks),
            "exposed_share": sum(waits) / sum(line["wall_s"] for line in lines),
            "sent_mb": statistics.mean(sum(line["sent_bytes"].values()) for line in lines) / 1e6,
            "urgent_share": sum(line["urgent"] for line in lines) / max(sum(line["active"] for line in lines), 1),
            "psnr": record.get("psnr") or math.nan}


def _calibrated(config: OverlapConfig, start: Path) -> float:
    """The rate at which ``sync`` waits the wanted share of its time, from a run on a fast link and one near that rate.

    With c seconds of step beside the waits the share is w/(c + w). What a wait grows by with the seconds per bit is
    first taken as the bytes of a step, then as measured: part of a transfer runs beside other work.
    """
    assert config.exposed is not None
    fast = _measured(config, start, "sync", FAST_MBIT, "calibration")
    mbit = _rate_for(config.exposed, fast, fast, 8 * fast["sent_mb"])
    print(f"calibration: {json.dumps({k: round(v, 4) for k, v in fast.items()})} → {mbit:.1f} Mbit/s", flush=True)
    near = _measured(config, start, "sync", mbit, "calibration-2")
    slope = (near["wait_s"] - fast["wait_s"]) / (1 / mbit - 1 / FAST_MBIT)
    mbit = _rate_for(config.exposed, near, fast, max(slope, 1e-3))
    print(f"calibration: {json.dumps({k: round(v, 4) for k, v in near.items()})} → {mbit:.1f} Mbit/s", flush=True)
    return mbit


def _rate_for(share: float, run: dict[str, float], fast: dict[str, float], slope: float) -> float:
    """Mbit/s at which the waits of a step take ``share`` of it: they are ``slope``/rate longer than on a fast link."""
    wanted = share / (1 - share) * (run["step_s"] - run["wait_s"])
    return slope / max(wanted - fast["wait_s"], 1e-3)


def _result(config: OverlapConfig, mbit: float, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    medians = {path: {name: statistics.median(run[name] for run in several) for name in several[0]}
               for path, several in runs.items()}
    sync = medians.get("sync")
    result: dict[str, Any] = {
        "scene": config.scene.name, "hosts": config.hosts, "batch": config.batch, "mbit": mbit, "runs": runs,
        "samples_per_s": {path: config.batch / run["step_s"] for path, run in medians.items()},
        "exposed_share": {path: run["exposed_share"] for path, run in medians.items()},
        "psnr": {path: run["psnr"] for path, run in medians.items()},
        "config": {name: str(value) for name, value in dataclasses.asdict(config).items()},
    }
    if sync:
        others = {path: run for path, run in medians.items() if path != "sync"}
        result["speedup"] = {path: sync["step_s"] / run["step_s"] for path, run in others.items()}
        result["hidden_share"] = {path: 1 - run["wait_s"] / sync["wait_s"] for path, run in others.items()}
    return result
