"""A city block by block: points and trained rows in order, one block in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.ply import count_vertices, read_rows
from splat.scene.matrixcity import ROWS, block_points, blocks_in, points_file


def iter_blocks(path: str | Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(name, [P, 3] float32 positions in world units, [P, 3] uint8 colours) of each block, by name.

    A dataset without blocks is one block. All blocks together are the points of ``load_scene``, in its order; like
    there, points that are not finite are dropped. A block is read when it is asked for and not kept afterwards.

    Raises:
        UserError: ``path`` is neither, or a block has a broken PLY or more than one.
    """
    for folder in block_folders(path):
        points, colours = block_points(folder)
        keep = np.isfinite(points).all(axis=1)
        block = folder.name, points[keep].astype(np.float32), colours[keep]
        del points, colours, keep
        yield block
        del block


def iter_gaussian_blocks(path: str | Path) -> Iterator[tuple[str, Gaussians]]:
    """(name, rows as NumPy arrays) of each block's ``gaussians.ply``, by name; one block in memory at a time.

    Raises:
        UserError: ``path`` is no scene of this layout, or a block has no rows or broken ones.
    """
    for folder in block_folders(path):
        block = folder.name, read_rows(folder / ROWS)
        yield block
        del block


def point_counts(path: str | Path) -> list[tuple[str, int]]:
    """(name, points) of each block as its PLY's header says, before those that are not finite are dropped."""
    files = [(folder.name, points_file(folder)) for folder in block_folders(path)]
    return [(name, 0 if file is None else count_vertices(file)) for name, file in files]


def gaussian_counts(path: str | Path) -> list[tuple[str, int]]:
    """(name, rows) of each block as the header of its ``gaussians.ply`` says."""
    return [(folder.name, count_vertices(folder / ROWS)) for folder in block_folders(path)]


def block_folders(path: str | Path) -> list[Path]:
    """The folders of a city's blocks by name, or ``path`` itself where it is one dataset.

    Raises:
        UserError: ``path`` is neither.
    """
    path = Path(path)
    folders = blocks_in(path)
    if not folders and not (path / "transforms_train.json").is_file():
        raise UserError(f"{path} holds neither blocks (block_*/transforms_train.json) nor transforms_train.json; "
                        "give the folder that was written with `odin make-city`")
    return folders or [path]
