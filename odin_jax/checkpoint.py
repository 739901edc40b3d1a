"""Checkpoints by orbax: written asynchronously, atomic, complete, the last few kept.

A checkpoint holds every array of the pipeline's state under its path in the pytree, and a JSON part with
whatever else the loop needs to continue exactly (rooms, times). Orbax writes into a temporary folder and
renames it when it is complete, so a folder with a bare step number is a whole checkpoint however the process
ended. The JSON part holds a checksum of every array and of itself: the file format notices a file that is cut
off, but not a changed byte inside an array.
"""

from __future__ import annotations

import json
import logging
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from splat.errors import UserError

logging.getLogger("absl").setLevel(logging.CRITICAL)  # what orbax logs as an error it also raises, or can do without
SUMS = "crc32"  # entry of the JSON part: checksum by array name, and under "" that of the rest


def named_leaves(state: Any) -> dict[str, Any]:
    """Leaves of a pytree by their path, e.g. ``gaussians.means``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def steps_in(folder: Path) -> list[int]:
    """Steps of the complete checkpoints under ``folder``, oldest first; no orbax needed."""
    if not folder.is_dir():
        return []
    return sorted(int(child.name) for child in folder.iterdir() if child.name.isdigit() and child.is_dir())


class Checkpoints:
    """The checkpoints of one run. ``save`` returns as soon as the state is copied to the host."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        policy = ocp.checkpoint_managers.LatestN(keep)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, cleanup_tmp_directories=True, enable_async_checkpointing=True
        )
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Start to write the state after ``step``; waits for the previous write, then works in background.

        Raises UserError when the disk refuses.
        """
        host = {name: np.array(leaf, copy=True) for name, leaf in named_leaves(state).items()}
        noted = {**meta, SUMS: _sums(host, meta)}
        args = ocp.args.Composite(state=ocp.args.StandardSave(host), meta=ocp.args.JsonSave(noted))  # type: ignore[call-arg]
        try:
            self._manager.save(step, args=args, force=True)
        except OSError as error:
            raise UserError(
                f"cannot write a checkpoint to {self.folder}: {error}; free space and resume"
            ) from error

    def finish(self) -> None:
        """Wait until everything is on disk and let go of the folder."""
        self._manager.wait_until_finished()
        self._manager.close()


def read(folder: Path, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays by name, meta) of one checkpoint. Raises UserError when it cannot be read or has changed."""
    options = ocp.CheckpointManagerOptions(read_only=True)
    parts: dict[str, Any] = {"state": ocp.args.StandardRestore(), "meta": ocp.args.JsonRestore()}
    try:
        with _late_reads_unheard(), ocp.CheckpointManager(folder.resolve(), options=options) as manager:
            found: Any = manager.restore(step, args=ocp.args.Composite(**parts))
            arrays = {name: np.asarray(leaf) for name, leaf in found["state"].items()}
            meta = dict(found["meta"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        line = str(error).splitlines()[0].split(" [tensorstore_spec")[0] if str(error) else type(error).__name__
        raise _damaged(folder, step, line) from error
    noted = meta.pop(SUMS, None)
    if noted != _sums(arrays, meta):
        raise _damaged(folder, step, "its checksums do not agree with what it holds")
    return arrays, meta


def _sums(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, int]:
    sums = {name: zlib.crc32(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return {**sums, "": zlib.crc32(json.dumps(meta, sort_keys=True).encode())}


def _damaged(folder: Path, step: int, why: str) -> UserError:
    return UserError(f"cannot read the checkpoint {folder / str(step)}: {why}; "
                     "delete that folder to continue from the one before, or from the start where it is the only one")


@contextmanager
def _late_reads_unheard() -> Iterator[None]:
    """Keep one complaint off the screen: after a failure orbax closes its event loop while reads still run.

    Each of them then prints a traceback from a thread of its own, at any time after, so a failed block leaves the
    filter in place.
    """
    shown = sys.unraisablehook

    def filtered(unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "Event loop is closed" in str(unraisable.exc_value)):
            shown(unraisable)

    sys.unraisablehook = filtered
    yield
    sys.unraisablehook = shown


def restore(folder: Path, step: int, template: Any) -> tuple[Any, dict[str, Any]]:
    """(state, meta) of one checkpoint; ``template`` gives the pytree's structure, the file gives the shapes.

    Raises UserError when the checkpoint cannot be read or belongs to another kind of state.
    """
    arrays, meta = read(folder, step)
    names = list(named_leaves(template))
    if set(arrays) != set(names):
        odd = ", ".join(sorted(set(arrays) ^ set(names))[:4])
        raise UserError(
            f"the checkpoint {folder / str(step)} was made by another pipeline or version (differs in: "
            f"{odd}); choose another --out or resume with the pipeline that wrote it"
        )
    leaves = [jax.numpy.asarray(arrays[name]) for name in names]
    return jax.tree.unflatten(jax.tree.structure(template), leaves), meta
