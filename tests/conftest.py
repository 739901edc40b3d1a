"""Fixtures for the captures and golden files, and loud deselection of what this machine cannot run.

A test that needs captures takes ``scenes_dir``, one that needs golden files ``golden_dir``, one that needs a
GPU carries the mark ``gpu``. With ``CI=true`` missing captures or golden files fail the whole run; elsewhere
such tests are deselected, and the last lines of the report say how many and why. Nothing is skipped silently.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "scenes_dir": ("ODIN_SCENES", "../shared/scenes", "captures"),
    "golden_dir": ("ODIN_GOLDEN", "../shared/golden", "golden files"),
}
# One program compiled by one test is not compiled again by the next, nor by the processes that tests start.
PROGRAMS = tempfile.TemporaryDirectory(prefix="odin-xla-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", PROGRAMS.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
REASONS = pytest.StashKey[dict[str, int]]()


def _folder(fixture: str) -> Path:
    variable, default, _ = FOLDERS[fixture]
    return (ROOT / os.environ.get(variable, default)).resolve()


def _missing_folder(fixture: str) -> str | None:
    """One line that says which folder is missing and how to name it, or None when it is there."""
    variable, default, what = FOLDERS[fixture]
    if _folder(fixture).is_dir():
        return None
    named = os.environ.get(variable, default)
    return f"the {what} are not at {named!r}: set {variable} to their folder"


def _has_gpu() -> bool:
    import jax

    return any(device.platform == "gpu" for device in jax.devices())


def _why_not(item: pytest.Item, gpu: bool) -> str | None:
    if item.get_closest_marker("gpu") and not gpu:
        return "no GPU on this machine"
    needed = [name for name in FOLDERS if name in getattr(item, "fixturenames", ())]
    return next((line for line in map(_missing_folder, needed) if line), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = any(item.get_closest_marker("gpu") for item in items) and _has_gpu()
    reasons: dict[str, int] = {}
    kept, dropped = [], []
    for item in items:
        reason = _why_not(item, gpu)
        (dropped if reason else kept).append(item)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
    missing = [reason for reason in reasons if "set ODIN_" in reason]
    if missing and os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.exit(f"{'; '.join(missing)} (CI=true runs every test)", returncode=3)
    config.stash[REASONS] = reasons
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in config.stash.get(REASONS, {}).items():
        terminalreporter.write_line(f"NOT RUN: {count} test(s): {reason}", yellow=True, bold=True)


@pytest.fixture(scope="session")
def scenes_dir() -> Path:
    """Folder of the captures (ODIN_SCENES, else ../shared/scenes beside the repository)."""
    line = _missing_folder("scenes_dir")
    if line:
        pytest.fail(line, pytrace=False)
    return _folder("scenes_dir")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of the golden files (ODIN_GOLDEN, else ../shared/golden beside the repository)."""
    line = _missing_folder("golden_dir")
    if line:
        pytest.fail(line, pytrace=False)
    return _folder("golden_dir")
