"""The backend that programs are made for, asked in this one place."""

from __future__ import annotations

import jax

_compiled_for: list[str] = []  # where it is not the default one


def compile_for(backend: str) -> None:
    """Make programs for ``backend`` ("cpu", "gpu"), whatever this process runs on.

    For programs that are compiled ahead of time for devices that are not there; before anything is traced.
    """
    _compiled_for[:] = [backend]


def backend() -> str:
    """The backend that programs are made for: the default one, unless ``compile_for`` said otherwise."""
    return _compiled_for[0] if _compiled_for else jax.default_backend()
