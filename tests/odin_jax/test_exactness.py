"""Quality-first training ends with the bits of synchronised training, and what else must hold of windows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("parallel_run.py")


def run(ranks: int, *cases: dict[str, object]) -> list[dict]:
    """What ``parallel_run`` prints for the cases, which share one process."""
    done = subprocess.run([sys.executable, str(SCRIPT), str(ranks), json.dumps(cases)], capture_output=True, text=True,
                          timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_quality_first_is_synchronised_training_bit_for_bit(ranks):
    sync, quality = run(ranks, {"path": "sync"}, {"path": "quality"})
    assert quality["bits"] == sync["bits"]
    assert sync["actions"].keys() == {"barrier"} and quality["actions"]["partial"] > 5
    assert not sync["violations"] and not quality["violations"]


@pytest.mark.parametrize("optimizer", ["adam", "sparse_adam"])
def test_bit_for_bit_through_three_hundred_steps_with_structural_events(optimizer):
    common = {"steps": 300, "optimizer": optimizer}
    sync, quality = run(2, {"path": "sync", **common}, {"path": "quality", **common})
    assert quality["bits"] == sync["bits"] and not quality["violations"]
    assert quality["structural"] > 10 and quality["alive"] != 500
    assert quality["actions"]["partial"] > 50 and quality["actions"]["proceed"] > 0
    assert 0 < quality["urgent_rows"] < 0.8 * quality["active_rows"]


@pytest.mark.parametrize("fault", ["scope", "publication"])
def test_a_planted_fault_is_noticed(fault):
    good, bad = run(2, {"path": "sync"}, {"path": "quality", "fault": fault})
    assert good["bits"] != bad["bits"]


def test_one_program_per_window_gives_the_bits_of_two_lanes_whatever_the_room():
    fused = {"executor": "fused", "steps": 24}
    sync, quality, lanes, small = run(
        2, {"path": "sync", **fused}, {"path": "quality", **fused}, {"path": "quality", "steps": 24},
        {"path": "quality", "room": 1024, **fused})
    assert sync["bits"] == quality["bits"] == lanes["bits"]
    assert small["bits"] == quality["bits"] and small["rooms"] > [1024]
    assert quality["actions"]["partial"] > 3


def test_an_overflowing_room_is_redone_with_a_larger_one_and_the_same_bits():
    for path in ("quality", "throughput"):
        common = {"path": path, "tau": 0.9, "steps": 40}
        large, small = run(2, common, {"room": 1024, **common})
        assert small["bits"] == large["bits"] and small["rooms"] > [1024]


def test_throughput_first_reads_late_only_what_the_gates_admit():
    cautious, bold, never = run(2, {"path": "throughput", "tau": 0.2}, {"path": "throughput", "tau": 0.9},
                                {"path": "throughput", "tau": 0.0})
    for result in (cautious, bold, never):
        assert result["violations"] == []
    assert bold["late_reads"] > 0 and bold["actions"]["delayed"] > 3 and never["late_reads"] == 0
    assert bold["loss"] == pytest.approx(never["loss"], rel=0.05)


def test_without_validation_the_checker_finds_reads_of_pending_rows():
    (result,) = run(2, {"path": "unvalidated", "steps": 20})
    assert any("without their pending update" in line for line in result["violations"])


def test_the_exchanges_agree():
    ordered, summed, dense = run(2, {"path": "sync", "steps": 20}, {"path": "sync", "steps": 20, "exchange": "psum"},
                                 {"path": "sync", "steps": 20, "dense": True})
    for other in (summed, dense):
        np.testing.assert_allclose(other["means"], ordered["means"], rtol=1e-3, atol=1e-4)
