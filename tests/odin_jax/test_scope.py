"""The scope of a unit: a union over its views, of a pipeline that declares how, on one device and on several."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from odin_jax.scope import mispredicted, unit_scope, usable, write_scope
from splat import Gaussians
from splat.bounds import may_touch
from splat.optim import AdamState, dense_adam, worst_step
from tests.splat import bounds_cases as cases
from tests.splat.render_cases import QUICK

RATES = Gaussians(*map(jnp.float32, (0.02, 0.1, 0.02, 0.1, 0.01, 0.01)))
STEPPED = Gaussians(*[jnp.asarray(True)] * 6)


@struct.dataclass
class State:
    gaussians: Gaussians
    alive: jax.Array
    optimizer: AdamState


class Declared:
    """The two hooks of a scope as a pipeline gives them."""

    def drift(self, state, step):
        return worst_step(state.optimizer, step, RATES, STEPPED, bias_corrected=True)

    def reach(self, state, camera, drift):
        return may_touch(state.gaussians, drift, camera, alive=state.alive)


@pytest.fixture(scope="module")
def unit():
    """(state, three cameras, two of one size)."""
    rng = np.random.default_rng(0)
    cameras = [cases.random_camera(rng) for _ in range(2)]
    gaussians = cases.random_rows(rng, cameras[0])
    cameras.append(dataclasses.replace(cases.random_camera(rng, 40, 30), view=cameras[1].view))
    alive = jnp.asarray(rng.random(cases.ROWS) < 0.9)
    return State(gaussians, alive, dense_adam().init(gaussians)), cameras


scope = jax.jit(lambda state, cameras, step, written: unit_scope(Declared(), state, cameras, step, written),
                compiler_options=QUICK)


stepped = jax.jit(lambda state, grads: jax.tree.map(jnp.add, state.gaussians, dense_adam().update(
    grads, state.optimizer, state.gaussians, learning_rates=RATES, stepped=STEPPED)[0]), compiler_options=QUICK)


def test_it_is_the_union_over_the_units_views(unit):
    state, cameras = unit
    together = np.asarray(scope(state, cameras, 1, None))
    alone = [np.asarray(scope(state, [camera], 1, None)) for camera in cameras]
    np.testing.assert_array_equal(together, np.any(alone, axis=0))
    assert all(0 < np.sum(part) < np.sum(together) for part in alone)
    assert not np.any(together & ~np.asarray(state.alive))


def test_rows_that_are_not_written_are_tested_as_they_stand(unit):
    state, cameras = unit
    widened, exact = (np.asarray(scope(state, cameras[:1], 1, jnp.full(cases.ROWS, all_))) for all_ in (True, False))
    np.testing.assert_array_equal(widened, np.asarray(scope(state, cameras[:1], 1, None)))
    assert np.all(widened[exact]) and np.sum(exact) < np.sum(widened)
    written = np.arange(cases.ROWS) % 2 == 0
    mixed = np.asarray(scope(state, cameras[:1], 1, jnp.asarray(written)))
    np.testing.assert_array_equal(mixed, np.where(written, widened, exact))


def test_it_holds_after_a_step_that_moves_only_what_was_written(unit):
    state, cameras = unit
    rng = np.random.default_rng(1)
    written = jnp.asarray(rng.random(cases.ROWS) < 0.5)
    kept = np.asarray(scope(state, cameras[:1], 1, written))
    grads = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.float32), state.gaussians)
    grads = dataclasses.replace(grads, log_scales=-jnp.abs(grads.log_scales))  # all grow
    grads = jax.tree.map(lambda g: jnp.where(written.reshape(-1, *[1] * (g.ndim - 1)), g, 0), grads)
    after = stepped(state, grads)
    touched = cases.touched(cases.PLAIN)
    now, then = (touched(rows, cameras[0], state.alive) for rows in (state.gaussians, after))
    assert np.any(then & ~now)
    assert not np.any(then & ~kept)


def test_each_rank_gives_its_own_views(unit):
    """On two devices where there are two; the rules of tracing under ``shard_map`` are the same on one."""
    state, cameras = unit
    devices = jax.devices()[:2]
    mesh = Mesh(np.asarray(devices), ("rank",))

    def mine(state, camera):
        camera = jax.tree.map(lambda leaf: leaf[0], camera)
        return unit_scope(Declared(), state, [camera, camera], 1)[None]

    ranks = jax.jit(jax.shard_map(mine, mesh=mesh, in_specs=(P(), P("rank")), out_specs=P("rank")),
                    compiler_options=QUICK)
    found = ranks(state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras[: len(devices)]))
    assert len(found) == len(devices)
    for row, camera in zip(np.asarray(found), cameras, strict=False):
        np.testing.assert_array_equal(row, scope(state, [camera], 1, None))


def test_a_pipeline_without_hooks_and_a_unit_without_views_have_no_scope(unit):
    state, cameras = unit

    class Half:
        reach = Declared.reach

    assert unit_scope(object(), state, cameras, 1) is None
    assert unit_scope(Half(), state, cameras, 1) is None
    assert unit_scope(Declared(), state, [], 1) is None


def test_missing_and_broad_scopes_are_not_usable():
    assert usable(None, 100, 0.9) == "missing scope"
    assert usable(91, 100, 0.9) == "scope too broad"
    assert usable(90, 100, 0.9) is None
    assert usable(0, 0, 0.9) is None
    assert usable(100, 100, 1.0) is None


def test_a_write_scope_lies_in_the_read_scope_and_what_it_missed_is_counted():
    read, last, active = (jnp.asarray(rows, bool) for rows in ([1, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0]))
    np.testing.assert_array_equal(write_scope(read), read)
    expected = write_scope(read, last)
    np.testing.assert_array_equal(expected, [True, False, False, False])
    assert int(mispredicted(active, expected)) == 1
    assert int(mispredicted(active, write_scope(read))) == 0
