"""Whether a window takes the longer of computation and publication, where they could run side by side all the time.

``odin bench window --scene PATH --out DIR`` puts two copies of a capture back to back, so far apart that no view sees
both, and trains units of one copy and the other in turn: nothing that a unit reads is pending. The hosts are isolated
(see ``hostlab``), and their links get the rate at which a publication takes as long as forward and backward.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odin_jax.options import parse
from odin_jax.runs import write_json
from scripts.bench.hostlab import hostlab
from scripts.bench.overlap import FAST_MBIT, PUBLICATION, windows_of
from splat.scene.load import load_scene
from splat.scene.npz import save_npz
from splat.scene.types import Photo, Scene, Tracks

APART = 20.0  # scene extents between the copies


@dataclass(frozen=True)
class WindowConfig:
    """Measure windows between units that share no rows, over two isolated hosts with a limited link."""

    scene: Path  # capture
    out: Path  # folder for the runs and window.json
    iterations: int = 40  # optimizer steps of each run
    batch: int = 4  # views per optimizer step
    downscale: float = 1  # divide the photos' sides by this
    repeats: int = 2  # runs of sync and quality, in turn
    skip: int = 12  # first windows left out of the numbers: programs are compiled there
    timeout_s: float = 1800  # of one run


def main(argv: list[str]) -> int:
    """Write window.json and print it as the last line. Raises UserError where the lab cannot run."""
    config = parse(WindowConfig, argv, "odin bench window")
    config.out.mkdir(parents=True, exist_ok=True)
    twin = config.out / "twin.npz"
    if not twin.exists():
        save_npz(back_to_back(load_scene(config.scene, downscale=config.downscale)), twin, encoding="jpeg")
    fast = _measured(config, twin, "sync", FAST_MBIT, "calibration")
    mbit = 8 * fast["sent_mb"] / fast["compute_s"]
    print(f"calibration: {json.dumps(fast)} → {mbit:.1f} Mbit/s", flush=True)
    runs: dict[str, list[dict[str, Any]]] = {"sync": [], "quality": []}
    for repeat in range(config.repeats):
        for path, several in runs.items():
            several.append(_measured(config, twin, path, mbit, f"{path}-{repeat}"))
            print(f"{path:8s} {json.dumps(several[-1])}", flush=True)
    step = {path: statistics.median(run["step_s"] for run in several) for path, several in runs.items()}
    result = {"scene": config.scene.name, "mbit": mbit, "runs": runs, "speedup": step["sync"] / step["quality"],
              "over_longer": statistics.median(run["over_longer"] for run in runs["quality"])}
    write_json(config.out / "window.json", result)
    print(json.dumps(result))
    return 0


def back_to_back(scene: Scene) -> Scene:
    """The capture twice: the second one turned by half a turn and moved against the way the cameras look."""
    forward = np.mean([photo.view[2, :3] for photo in scene.photos], axis=0)
    forward /= np.linalg.norm(forward)
    side = np.cross(forward, np.eye(3)[np.argmin(np.abs(forward))])
    side /= np.linalg.norm(side)
    centre = np.mean([photo.centre for photo in scene.photos], axis=0)
    turn = 2 * np.outer(side, side) - np.eye(3)  # forward becomes backward
    move = np.eye(4)
    move[:3, :3] = turn
    move[:3, 3] = centre - turn @ centre - APART * scene.extent * forward
    back = np.linalg.inv(move)
    again = tuple(dataclasses.replace(photo, name=f"b/{photo.name}", view=photo.view @ back) for photo in scene.photos)
    first = tuple(_named(photo) for photo in scene.photos)
    count, tracks = len(scene.photos), scene.tracks
    return dataclasses.replace(
        scene, name=f"{scene.name}-twin", photos=first + again,
        points=np.concatenate([scene.points, scene.points @ turn.T + move[:3, 3]]).astype(np.float32),
        colours=np.concatenate([scene.colours, scene.colours]),
        tracks=Tracks(np.concatenate([tracks.view_ptr, tracks.view_ptr[1:] + tracks.view_ptr[-1]]),
                      np.concatenate([tracks.point_ids, tracks.point_ids + len(scene.points)]).astype(np.int32)),
        train=scene.train + tuple(count + index for index in scene.train),
        test=scene.test + tuple(count + index for index in scene.test))


def _named(photo: Photo) -> Photo:
    return dataclasses.replace(photo, name=f"a/{photo.name}")


def _measured(config: WindowConfig, scene: Path, path: str, mbit: float, name: str) -> dict[str, Any]:
    """Train over two hosts; medians over the windows of the first."""
    out = config.out / name
    if not (out / "record.json").exists():
        args = ["train", "--scene", str(scene), "--out", str(out), "--iterations", str(config.iterations), "--batch",
                str(config.batch), "--path", path, "--regions", "2", "--no-lpips", "--no-tensorboard", "--test-every",
                "8", "--checkpoint-every", "1000000", "--gs3d.densify-until", "1", "--gs3d.sh-every", "1000000"]
        with hostlab(2, mbit) as lab:
            lab.train(args, out.with_name(name + "-logs"), config.timeout_s)
    return _numbers(windows_of(out, config.skip))


def _numbers(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians in seconds; ``over_longer``: a window's time over the longer of computation and publication."""
    def published(line: dict[str, Any]) -> float:
        return sum(line["comm_s"].get(part, 0.0) for part in PUBLICATION)

    def computed(line: dict[str, Any]) -> float:
        return max(line["seconds"])

    return {
        "step_s": statistics.median(line["wall_s"] for line in lines),
        "compute_s": statistics.median(map(computed, lines)),
        "publish_s": statistics.median(map(published, lines)),
        "over_longer": statistics.median(line["wall_s"] / max(computed(line), published(line)) for line in lines),
        "waits_s": statistics.median(sum(line["waits_s"].values()) for line in lines),
        "sent_mb": statistics.mean(sum(line["sent_bytes"].values()) for line in lines) / 1e6,
        "urgent_share": sum(line["urgent"] for line in lines) / max(sum(line["active"] for line in lines), 1),
        "actions": Counter(line["action"] for line in lines),
    }
