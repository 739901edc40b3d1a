"""Rows and pixels divided over ranks: the bits do not depend on the path or on who owns what, and it is the training of
data parallelism."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("mixed_run.py")
SHORT = {"steps": 40}
CASES = {
    "sync": {"path": "sync", **SHORT},
    "quality": {**SHORT},
    "quality elsewhere": {"deal": "shifting", "room": 1024, **SHORT},
    "throughput": {"path": "throughput", "tau": 0.9, **SHORT},
    "short-sighted": {"pipeline": "short-sighted", "path": "sync", "steps": 20},
    "short-sighted quality": {"pipeline": "short-sighted", "steps": 20},
    "uneven": {"path": "sync", "slope": 0.5, **SHORT},
    "sync long": {"path": "sync", "steps": 200},
    "dp long": {"path": "sync", "steps": 200, "parallel": "dp"},
}


@functools.cache
def run(ranks: int, cases: str) -> list[dict]:
    """What ``mixed_run`` prints for the cases (JSON), which share one process and its programs."""
    done = subprocess.run([sys.executable, str(SCRIPT), str(ranks), cases], capture_output=True, text=True,
                          timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def two() -> dict[str, dict]:
    """Every case on two ranks."""
    return dict(zip(CASES, run(2, json.dumps(list(CASES.values()))), strict=True))


def exact(sync: dict, *others: dict) -> None:
    """All ended with the same bits after structural events, the others without waiting for everything."""
    assert sync["actions"].keys() == {"barrier"} and sync["structural"] > 0 and sync["alive"] > 500
    for other in others:
        assert other["bits"] == sync["bits"] and not other["violations"]
        assert other["actions"]["partial"] > 5


def test_quality_first_is_synchronised_training_bit_for_bit_whoever_owns_the_rows(two):
    exact(two["sync"], two["quality"], two["quality elsewhere"])
    assert two["quality elsewhere"]["rooms"] > [1024]
    assert 0 < two["quality"]["urgent_rows"] < 0.8 * two["quality"]["active_rows"]
    assert two["quality"]["sent"]["early attributes"] > 0 and two["quality"]["sent"]["rest"] > 0


def test_a_scope_that_misses_rows_is_noticed(two):
    assert two["short-sighted quality"]["bits"] != two["short-sighted"]["bits"]


def test_throughput_first_reads_late_only_what_the_gates_admit(two):
    assert two["throughput"]["violations"] == [] and two["throughput"]["actions"]["delayed"] > 0
    assert two["throughput"]["late_reads"] > 0 and two["quality"]["late_reads"] == 0
    assert two["throughput"]["loss"] == pytest.approx(two["quality"]["loss"], rel=0.05)


def test_where_pixels_are_cut_matters_to_rounding_alone(two):
    np.testing.assert_allclose(two["uneven"]["losses"], two["sync"]["losses"], rtol=2e-3)
    np.testing.assert_allclose(two["uneven"]["losses"][:5], two["sync"]["losses"][:5], rtol=1e-5)


def test_two_hundred_steps_are_those_of_data_parallelism(two):
    mixed, data = two["sync long"], two["dp long"]
    assert mixed["structural"] == data["structural"] > 8
    assert mixed["alive"] == pytest.approx(data["alive"], rel=0.01)
    assert mixed["loss"] == pytest.approx(data["loss"], rel=0.02)


def test_eight_ranks_share_eight_images_bit_for_bit():
    exact(*run(8, json.dumps([{"path": "sync", "steps": 25}, {"steps": 25, "deal": "shifting"}])))


@pytest.mark.parametrize(("pipeline", "steps"), [("2dgs", 24), ("taming", 34), ("dash", 16)])
def test_other_pipelines_are_trained_bit_for_bit_through_structural_events(pipeline, steps):
    case = {"pipeline": pipeline, "steps": steps}
    sync, quality = run(4 if pipeline == "taming" else 2, json.dumps([{"path": "sync", **case}, case]))
    exact(sync, quality)
    if pipeline == "dash":
        assert len(quality["sizes"]) == 2
