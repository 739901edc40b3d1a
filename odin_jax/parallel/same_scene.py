"""All processes must have loaded the same capture: with other files their programs would not fit together."""

from __future__ import annotations

import zlib
from typing import Any

import jax
import numpy as np

from odin_jax.parallel import share
from splat.errors import UserError
from splat.scene.types import Scene

PARTS = {"poses": "camera poses", "points": "points", "colours": "colours of the points", "tracks": "tracks",
         "split": "training views"}  # what is compared by checksum, with its name for the user


def check_scene(scene: Scene) -> None:
    """Raise UserError in a process whose capture is not the first process's; every process has to call it.

    Names, sizes and poses of the photos, points, tracks and the training views are compared, not the pixels.
    """
    if jax.process_count() == 1:
        return
    own = described(scene)
    unlike = difference(share.from_first(own), own)
    if unlike:
        raise UserError(f"process {jax.process_index()} has another capture in {scene.source} than process 0 "
                        f"({unlike}); give all processes the same files")


def described(scene: Scene) -> dict[str, Any]:
    """JSON values that are equal for equal captures."""
    tracks = np.concatenate([scene.tracks.view_ptr, scene.tracks.point_ids.astype(np.int64)])
    poses = np.stack([np.append(photo.view, photo.intrinsics) for photo in scene.photos])
    arrays = (poses, scene.points, scene.colours, tracks, np.array([*scene.train, -1, *scene.test]))
    return {"photos": {photo.name: [photo.width, photo.height] for photo in scene.photos},
            **{name: zlib.crc32(array.tobytes()) for name, array in zip(PARTS, arrays, strict=True)}}


def difference(first: dict[str, Any], own: dict[str, Any]) -> str | None:
    """How a capture that is ``described`` differs from the first process's, None where it does not."""
    theirs, mine = first["photos"], own["photos"]
    for name in sorted(theirs.keys() | mine.keys()):
        if name not in mine:
            return f"{len(mine)} photos instead of {len(theirs)}, {name} is missing"
        if name not in theirs:
            return f"{len(mine)} photos instead of {len(theirs)}, {name} is one too many"
        if mine[name] != theirs[name]:
            here, there = ("×".join(map(str, sizes[name])) for sizes in (mine, theirs))
            return f"{name} has {here} pixels instead of {there}"
    return next((f"other {what}" for name, what in PARTS.items() if first[name] != own[name]), None)
