"""Time the planner on synthetic city captures: graph construction and schedule compilation from track
metadata.

Every size runs in a process of its own on one core; the generator is not timed. The last line printed is one
JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import odin_jax  # noqa: F401 makes `sched` this project's scheduler
from odin_jax.options import parse
from sched.errors import PlanError

SWEEP = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
PAPER = dict(zip(SWEEP, (0.013, 0.028, 0.161, 0.464, 1.673, 9.450), strict=True))  # Table 3, Xeon 6462C


@dataclass(frozen=True)
class AotBench:
    """Time the planner on synthetic city captures."""

    images: tuple[int, ...] = SWEEP  # sizes of the captures, in views
    observations: int = 100  # tracks per view
    batch: int = 8  # views per unit
    repeats: int = 5  # timed runs per size; the fastest is reported
    plot: Path | None = None  # PNG to write
    worker: bool = False  # measure the one size here and now (what the sweep starts for each size)


def main(argv: list[str]) -> int:
    """Run the sweep; 0 on success."""
    config = parse(AotBench, argv, "odin bench aot")
    if min((*config.images, config.observations, config.repeats, config.batch), default=0) < 1 or not config.images:
        raise PlanError(f"--images {' '.join(map(str, config.images))} --observations {config.observations} --batch "
                        f"{config.batch} --repeats {config.repeats}: all must be at least 1")
    if config.batch > min(config.images):
        raise PlanError(f"--batch {config.batch} is larger than --images {min(config.images)}; lower it")
    if config.worker:
        print(json.dumps(_measure(config)))
        return 0
    rows = [_in_process(config, images) for images in config.images]
    heads = ("images", "obs", "seconds", "graph", "schedule", "cpu s", "peak MB", "paper s")
    print("".join(f"{head:>10}" for head in heads))
    for row in rows:
        paper = f"{PAPER[row['images']]:.3f}" if row["images"] in PAPER else "–"
        print(
            f"{row['images']:>10}{row['observations']:>10}{row['seconds']:>10.4f}{row['graph_s']:>10.4f}"
            f"{row['schedule_s']:>10.4f}{row['cpu_s']:>10.4f}{row['peak_rss_mb']:>10.0f}{paper:>10}"
        )
    result: dict = {"rows": rows}
    if len(rows) > 1:
        result["exponent"] = round(_exponent(rows), 3)
        print(f"cost grows with exponent {result['exponent']:.3f} (least squares over the sweep)")
    if config.plot is not None:
        _plot(config.plot, rows, result.get("exponent"))
    print(json.dumps(result))
    return 0


def _in_process(config: AotBench, images: int) -> dict:
    command = [
        sys.executable,
        "-c",
        "import sys; from scripts.bench.aot import main; sys.exit(main(sys.argv[1:]))",
        "--images",
        str(images),
        "--observations",
        str(config.observations),
        "--batch",
        str(config.batch),
        "--repeats",
        str(config.repeats),
        "--worker",
    ]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        command, env={**os.environ, **threads}, stdout=subprocess.PIPE, check=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _measure(config: AotBench) -> dict:
    from sched.build import make_plan, survey
    from sched.plan import PlanOptions
    from sched.synthetic import city_capture

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    capture = city_capture(config.images[0], config.observations)
    options = PlanOptions(batch=config.batch, epochs=1)
    times = []
    for _ in range(config.repeats):
        start, cpu = time.perf_counter(), time.process_time()
        known = survey(capture, options)
        middle = time.perf_counter()
        make_plan(capture, options, known=known)
        times.append((time.perf_counter() - start, middle - start, time.process_time() - cpu))
    seconds, graph, cpu = min(times)
    return {
        "images": capture.n_views,
        "observations": config.observations,
        "seconds": round(seconds, 5),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "graph_s": round(graph, 5),
        "schedule_s": round(seconds - graph, 5),
        "cpu_s": round(cpu, 5),
    }


def _exponent(rows: list[dict]) -> float:
    import numpy as np

    return float(
        np.polyfit(np.log([row["images"] for row in rows]), np.log([row["seconds"] for row in rows]), 1)[0]
    )


def _plot(path: Path, rows: list[dict], exponent: float | None) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from sched.plots import save_figure

    figure, ax = pyplot.subplots(figsize=(7.5, 5), layout="constrained")
    images = [row["images"] for row in rows]
    slope = "" if exponent is None else f", exponent {exponent:.2f}"
    ax.loglog(
        images,
        [row["seconds"] for row in rows],
        "o-",
        label=f"graph + schedule, {rows[0]['observations']} observations per image, one core{slope}",
    )
    ax.loglog(images, [row["graph_s"] for row in rows], "s--", alpha=0.6, label="of which graph construction")
    ax.loglog(
        list(PAPER), list(PAPER.values()), "kx:", label="paper, Table 3 (Xeon 6462C, observations not stated)"
    )
    ax.set(xlabel="images", ylabel="time (s)", title="Ahead-of-time planning from track metadata")
    ax.grid(True, which="both", alpha=0.3)
    ax.legend()
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
