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
import os
import re
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore

from odin_jax.parallel import share
from splat.errors import UserError

logging.getLogger("absl").setLevel(logging.CRITICAL)  # what orbax logs as an error it also raises, or can do without
LONGEST = 240  # characters of a reason that are shown
# The first process reads and writes for all: no other one takes part, nor waits.
ALONE = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="first")
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
        """Raises UserError when the disk refuses."""
        _hush_late_io()
        self.folder = folder
        policy = ocp.checkpoint_managers.LatestN(keep)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, cleanup_tmp_directories=True, enable_async_checkpointing=True,
            multiprocessing_options=ALONE, create=False,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(folder.resolve(), options=options)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Start to write the state after ``step``; waits for the previous write, then works in background.

        Raises UserError when the disk refuses, this time or in the background before.
        """
        host = {name: np.array(leaf, copy=True) for name, leaf in named_leaves(state).items()}
        noted = {**meta, SUMS: _sums(host, meta)}
        args = ocp.args.Composite(state=ocp.args.StandardSave(host), meta=ocp.args.JsonSave(noted))  # type: ignore[call-arg]
        try:
            self._manager.save(step, args=args, force=True)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def finish(self) -> None:
        """Wait until everything is on disk and let go of the folder. Raises UserError when the disk refused."""
        try:
            self._manager.wait_until_finished()
            self._manager.close()
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> UserError:
        return UserError(f"cannot write a checkpoint to {self.folder}: {_line(error)}; "
                         "free space, then the same command continues from the last complete one")


def read(folder: Path, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays by name, meta) of one checkpoint. Raises UserError when it cannot be read or has changed."""
    place = (folder / str(step)).resolve()
    try:
        arrays = _stored_arrays(place / "state")
        meta = dict(json.loads((place / "meta" / "metadata").read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, step, _line(error)) from error
    noted = meta.pop(SUMS, None)
    if noted != _sums(arrays, meta):
        raise _damaged(folder, step, "its checksums do not agree with what it holds")
    return arrays, meta


def _stored_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Arrays by name of the OCDBT database that orbax wrote.

    Read without orbax, whose event loop leaves reads behind when one of them fails: they print tracebacks from threads
    of their own, and now and then the process never ends.
    """
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    ending = b"/.zarray"
    keys = tensorstore.KvStore.open(database).result().list().result()
    names = [key[: -len(ending)].decode() for key in keys if key.endswith(ending)]
    if not names:
        raise ValueError("it holds no array")
    opened = {name: tensorstore.open({"driver": "zarr", "kvstore": {**database, "path": f"{name}/"}}) for name in names}
    reads = {name: array.result().read() for name, array in opened.items()}
    return {name: np.asarray(read.result()) for name, read in reads.items()}


def _sums(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, int]:
    flat = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in arrays.items()}
    sums = {name: zlib.crc32(array.data) for name, array in flat.items()}
    return {**sums, "": zlib.crc32(json.dumps(meta, sort_keys=True).encode())}


def _damaged(folder: Path, step: int, why: str) -> UserError:
    return UserError(f"cannot read the checkpoint {folder / str(step)}: {why}; "
                     "delete that folder to continue from the one before, or from the start where it is the only one")


def _line(error: Exception) -> str:
    """The reason in one short line; tensorstore's texts name every layer, and mostly the system's reason."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    system = re.search(r"os_error_code='(\d+)'", text)
    return os.strerror(int(system[1])) if system else text.splitlines()[0].split(" [tensorstore_spec")[0][:LONGEST]


def _hush_late_io() -> None:
    """From now on keep one complaint off the screen: after a failure orbax closes its event loop while
    writes still run, and each of them prints a traceback from a thread of its own, at any time after.
    """
    if getattr(sys.unraisablehook, "func", None) is not _without_late_io:
        sys.unraisablehook = partial(_without_late_io, sys.unraisablehook)


def _without_late_io(shown: Callable[[Any], Any], unraisable: Any) -> None:
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and "Event loop is closed" in str(error)):
        shown(unraisable)


def restore(folder: Path, step: int, template: Any) -> tuple[Any, dict[str, Any]]:
    """(state, meta) of one checkpoint; ``template`` gives the pytree's structure, the file gives the shapes.

    Raises UserError when the checkpoint cannot be read or belongs to another kind of state.
    """
    arrays, meta = read(folder, step) if jax.process_index() == 0 else (None, None)
    arrays, meta = share.arrays_from_first(arrays), share.from_first(meta)
    names = list(named_leaves(template))
    if set(arrays) != set(names):
        odd = ", ".join(sorted(set(arrays) ^ set(names))[:4])
        raise UserError(
            f"the checkpoint {folder / str(step)} was made by another pipeline or version (differs in: "
            f"{odd}); choose another --out or resume with the pipeline that wrote it"
        )
    leaves = [jax.numpy.asarray(arrays[name]) for name in names]
    return jax.tree.unflatten(jax.tree.structure(template), leaves), meta
