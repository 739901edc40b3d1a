"""The renderer as someone's library: under jit, vmap over cameras, grad inside their loss, and shard_map."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import splat
from splat import Camera, RenderOptions
from splat.errors import UserError
from tests.splat.render_cases import QUICK, ROOMY, ROWS, WIDTH, forward, named, program, random_inputs, random_weights

ROOT = Path(__file__).resolve().parents[2]


def test_without_options_room_is_counted_where_the_scene_is_known():
    """As an argument of no transformation, and closed over by a jitted function."""
    inputs, alive = random_inputs(0, jnp.float32)
    out = splat.render(inputs.gaussians, inputs.camera, alive=alive, background=inputs.background)
    wanted = forward(ROOMY)(inputs.gaussians, inputs.camera, alive, inputs.background)
    assert not bool(out.overflow)
    assert int(out.pairs) == int(wanted.pairs)
    np.testing.assert_allclose(out.image, wanted.image, atol=1e-5)
    np.testing.assert_array_equal(out.visible, wanted.visible)

    @jax.jit
    def closed(probe):
        out = splat.render(inputs.gaussians, inputs.camera, alive=alive, probe=probe)
        return out.pairs, out.overflow

    pairs, overflow = closed(jnp.zeros((ROWS, 2)))
    assert int(pairs) == int(wanted.pairs)
    assert not bool(overflow)


def test_options_key_a_compiled_program():
    assert hash(RenderOptions(pair_capacity=7)) == hash(RenderOptions(pair_capacity=7))
    assert RenderOptions() != RenderOptions(antialias=True)
    traced = []

    @functools.partial(jax.jit, static_argnames="options")
    def scaled(x, options):
        traced.append(options)
        return options.near * x

    assert [float(scaled(1.0, options=RenderOptions(near=near))) for near in (0.5, 0.5, 2.0)] == [0.5, 0.5, 2.0]
    assert [options.near for options in traced] == [0.5, 2.0]


def test_vmap_over_cameras_inside_someones_loss():
    """The gradient of a mean squared error over a batch of poses is that of the single renders, pose included."""
    with jax.enable_x64(True):
        inputs, alive = random_inputs(1, jnp.float64)
        shifts = jnp.asarray([[0.0, 0.0, 0.0], [0.3, -0.1, 0.4], [-1.0, 0.2, -0.2]])
        cameras = [dataclasses.replace(inputs.camera, view=inputs.camera.view.at[:3, 3].add(s)) for s in shifts]
        batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cameras)
        photo = jnp.asarray(np.random.default_rng(0).random((inputs.camera.height, WIDTH, 3)))

        def loss(gaussians, batch):
            image = jax.vmap(lambda camera: splat.render(gaussians, camera, alive=alive, options=ROOMY).image)(batch)
            return jnp.mean((image - photo) ** 2), image

        (_, images), (rows, poses) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True),
                                             compiler_options=QUICK)(inputs.gaussians, batch)
        single = program("render", ROOMY, 3, True)
        nothing = jax.tree.map(jnp.zeros_like, random_weights(0, inputs.camera, jnp.float64))
        summed = jax.tree.map(jnp.zeros_like, rows)
        bare = dataclasses.replace(inputs, background=jnp.zeros(3), probe=jnp.zeros_like(inputs.probe))
        for i, camera in enumerate(cameras):
            weights = dataclasses.replace(nothing, image=2 * (images[i] - photo) / images.size)
            (_, (image, _, _)), grads = single(dataclasses.replace(bare, camera=camera), alive, weights)
            np.testing.assert_allclose(images[i], image, atol=1e-12)
            np.testing.assert_allclose(poses.view[i], grads.camera.view, rtol=1e-8, atol=1e-12)
            summed = jax.tree.map(jnp.add, summed, grads.gaussians)
        for name, wanted in named(summed).items():
            np.testing.assert_allclose(named(rows)[name], wanted, rtol=1e-7, atol=1e-12, err_msg=name)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from splat import Camera, render
from tests.splat.render_cases import QUICK, ROOMY, random_inputs

assert jax.device_count() == 2
inputs, alive = random_inputs(0, jnp.float32)
camera = inputs.camera
views = jnp.stack([camera.view, camera.view.at[0, 3].add(0.3)])

def image(gaussians, views):
    return render(gaussians, Camera(views[0], camera.intrinsics, camera.width, camera.height), alive=alive,
                  options=ROOMY).image[None]

mesh = jax.make_mesh((2,), ("views",))
spread = jax.shard_map(image, mesh=mesh, in_specs=(P(), P("views")), out_specs=P("views"), check_vma=False)
gaussians = jax.device_put(inputs.gaussians, NamedSharding(mesh, P()))
found = jax.jit(spread, compiler_options=QUICK)(gaussians, jax.device_put(views, NamedSharding(mesh, P("views"))))
assert len(found.sharding.device_set) == 2
alone = jax.jit(image, compiler_options=QUICK)
wanted = jnp.concatenate([alone(inputs.gaussians, views[i:i + 1]) for i in range(2)])
np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=1e-5)
assert np.ptp(np.asarray(wanted)) > 0.1
"""


def test_shard_map_over_two_devices_renders_the_same():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SHARDED], cwd=ROOT, env=environment, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_camera_is_a_pytree_with_a_static_size():
    camera = Camera(jnp.eye(4), jnp.ones(4), 3, 5)
    assert len(jax.tree.leaves(camera)) == 2
    assert jax.tree.map(lambda x: 2 * x, camera).height == 5
    assert jax.tree.structure(camera) != jax.tree.structure(dataclasses.replace(camera, width=4))
    np.testing.assert_allclose(camera.centre, jnp.zeros(3))


def misused(**changes):
    """A render of three rows with some of its arguments replaced."""
    rows = splat.Gaussians(jnp.ones((3, 3)), jnp.zeros((3, 3)), jnp.ones((3, 4)), jnp.zeros(3), jnp.zeros((3, 3)),
                           jnp.zeros((3, 15, 3)))
    camera = Camera(jnp.eye(4), jnp.ones(4), 4, 4)
    fields = {name: changes.pop(name) for name in list(changes) if hasattr(rows, name)}
    lens = {name: changes.pop(name) for name in list(changes) if hasattr(camera, name)}
    return splat.render(dataclasses.replace(rows, **fields), dataclasses.replace(camera, **lens), **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"means": jnp.ones((4, 3))}, r"log_scales has the shape \(3, 3\): it must be \(4, 3\)"),
        ({"means": [[0.0, 0.0, 4.0]] * 3}, "means is a list: it must be an array"),
        ({"means": jnp.ones((3, 3), int)}, "float32, int32: all must be of one floating-point dtype"),
        ({"log_scales": jnp.zeros((3, 2))}, "log_scales has the shape"),
        ({"sh_rest": jnp.zeros((3, 8, 3))}, r"sh_rest .* must be \(3, 15, 3\)"),
        ({"view": jnp.eye(4)[None]}, "view .* use jax.vmap"),
        ({"intrinsics": jnp.eye(3)}, "intrinsics has the shape"),
        ({"width": 4.5}, "width is 4.5: it must be a whole number"),
        ({"alive": jnp.ones(2, bool)}, "alive has the shape"),
        ({"background": jnp.zeros(4)}, "background has the shape"),
        ({"probe": jnp.zeros((3, 3))}, "probe has the shape"),
        ({"sh_degree": 4}, "sh_degree=4: must be 0, 1, 2 or 3"),
    ],
)
def test_an_argument_of_the_wrong_shape_or_kind_is_named(changes, words):
    with pytest.raises(UserError, match=words):
        misused(**changes)
    with pytest.raises(UserError, match=words):
        jax.eval_shape(lambda shift: misused(**changes).image + shift, jnp.float32(0))


@pytest.mark.parametrize("changes", [{"pair_capacity": 0}, {"low_pass": float("nan")}, {"near": -1.0}])
def test_options_that_cannot_work_are_named(changes):
    with pytest.raises(UserError, match=f"{next(iter(changes))}="):
        RenderOptions(**changes)


def test_a_view_binned_before_its_colours_are_there_renders_the_same():
    inputs, alive = random_inputs(0, jnp.float32)
    scene, camera = inputs.gaussians, inputs.camera
    late = dataclasses.replace(scene, sh_dc=scene.sh_dc + 1, sh_rest=scene.sh_rest - 1)
    whole = splat.render(scene, camera, alive=alive)
    lists = splat.bin_view(late, camera, 4096, alive=alive)
    given = splat.render(scene, camera, alive=alive, lists=lists)
    np.testing.assert_allclose(given.image, whole.image, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(given.visible, whole.visible)
    assert int(given.pairs) == int(whole.pairs) > 4 and not given.overflow
    small = splat.render(scene, camera, alive=alive, lists=splat.bin_view(late, camera, 4, alive=alive))
    assert small.overflow and np.isnan(small.image).all()
