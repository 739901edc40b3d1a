"""The folder of one run: what lies where, who may write into it, and where a run continues.

Nothing that a run left is overwritten by another one: a folder is written by one process at a time, and a
folder that holds results is only continued, with the configuration that made them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax.checkpoint import steps_in
from splat.errors import UserError
from splat.io.files import atomic_write

# Fields that say how a run is watched or where it goes, not what it computes.
FREE_FIELDS = ("out", "config", "resume", "checkpoint_every", "keep_checkpoints", "log_every", "image_every",
               "photo_cache_mb", "lpips", "tensorboard", "cache_dir", "executor", "hosts_from", "coordinator",
               "num_processes", "process_id", "devices")
OUTPUTS = ("record.json", "point_cloud.ply", "checkpoints", "renders")  # results, which no other run writes over


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def ply(self) -> Path:
        return self.path / "point_cloud.ply"

    @property
    def cameras(self) -> Path:
        return self.path / "cameras.json"

    @property
    def survey(self) -> Path:
        return self.path / "survey.json"

    @property
    def structure(self) -> Path:
        return self.path / "structure.jsonl"

    @property
    def renders(self) -> Path:
        return self.path / "renders"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Create the folder and hold it for this process. Raises UserError when another process holds it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / ".lock", os.O_CREAT | os.O_WRONLY)
        except OSError as error:
            reason = f"cannot write to --out {self.path}: {error.strerror}; choose another folder"
            raise UserError(reason) from error
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = f"another process is training in {self.path}; wait or choose another --out"
            raise UserError(reason) from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees either the old file or the new one, never a part."""
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path, kind: type = dict, made_by: str = "odin train --out") -> Any:
    """Parsed JSON file that holds a ``kind``, dict or list.

    Raises UserError with file, line and remedy when it is missing, broken or of another kind.
    """
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(
            f"{path} does not exist; give the folder that was written with `{made_by}`"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", 1)
        raise UserError(f"{path} is not valid JSON (line {line}); restore it or train again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and permissions") from error
    if not isinstance(value, kind):
        raise UserError(f"{path} holds a JSON {type(value).__name__}, not a {kind.__name__}; restore it or train again")
    return value


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`name: old → new` for every field that decides results and differs between two configurations."""
    found = []
    for name in sorted(set(old) | set(new)):
        if not prefix and name in FREE_FIELDS:
            continue
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            found += differences(before, now, f"{prefix}{name}.")
        elif before != now:
            found.append(f"{prefix}{name}: {before} → {now}")
    return found


def keep_lines(path: Path, step: int) -> None:
    """Take what follows ``step`` out of a JSONL file, as lines of an earlier try, and a last line that is not whole.

    A file without any line left goes. Raises UserError, naming the line, where one has no step, and when the file
    cannot be read or written.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and permissions") from error
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            if int(json.loads(line)["step"]) <= step:
                kept.append(line)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UserError(f"{path} line {number} names no step ({error!r}); delete the line to continue") from error
    if not kept:
        forget(path)
        return
    with atomic_write(path) as file:
        file.writelines(kept)


def forget(*paths: Path) -> None:
    """Delete files of an earlier try. Raises UserError when one cannot be deleted."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot delete {path} ({error.strerror}), which is of an earlier try; delete it or choose "
                            "another --out") from error


class StepLines:
    """A JSONL file to which a run adds whole lines, each with its step."""

    def __init__(self, path: Path, step: int):
        """Lines after ``step``, of an earlier try, leave the file; see ``keep_lines``."""
        self._path = path
        keep_lines(path, step)

    def add(self, line: dict[str, Any]) -> None:
        """Write a line to the disk. Raises UserError when that cannot be done; the file then ends as before."""
        data = json.dumps(line).encode() + b"\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    while data:
                        data = data[file.write(data):]
                except OSError:
                    file.truncate(before)
                    raise
        except OSError as error:
            raise UserError(f"cannot write {self._path} ({error.strerror}); free space or give permission, then the "
                            "same command continues from the last checkpoint") from error


def start_point(run: RunFolder, resume: str, resolved: dict[str, Any]) -> tuple[Path, int] | None:
    """(folder of checkpoints, step) to continue from, or None for a fresh start.

    ``resume`` is auto (the newest complete checkpoint in the run folder, when there is one), never, or the
    path of a run or of one checkpoint. Raises UserError when the folder holds results that a start would
    overwrite.
    """
    held = [name for name in OUTPUTS if (steps_in(run.checkpoints) if name == "checkpoints" else
                                         (run.path / name).exists())]
    earlier = read_json(run.config) if run.config.exists() else None
    if earlier is None and held:
        raise UserError(f"--out {run.path} already holds {held[0]} of something else; choose another folder")
    if resume == "never":
        if held:
            raise UserError(
                f"--out {run.path} holds the results of an earlier run ({held[0]}) and --resume never was "
                "given; choose another folder or let it resume"
            )
        return None
    if resume == "auto":
        changed = differences(earlier, resolved) if earlier and held else []
        changed.sort(key=lambda line: "." in line.partition(":")[0])  # what was given before what follows from it
        if changed:
            raise UserError(f"--out {run.path} holds a run with another configuration "
                            f"({'; '.join(changed[:4])}); choose another folder, or give --resume {run.path} "
                            "to go on with the new one")
        steps = steps_in(run.checkpoints)
        return (run.checkpoints, steps[-1]) if steps else None
    source, step = _named_checkpoint(Path(resume))
    if step > resolved["iterations"]:
        raise UserError(f"--iterations {resolved['iterations']}: {source / str(step)} has gone further already; give "
                        "more iterations or an earlier checkpoint")
    if held and source.resolve() != run.checkpoints.resolve():
        raise UserError(
            f"--out {run.path} holds the results of another run than --resume {resume}; choose another folder"
        )
    return source, step


def _named_checkpoint(path: Path) -> tuple[Path, int]:
    """(folder of checkpoints, step) for the path of a run, of its checkpoints or of one of them."""
    if path.name.isdigit() and path.is_dir():
        return path.parent, int(path.name)
    for folder in (path / "checkpoints", path):
        steps = steps_in(folder)
        if steps:
            return folder, steps[-1]
    raise UserError(f"--resume {path}: no complete checkpoint there; give a run's folder, auto or never")
