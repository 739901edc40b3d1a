"""Checkpoints by orbax: written asynchronously, atomic, complete, the last few kept.

A checkpoint holds every array of the pipeline's state under its path in the pytree, and a JSON part with
whatever else the loop needs to continue exactly (rooms, times). Orbax writes into a temporary folder and
renames it when it is complete, so a folder with a bare step number is a whole checkpoint however the process
ended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from splat.errors import UserError

logging.getLogger("absl").setLevel(logging.ERROR)


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
        args = ocp.args.Composite(state=ocp.args.StandardSave(host), meta=ocp.args.JsonSave(meta))  # type: ignore[call-arg]
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
    """(arrays by name, meta) of one checkpoint. Raises UserError when it cannot be read."""
    options = ocp.CheckpointManagerOptions(read_only=True)
    parts: dict[str, Any] = {"state": ocp.args.StandardRestore(), "meta": ocp.args.JsonRestore()}
    try:
        with ocp.CheckpointManager(folder.resolve(), options=options) as manager:
            found: Any = manager.restore(step, args=ocp.args.Composite(**parts))
    except (OSError, ValueError, KeyError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot read the checkpoint {folder / str(step)}: {line}; "
            "delete that folder to continue from the one before"
        ) from error
    return {name: np.asarray(leaf) for name, leaf in found["state"].items()}, found["meta"]


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
