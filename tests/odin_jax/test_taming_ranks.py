"""TamingGS is refused where several ranks would train it."""

from __future__ import annotations

from captures import write_capture
from processes import start


def test_several_ranks_are_refused_with_one_line(tmp_path):
    options = {"--pipeline": "taming", "--devices": "2", "--batch": "2", "--iterations": "20"}
    process = start(write_capture(tmp_path / "capture"), tmp_path / "out", tmp_path / "xla", **options)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and "trains on one device only for now" in text and "Traceback" not in text
