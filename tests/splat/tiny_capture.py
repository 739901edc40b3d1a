"""Small COLMAP captures written by hand, for tests of the readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Lens:
    """One line of cameras.txt."""

    model: str
    params: tuple[float, ...]
    width: int
    height: int


PINHOLE = Lens("PINHOLE", (40.0, 42.0, 30.5, 25.25), 64, 48)


def picture(width: int, height: int, seed: int, channels: int = 3) -> np.ndarray:
    """[H, W, channels] uint8 with something everywhere."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def write_photos(
    folder: Path, names: Sequence[str], width: int = 64, height: int = 48, channels: int = 3
) -> None:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(width, height, seed, channels)).save(folder / name)


def write_model(
    folder: Path,
    names: Sequence[str],
    lenses: Sequence[Lens] = (PINHOLE,),
    *,
    points: int = 12,
    seed: int = 0,
) -> None:
    """A text model: photo i has lens i modulo their number; point p is seen by photos i with i + p even.

    Photo i has image id 10 + 2·i and point p the id 3·p + 5, so that ids are never rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    (folder / "cameras.txt").write_text(
        "# cameras\n"
        + "".join(
            f"{number + 1} {lens.model} {lens.width} {lens.height} {' '.join(map(repr, lens.params))}\n"
            for number, lens in enumerate(lenses)
        )
    )
    rows, seen = [], {p: [] for p in range(points)}
    for number, name in enumerate(names):
        pose = f"0.9238795325112867 0 {0.3826834323650898} 0 {0.3 * number} {0.1 * number} 4.5"
        rows.append(f"{10 + 2 * number} {pose} {number % len(lenses) + 1} {name}")
        mine = [p for p in range(points) if (number + p) % 2 == 0]
        for place, p in enumerate(mine):
            seen[p].append((10 + 2 * number, place))
        rows.append(" ".join(f"{4.5 + p} {7.25} {3 * p + 5}" for p in mine))
    (folder / "images.txt").write_text("# images\n" + "\n".join(rows) + "\n")
    lines = []
    for p in range(points):
        place = " ".join(repr(float(value)) for value in rng.normal(size=3))
        track = " ".join(f"{image} {place}" for image, place in seen[p])
        lines.append(f"{3 * p + 5} {place} {p} {2 * p} {3 * p} 0.5 {track}")
    (folder / "points3D.txt").write_text("# points\n" + "\n".join(lines) + "\n")


def write_capture(
    root: Path,
    names: Sequence[str] = ("a.png", "b.png", "c.png"),
    lens: Lens = PINHOLE,
    *,
    channels: int = 3,
    points: int = 12,
) -> Path:
    """Photos in ``images/`` and a text model in ``sparse/0``."""
    write_photos(root / "images", names, lens.width, lens.height, channels)
    write_model(root / "sparse" / "0", names, (lens,), points=points)
    return root


def as_binary(model: Path) -> None:
    """Replace a text model by the binary one pycolmap writes (rigs and frames included)."""
    import pycolmap

    reconstruction = pycolmap.Reconstruction(model)
    for file in model.glob("*.txt"):
        file.unlink()
    reconstruction.write_binary(model)
