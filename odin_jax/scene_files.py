"""Gaussian scenes as single files; the ending chooses the format."""

from __future__ import annotations

from pathlib import Path

from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.ply import read_ply, write_ply
from splat.io.splat import read_splat, write_splat

READERS = {".ply": read_ply, ".splat": read_splat}
WRITERS = {".ply": write_ply, ".splat": write_splat}


def read_scene_file(path: Path) -> Gaussians:
    """Gaussians of a .ply or .splat. Raises UserError for another ending or a broken file."""
    return READERS[_ending(path)](path)


def write_scene_file(gaussians: Gaussians, path: Path) -> None:
    """Write a .ply (exact) or .splat (quantised). Raises UserError for another ending or no access."""
    WRITERS[_ending(path)](gaussians, path)


def _ending(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in READERS:
        raise UserError(f"{path}: the file's ending must be .ply or .splat")
    return ending
