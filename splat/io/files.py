"""Files on disk: early one-line checks of what is read, atomic replacement of what is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from splat.errors import UserError

_LFS_HEAD = b"version https://git-lfs.github.com/spec/"


def check_file(path: Path, what: str) -> None:
    """Raise a one-line UserError unless ``path`` is a non-empty regular file with content of its own.

    Args:
        path: the file.
        what: what it should be, for the message ("PLY", "photo", …).

    Raises:
        UserError: missing, a folder, unreadable, empty, or a Git LFS pointer.
    """
    if not path.exists():
        raise UserError(f"{what} {path} does not exist; check the path")
    if not path.is_file():
        raise UserError(f"{what} {path} is a folder; give a file")
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS_HEAD))
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read ({error.strerror}); check its permissions") from error
    if not head:
        raise UserError(f"{what} {path} is empty; copy it again")
    if head == _LFS_HEAD:
        raise UserError(f"{what} {path} is a Git LFS pointer, not the file itself; run 'git lfs pull' there")


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary neighbour of ``path`` and put it in place when the block ends without an error.

    A reader sees the old file or the whole new one, never a part. The parent folder is made if needed.

    Raises:
        UserError: the folder cannot be written to, the disk is full, or ``path`` is a folder.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("wb")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another folder") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        reason = f"cannot write {path} ({error.strerror or error}); free space or choose another place"
        raise UserError(reason) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
