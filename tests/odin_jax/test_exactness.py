"""Quality-first training ends with the bits of synchronised training, and what else must hold of windows."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("parallel_run.py")
LONG = {"steps": 300}
TIGHT = {"room": 1024}  # tile-row pairs; too few
CASES = {
    "sync": {"path": "sync"},
    "quality": {},
    "quality tight": {**TIGHT},
    "short-sighted": {"fault": "scope"},
    "forgetful": {"fault": "publication"},
    "throughput": {"path": "throughput"},
    "throughput bold": {"path": "throughput", "tau": 0.9},
    "throughput bold tight": {"path": "throughput", "tau": 0.9, **TIGHT},
    "throughput never": {"path": "throughput", "tau": 0.0},
    "unvalidated": {"path": "unvalidated", "steps": 20},
    "sync short": {"path": "sync", "steps": 20},
    "psum": {"path": "sync", "steps": 20, "exchange": "psum"},
    "dense": {"path": "sync", "steps": 20, "dense": True},
    "sync long": {"path": "sync", **LONG},
    "quality long": {**LONG},
    "sync long sparse": {"path": "sync", "optimizer": "sparse_adam", **LONG},
    "quality long sparse": {"optimizer": "sparse_adam", **LONG},
}


def run(ranks: int, *cases: dict[str, object]) -> list[dict]:
    """What ``parallel_run`` prints for the cases, which share one process and its programs."""
    done = subprocess.run([sys.executable, str(SCRIPT), str(ranks), json.dumps(cases)], capture_output=True, text=True,
                          timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def others(ranks: int, pipeline: str) -> list[dict]:
    """Another pipeline than 3DGS on each path: synchronised, quality-first, throughput-first."""
    paths: list[dict[str, object]] = [{"path": "sync"}, {}, {"path": "throughput", "tau": 0.9}]
    return run(ranks, *({**path, "pipeline": pipeline} for path in paths))


@pytest.fixture(scope="module")
def two() -> dict[str, dict]:
    """Every case on two ranks."""
    return dict(zip(CASES, run(2, *CASES.values()), strict=True))


@pytest.mark.parametrize("optimizer", ["adam", "sparse_adam"])
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_quality_first_is_synchronised_training_bit_for_bit(ranks, optimizer):
    sync, quality = run(ranks, {"path": "sync", "optimizer": optimizer, **LONG}, {"optimizer": optimizer, **LONG})
    through_structural_events(sync, quality)
    assert sync["actions"].keys() == {"barrier"} and not sync["violations"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("pipeline", ["2dgs", "taming"])
def test_other_pipelines_are_trained_bit_for_bit_through_structural_events(ranks, pipeline):
    sync, quality, _ = others(ranks, pipeline)
    assert quality["bits"] == sync["bits"] and not quality["violations"]
    assert quality["structural"] > 3 and quality["alive"] != 500
    assert quality["actions"]["partial"] > 5


@pytest.mark.parametrize("optimizer", ["", " sparse"])
def test_bit_for_bit_through_three_hundred_steps_with_structural_events(two, optimizer):
    sync, quality = two[f"sync long{optimizer}"], two[f"quality long{optimizer}"]
    through_structural_events(sync, quality)
    assert 0 < quality["urgent_rows"] < 0.8 * quality["active_rows"]


def through_structural_events(sync: dict, quality: dict) -> None:
    """Both ended with the same bits after structural events and windows of every kind."""
    assert quality["bits"] == sync["bits"] and not quality["violations"]
    assert quality["structural"] > 10 and quality["alive"] != 500
    assert quality["actions"]["partial"] > 50


def test_planted_faults_are_noticed(two):
    assert two["quality"]["bits"] == two["sync"]["bits"]
    for fault in ("short-sighted", "forgetful"):
        assert two[fault]["bits"] != two["sync"]["bits"], fault


def test_one_program_per_window_gives_the_bits_of_two_lanes_whatever_the_room():
    fused = {"executor": "fused", "steps": 16}
    sync, quality, lanes, small = run(2, {"path": "sync", **fused}, fused, {"steps": 16}, {**TIGHT, **fused})
    assert sync["bits"] == quality["bits"] == lanes["bits"]
    assert small["bits"] == quality["bits"] and small["rooms"] > [1024]
    assert quality["actions"]["partial"] > 3


def test_an_overflowing_room_is_redone_with_a_larger_one_and_the_same_bits(two):
    for path in ("quality", "throughput bold"):
        assert two[f"{path} tight"]["bits"] == two[path]["bits"] and two[f"{path} tight"]["rooms"] > [1024]


def test_throughput_first_reads_late_only_what_the_gates_admit(two):
    for name in ("throughput", "throughput bold", "throughput never"):
        assert two[name]["violations"] == []
    bold, never = two["throughput bold"], two["throughput never"]
    assert bold["late_reads"] > 0 and bold["actions"]["delayed"] > 0 and never["late_reads"] == 0
    assert bold["loss"] == pytest.approx(never["loss"], rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("pipeline", ["2dgs", "taming"])
def test_throughput_first_of_other_pipelines_reads_late_only_what_the_gates_admit(ranks, pipeline):
    _, quality, throughput = others(ranks, pipeline)
    assert throughput["violations"] == [] and quality["late_reads"] == 0
    assert throughput["late_reads"] > 0 and throughput["actions"]["delayed"] > 0
    assert throughput["loss"] == pytest.approx(quality["loss"], rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_dash_is_trained_bit_for_bit_through_a_change_of_resolution(ranks):
    dash: dict[str, object] = {"pipeline": "dash", "steps": 20}
    sparse = {**dash, "optimizer": "sparse_adam"}
    results = run(ranks, {"path": "sync", **dash}, dash, {"path": "sync", **sparse}, sparse)
    for sync, quality in (results[:2], results[2:]):
        assert quality["bits"] == sync["bits"] and not quality["violations"]
        assert quality["sizes"] == [[24, 16], [48, 32]] and quality["alive"] > 500 and quality["structural"] > 3
        assert sync["actions"].keys() == {"barrier"} and quality["actions"]["partial"] > 5
    assert results[0]["bits"] != results[2]["bits"]


def test_without_validation_the_checker_finds_reads_of_pending_rows(two):
    assert any("without their pending update" in line for line in two["unvalidated"]["violations"])


def test_the_exchanges_agree(two):
    for other in ("psum", "dense"):
        np.testing.assert_allclose(two[other]["means"], two["sync short"]["means"], rtol=1e-3, atol=1e-4)
