"""What the check for GPUs reads out of a compiled program, and what it makes of it; no program is compiled here."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from odin_jax.gpu import check, cluster, flags, roofline, shapes
from odin_jax.gpu.hlo import Program
from odin_jax.gpu.look import Facts, facts
from scripts.bench import gpu
from splat.errors import UserError
from splat.pipelines.gs3d import Gs3d, Gs3dConfig
from splat.pipelines.taming import Taming, TamingConfig

HLO = """HloModule jit_f, is_scheduled=true

%fused (p: f32[4,2]) -> f32[4,2] {
  %p = f32[4,2]{1,0} parameter(0)
  ROOT %n = f32[4,2]{1,0} negate(%p)
}

%body (t: (s32[], f32[4,2])) -> (s32[], f32[4,2]) {
  %t = (s32[], f32[4,2]{1,0}) parameter(0)
  %a = f32[4,2]{1,0} get-tuple-element(%t), index=1
  %f = f32[4,2]{1,0} fusion(%a), kind=kLoop, calls=%fused
  %g = f32[4,2]{1,0} fusion(%f), kind=kLoop, calls=%fused
  ROOT %r = (s32[], f32[4,2]{1,0}) tuple(%a, %g)
}

%until (t.1: (s32[], f32[4,2])) -> pred[] {
  %t.1 = (s32[], f32[4,2]{1,0}) parameter(0)
  ROOT %c = pred[] fusion(%t.1), kind=kLoop, calls=%fused
}

ENTRY %main (x: f32[4,2]) -> f32[4,2] {
  %x = f32[4,2]{1,0} parameter(0)
  %s = (f32[4,2]{1,0}, f32[8,2]{1,0}) all-gather-start(%x), metadata={op_name="jit(f)/rest/all_gather"}, backend_config={"collective_backend_config":{"is_sync":SYNC}}
  %i = (s32[], f32[4,2]{1,0}, /*index=2*/f32[100,2]{1,0}) tuple(%x, %x)
  %w = (s32[], f32[4,2]{1,0}, /*index=2*/f32[100,2]{1,0}) while(%i), condition=%until, body=%body, metadata={op_name="jit(f)/forward_backward/while"}, backend_config={TRIPS}
  %d = f32[8,2]{1,0} all-gather-done(%s), metadata={op_name="jit(f)/rest/all_gather"}
  ROOT %o = KIND[4,2]{1,0} fusion(%d), kind=kLoop, calls=%fused
}
"""  # noqa: E501
SCOPES = ("rest", "forward_backward")
OVERLAPS = (("rest", "all-gather", "forward_backward"),)


class Compiled:
    """A compiled program that is only text."""

    def __init__(self, text: str, temporaries: int = 100):
        self.text, self.temp_size_in_bytes = text, temporaries
        self.argument_size_in_bytes, self.output_size_in_bytes, self.alias_size_in_bytes = 32, 32, 16

    def as_text(self) -> str:
        return self.text

    def memory_analysis(self):
        return self


def found(sync: str = "false", trips: str = '"known_trip_count":{"n":"5"}', kind: str = "f32", **more) -> Facts:
    text = HLO.replace("SYNC", sync).replace("TRIPS", trips).replace("KIND", kind)
    return facts("f", Compiled(text, **more), SCOPES)


def test_a_program_is_read_as_it_is_scheduled():
    seen = found()
    (gather,), (loop,) = seen.exchanges, seen.loops
    assert (gather.scope, gather.kind, gather.bytes, gather.pair) == ("rest", "all-gather", 64, True)
    assert gather.loops == ("forward_backward",) and gather.kernels == 5 * 3
    assert (loop.scope, loop.trips, loop.kernels, loop.depth) == ("forward_backward", 5, 3, 0)
    assert seen.kernels == 15 + 2 and seen.bytes["peak"] == 32 + 32 - 16 + 100
    assert seen.largest[0] == 64 and not seen.wide and not seen.host
    assert found(trips="").loops[0].trips is None


def test_what_is_wrong_is_told():
    assert check._problems(found(), OVERLAPS, "rtx4090") == []
    assert "synchronous" in check._problems(found(sync="true"), OVERLAPS, "rtx4090")[0]
    assert "host" in check._problems(found(trips=""), OVERLAPS, "rtx4090")[0]
    assert "64 bits" in check._problems(found(kind="f64"), OVERLAPS, "rtx4090")[0]
    assert "GB" in check._problems(found(temporaries=25 * 10**9), OVERLAPS, "rtx4090")[0]
    assert check._problems(found(temporaries=25 * 10**9), OVERLAPS, "h200") == []
    assert "was found" in check._problems(found(), (("rest", "all-reduce", "forward_backward"),), "h200")[0]
    before = dataclasses.replace(found().exchanges[0], loops=())
    assert "ends before" in check._problems(dataclasses.replace(found(), exchanges=[before]), OVERLAPS, "h200")[0]


def test_loops_in_loops_are_counted_in_turn():
    program = Program(HLO.replace("TRIPS", ""))
    assert len(program.launched(program.entry)) == len(program.entry) + 5 + 2


def test_flags_of_the_user_come_first():
    given = "--xla_gpu_enable_latency_hiding_scheduler=false --xla_dump_to=x"
    environ = {"XLA_FLAGS": given, "NCCL_IGNORE_DISABLED_P2P": "0"}
    flags.set_defaults(environ)
    assert environ["XLA_FLAGS"].startswith(given) and environ["XLA_FLAGS"].count("latency_hiding") == 1
    assert "--xla_gpu_all_reduce_combine_threshold_bytes=1" in environ["XLA_FLAGS"].split()
    assert environ["NCCL_IGNORE_DISABLED_P2P"] == "0" and environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9"
    again = dict(environ)
    flags.set_defaults(again)
    assert again == environ


def test_without_the_wheels_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cluster, "_installed", lambda: {"jax", "numpy"})
    with pytest.raises(UserError, match=r"pip install 'jax\[cuda13\]=="):
        cluster.prepare()


@pytest.mark.parametrize("device", cluster.TARGETS)
def test_targets_say_what_the_check_needs(device):
    assert check.usable(device) > 20e9 and float(cluster.capability(device)) >= 8.9
    assert cluster.number(device, "memory_bandwidth") > 1e12


@pytest.mark.parametrize("pipeline", [Gs3d(Gs3dConfig()), Taming(TamingConfig())], ids=lambda pipeline: pipeline.name)
def test_a_described_state_is_that_of_a_real_one(pipeline):
    points = np.random.default_rng(0).uniform(-1, 1, (1500, 3)).astype(np.float32)
    real = pipeline.init(points, np.zeros((1500, 3), np.uint8), 1.0, 0)
    told = shapes.state(pipeline, len(real.alive))
    assert jax.tree.structure(told) == jax.tree.structure(real)
    assert [leaf.shape for leaf in jax.tree.leaves(told)] == [np.shape(leaf) for leaf in jax.tree.leaves(real)]


@pytest.mark.parametrize(("change", "word"), [({"hosts": 1, "gpus": 1}, "single GPU"), ({"active": 1.5}, "--active"),
                                              ({"rows": 0}, "--rows"), ({"pairs": 0.0}, "--pairs")])
def test_options_that_cannot_work_are_refused(change, word):
    with pytest.raises(UserError, match=word):
        check.validate(check.CheckConfig(**change))


def test_the_roofline_is_the_longer_of_memory_and_arithmetic():
    rows, pairs = 1_000_000, 5_000_000
    ahead = roofline.forward(rows, pairs, 1600 * 1064)
    assert roofline.update(rows).seconds("rtx4090") == pytest.approx(7 * 59 * 4 * rows / 1008e9)
    assert ahead.seconds("rtx4090") == pytest.approx(ahead.bytes / 1008e9)
    assert roofline.Work(10**9, 10**12).seconds("rtx4090") == pytest.approx(10**12 / 82.6e12, rel=0.01)
    assert (ahead + roofline.backward(rows, pairs, 1600 * 1064)).flops > 2 * ahead.flops
    assert roofline.described_as("NVIDIA H200") == "h200" and roofline.described_as("cpu") is None


@pytest.mark.parametrize("options", [["--sizes", "64by48"], ["--rows", "8"], ["--active", "2"]])
def test_the_benchmark_refuses_what_cannot_be_timed(options):
    with pytest.raises(UserError, match=options[0]):
        gpu.main(options)
