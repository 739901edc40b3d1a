"""A capture of a few pixels, written as transforms.json, for tests of the loop and of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image


def write_capture(folder: Path, views: int = 12, width: int = 48, height: int = 32, points: int = 40) -> Path:
    """Photos of smooth random colours on a circle around random points; deterministic."""
    rng = np.random.default_rng(7)
    (folder / "images").mkdir(parents=True)
    frames = []
    for index in range(views):
        coarse = Image.fromarray(rng.integers(0, 255, (4, 6, 3), np.uint8))
        coarse.resize((width, height)).save(folder / "images" / f"{index:03d}.png")
        frames.append(
            {"file_path": f"images/{index:03d}.png", "transform_matrix": pose(index / views).tolist()}
        )
    cloud = rng.uniform(-1, 1, (points, 3))
    rows = [" ".join([*(f"{value:.6f}" for value in row), "200 120 60"]) for row in cloud]
    header = [
        "ply",
        "format ascii 1.0",
        f"element vertex {points}",
        *(f"property float {axis}" for axis in "xyz"),
        *(f"property uchar {name}" for name in ("red", "green", "blue")),
        "end_header",
    ]
    (folder / "points.ply").write_text("\n".join([*header, *rows]) + "\n")
    listing = {
        "w": width,
        "h": height,
        "fl_x": 50.0,
        "fl_y": 50.0,
        "cx": width / 2,
        "cy": height / 2,
        "ply_file_path": "points.ply",
        "frames": frames,
    }
    (folder / "transforms.json").write_text(json.dumps(listing))
    return folder


def pose(turn: float) -> np.ndarray:
    """[4, 4] camera → world in OpenGL axes, 4 units from the origin, looking at it."""
    angle = 2 * np.pi * turn
    eye = np.array([4 * np.cos(angle), 4 * np.sin(angle), 1.0])
    back = eye / np.linalg.norm(eye)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3] = np.stack([right, np.cross(back, right), back, eye], axis=1)
    return matrix
