"""Fixtures of the tests that train."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import write_capture


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Path:
    """The small capture."""
    return write_capture(tmp_path_factory.mktemp("capture") / "capture")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory) -> Path:
    """Where the runs of a module keep compiled programs."""
    return tmp_path_factory.mktemp("xla")
