"""Tile a trained aerial run into a city of many blocks: cameras, photos, points and trained rows of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import track

from odin_jax import city
from odin_jax.loaded import open_run
from splat.errors import UserError


@dataclass(frozen=True)
class CityConfig:
    """Tile a trained aerial run into a city of many blocks."""

    run: Path  # folder written by `odin train --out`, of a capture from the air
    out: Path  # folder to make; it must not hold anything
    tiles: str = "8x8"  # columns x rows of tiles
    max_views_per_tile: int | None = None  # views of each tile, spread over the run's; None: all that look at the tile
    rows_per_tile: int | None = None  # Gaussians per tile, chosen or split to reach the number; None: as the run has
    points_per_tile: int | None = None  # points per tile to start a training from; None: one per row that is not faint
    footprint: float = 0.9  # share of the rows along each side of a tile; what lies beyond is left out
    seed: int = 0  # of the choice of rows and points


def main(config: CityConfig) -> None:
    """Write the city and print what it holds. Raises UserError for a bad option or a folder that holds something."""
    tiles = check(config)
    run = open_run(config.run)
    views = run.cameras()
    test = {name for name, _ in run.cameras("test")}
    if not views:
        raise UserError(f"{run.folder.cameras} lists no camera; train again")
    rows = city.take(run.gaussians, slice(None))
    footprint = city.find_footprint(rows, [camera for _, camera in views], config.footprint)
    rows = city.sized(city.take(rows, footprint.inside(np.asarray(rows.means))), config.rows_per_tile, config.seed)
    seen = [view for view in views if city.looks_at(footprint, view[1])]
    train, tests = ([view for view in seen if (view[0] in test) == held] for held in (False, True))
    split = city.choose_split(train, tests, config.max_views_per_tile)
    listed = {role: [name for name, _ in part] for role, part in zip(("train", "test"), split, strict=True)}
    chosen = [*split[0], *split[1]]
    if not listed["train"]:
        raise UserError(f"{config.run}: no chosen training view looks at the middle of the scene from above; give a "
                        "run of an aerial capture or a larger --footprint")
    pictures = city.render_photos(run, rows, footprint, chosen, config.out / city.PHOTOS)
    photos = dict(zip([name for name, _ in chosen], pictures, strict=True))
    moved = {role: [photos[name] for name in names] for role, names in listed.items()}
    points = city.points_of(rows, config.points_per_tile, config.seed)
    places = [(column, row) for row in range(tiles[1]) for column in range(tiles[0])]
    width = len(str(max(tiles) - 1))
    for column, row in track(places, description="blocks"):
        folder = config.out / f"block_{row:0{width}d}_{column:0{width}d}"
        city.write_block(folder, rows, points, footprint.shift((column, row), tiles), moved)
    count = len(places)
    print(f"{config.out}: {count} blocks, {count * rows.count:,} Gaussians, {count * len(points[0]):,} points, "
          f"{count * len(listed['train'])} training and {count * len(listed['test'])} test views")


def check(config: CityConfig) -> tuple[int, int]:
    """(columns, rows) of tiles. Raises UserError for an option out of range or a folder that holds something."""
    found = re.fullmatch(r"(\d+)x(\d+)", config.tiles)
    if found is None or min(map(int, found.groups())) < 1:
        raise UserError(f"--tiles {config.tiles} is not COLUMNSxROWS; give e.g. 8x8")
    for name in ("max_views_per_tile", "rows_per_tile", "points_per_tile"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value} must be at least 1")
    if not 0 < config.footprint <= 1:
        raise UserError(f"--footprint {config.footprint:g} must be above 0 and at most 1")
    if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
        raise UserError(f"--out {config.out} is not an empty folder; choose another one")
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["make-city", *sys.argv[1:]])
