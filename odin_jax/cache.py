"""XLA's persistent compilation cache: a program compiled once is not compiled again in the next run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jax

from splat.errors import UserError

MIN_COMPILE_S = 0.3  # programs that compile faster are not worth a file


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/odin-jax/xla``, by default under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odin-jax" / "xla"


def enable(folder: Path | None) -> None:
    """Keep compiled programs in ``folder``; None: in JAX_COMPILATION_CACHE_DIR, else the user's cache.

    Raises UserError when ``folder`` cannot be written to; where it was not given, nothing is kept, with a note.
    """
    chosen = folder or Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or default_folder())
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=chosen).close()
    except OSError as error:
        if folder is not None:
            raise UserError(f"--cache-dir {folder} cannot be written to ({error.strerror}); choose another") from error
        print(f"note: {chosen} cannot be written to ({error.strerror}); compiled programs are not kept, --cache-dir "
              "names another place")
        jax.config.update("jax_compilation_cache_dir", None)
        return
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
