"""Quality and cost of the pipelines: one preset each, on captures, in one table and pictures of colour, depth, normals.

``odin bench pipelines --scenes A B --out DIR`` trains every preset of ``configs/short`` on every capture, each run
alone on its cores with a cold compile cache, and leaves the runs, ``pipelines.json``, ``pipelines.md`` and one picture
per capture. Runs that are there are kept, so it may be stopped and started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from odin_jax.depth_pictures import depth_picture, normal_picture, surface_drawer
from odin_jax.evaluate import Drawer, to_8_bit, write_png
from odin_jax.loaded import open_run
from odin_jax.options import parse
from odin_jax.runs import RunFolder, read_json, write_json
from scripts.bench._markdown import markdown_table, ratio_cell
from splat.cameras import Camera
from splat.errors import UserError
from splat.surfel.losses import surface_normals

PRESETS = Path(__file__).parents[2] / "configs" / "short"
FIELDS = ("psnr", "ssim", "lpips", "n_primitives", "cpu_s", "peak_rss_mb")
HEADINGS = ("capture", "preset", "PSNR", "SSIM", "LPIPS", "Gaussians", "CPU s", "of 3DGS", "MB", "roughness °")
GAP = 4  # white pixels between pictures


@dataclass(frozen=True)
class PipelinesBench:
    """Train presets on captures and compare."""

    scenes: tuple[Path, ...]  # captures
    out: Path  # folder for the runs, the table and the pictures
    configs: tuple[Path, ...] = tuple(sorted(PRESETS.glob("*.toml")))  # presets; ratios are to the one named 3dgs
    iterations: int | None = None  # optimizer steps; None: as the presets say
    jobs: int = 1  # runs side by side, each on its own cores


def main(argv: list[str]) -> int:
    """Write pipelines.json, .md and .png and print the JSON as the last line. Raises UserError when a run fails."""
    config = parse(PipelinesBench, argv, "odin bench pipelines")
    for file in config.configs:
        if not file.exists():
            raise UserError(f"--configs {file}: no such file; the presets are in configs/ of the repository")
    config.out.mkdir(parents=True, exist_ok=True)
    rows = _trained(config)
    lines: dict[str, list[np.ndarray]] = {}
    for row in rows:
        run = open_run(config.out / row["run"])
        draw, cameras = surface_drawer(run), [camera for _, camera in run.cameras("test")]
        row["roughness"] = roughness(draw, cameras)
        lines.setdefault(row["scene"], []).append(pictures(draw, cameras[0]))
    first = {row["scene"]: row["cpu_s"] for row in rows if row["preset"] == "3dgs"}
    for row in rows:
        row["cpu_ratio"] = row["cpu_s"] / first[row["scene"]] if row["scene"] in first else None
    for scene, several in lines.items():
        write_png(config.out / f"{scene}.png", _beside(several, 0))
    write_json(config.out / "pipelines.json", rows)
    (config.out / "pipelines.md").write_text(table(rows))
    print(table(rows))
    print(json.dumps(rows))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(HEADINGS, [
        [row["scene"], row["preset"], f"{row['psnr']:.2f}", f"{row['ssim']:.3f}", f"{row['lpips']:.3f}",
         f"{row['n_primitives']:,}", f"{row['cpu_s']:.0f}", ratio_cell(row["cpu_ratio"]), f"{row['peak_rss_mb']:.0f}",
         f"{row['roughness']:.1f}"] for row in rows])


def roughness(draw: Drawer, cameras: Sequence[Camera]) -> float:
    """Median angle, degrees, between the surface normals of neighbouring pixels, over the views.

    Normals are those of the rendered depth; pixels without surface do not count.
    """
    angles = []
    for camera in cameras:
        depth = draw(camera)[1]
        normals = np.asarray(surface_normals(depth, camera))
        solid = np.asarray(depth > 0) & np.any(normals != 0, -1)
        both = solid[:, 1:] & solid[:, :-1]
        cosine = np.sum(normals[:, 1:] * normals[:, :-1], -1)[both]
        angles.append(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    return float(np.median(np.concatenate(angles)))


def pictures(draw: Drawer, camera: Camera) -> np.ndarray:
    """Colour, depth and normals of a view beside each other."""
    image, depth = draw(camera)
    return _beside([to_8_bit(np.asarray(image)), depth_picture(depth, camera), normal_picture(depth, camera)], 1)


def _beside(pictures: list[np.ndarray], axis: int) -> np.ndarray:
    gap = np.full([GAP if at == axis else size for at, size in enumerate(pictures[0].shape)], 255, np.uint8)
    parts = [part for one in pictures for part in (one, gap)]
    return np.concatenate(parts[:-1], axis)


def _trained(config: PipelinesBench) -> list[dict[str, Any]]:
    """One row per capture and preset, trained at most ``jobs`` at a time, each on its share of the cores."""
    cores = np.array_split(sorted(os.sched_getaffinity(0)), config.jobs)
    free: SimpleQueue[np.ndarray] = SimpleQueue()
    for share in cores:
        free.put(share)

    def one(work: tuple[Path, Path]) -> dict[str, Any]:
        mine = free.get()
        try:
            return _row(config, *work, [int(core) for core in mine])
        finally:
            free.put(mine)

    with ThreadPoolExecutor(config.jobs) as pool:
        return list(pool.map(one, [(scene, preset) for scene in config.scenes for preset in config.configs]))


def _row(config: PipelinesBench, scene: Path, preset: Path, cores: list[int]) -> dict[str, Any]:
    name = f"{scene.name}-{preset.stem}"
    run = RunFolder(config.out / name)
    if not run.record.exists():
        steps = [] if config.iterations is None else ["--iterations", str(config.iterations)]
        command = [sys.executable, "-m", "odin_jax.cli", "train", "--scene", str(scene), "--out", str(run.path),
                   "--config", str(preset), "--cache-dir", str(config.out / f"{name}-compiled"), *steps]
        with (config.out / f"{name}.log").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False,
                                  preexec_fn=lambda: os.sched_setaffinity(0, cores)).returncode
        if code:
            raise UserError(f"training {name} failed with exit code {code}; see {config.out / name}.log")
    record = read_json(run.record)
    row = {"scene": scene.name, "preset": preset.stem, "run": name, **{field: record[field] for field in FIELDS}}
    print(json.dumps(row), flush=True)
    return row
