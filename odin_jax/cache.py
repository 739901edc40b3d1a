"""XLA's persistent compilation cache: a program compiled once is not compiled again in the next run."""

from __future__ import annotations

import os
from pathlib import Path

import jax

MIN_COMPILE_S = 0.3  # programs that compile faster are not worth a file


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/odin-jax/xla``, by default under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odin-jax" / "xla"


def enable(folder: Path | None) -> None:
    """Keep compiled programs in ``folder``; None: in JAX_COMPILATION_CACHE_DIR, else the user's cache."""
    chosen = folder or Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or default_folder())
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
