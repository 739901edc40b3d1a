"""The runtime of Odin-JAX: trainer, checkpoints, outputs and the command line.

The standard library has a module ``sched`` too, and it comes before installed packages on the import path.
Importing ``odin_jax`` makes ``import sched`` mean the scheduler of this project; the two classes of the
standard module stay reachable under the same name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def _claim_sched() -> None:
    folder = Path(__file__).resolve().parents[1] / "sched"
    standard = importlib.import_module("sched")
    if folder.as_posix() in (Path(entry).as_posix() for entry in getattr(standard, "__path__", ())):
        return
    spec = importlib.util.spec_from_file_location(
        "sched", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    ours = importlib.util.module_from_spec(spec)
    sys.modules["sched"] = ours
    spec.loader.exec_module(ours)
    for name in ("scheduler", "Event"):
        setattr(ours, name, getattr(standard, name))


_claim_sched()
