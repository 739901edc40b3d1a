"""The GPU kernels, interpreted on the CPU: they blend as XLA's loops do, and as the renderer's slow twin."""

from __future__ import annotations

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat import render
from splat.errors import UserError
from splat.projection import project
from splat.raster import blend, pallas
from splat.raster.reference import raster_ref
from splat.surfel import blend as surfel_blend
from splat.surfel.reference import surfel_ref
from splat.surfel.render import render_surfels
from splat.tiles import build
from tests.splat.render_cases import QUICK, ROOMY, named, random_inputs, random_weights, relative_error
from tests.splat.test_surfel_reference import MAPS, OPTIONS, surfels

SIDE, WIDTH, HEIGHT = 16, 37, 29
quick = functools.partial(jax.jit, compiler_options=QUICK)
FORWARD = {"loops": quick(lambda *args: blend._forward(*args, WIDTH, HEIGHT)),
           "kernels": quick(lambda *args: pallas.forward(*args, WIDTH, HEIGHT))}
BACKWARD = {"loops": quick(blend._backward), "kernels": quick(pallas.backward)}


def lists_of(seed: int, capacity: int, **scene):
    inputs, alive = random_inputs(seed, jnp.float32, width=WIDTH, height=HEIGHT, **scene)
    return listed(inputs.gaussians, inputs.camera, alive, capacity)


@functools.partial(quick, static_argnames="capacity")
def listed(gaussians, camera, alive, capacity):
    proj = project(gaussians, camera, alive=alive, sh_degree=1, probe=None, options=ROOMY)
    return proj.geometry, proj.features, build(proj, WIDTH, HEIGHT, capacity, SIDE)


@pytest.mark.parametrize(("seed", "scene"), [(0, {}), (1, {"size": 0.0}), (2, {"spread": 4.0, "size": -3.0})])
def test_both_ways_of_blending_agree(seed, scene):
    geometry, features, lists = lists_of(seed, 512, **scene)
    assert not lists.overflow
    image = FORWARD["loops"](geometry, features, lists)
    kernel = FORWARD["kernels"](geometry, features, lists)
    np.testing.assert_allclose(kernel, image, atol=1e-5 * float(np.abs(image).max()))
    d_image = jnp.asarray(np.random.default_rng(seed).standard_normal(image.shape), jnp.float32)
    wanted = BACKWARD["loops"](geometry, features, lists, image, d_image)
    found = BACKWARD["kernels"](geometry, features, lists, kernel, d_image)
    for column in range(wanted.shape[1]):
        assert relative_error(found[:, column], wanted[:, column]) < 1e-4, column


def test_rows_behind_an_opaque_tile_get_no_gradient():
    """The walk ends early there, and the slots that it does not reach are set to zero: the interpreter fills
    them with NaN.
    """
    geometry, features, lists = lists_of(1, 2048, rows=300, size=0.5, max_logit=8.0)
    reached = FORWARD["kernels"](geometry, features, lists)
    assert float(reached[..., -1].min()) > 0.999 and int(lists.pairs) > 600
    grads, wanted = (BACKWARD[way](geometry, features, lists, reached, jnp.ones_like(reached)) for way in BACKWARD)
    assert np.isfinite(grads).all() and (np.abs(grads).max(axis=1) == 0).sum() > 100
    np.testing.assert_array_equal(np.abs(grads).max(axis=1) == 0, np.abs(wanted).max(axis=1) == 0)


def equal(loss, renderer, twin, inputs, tolerance):
    """``loss(function, inputs)`` and all of its gradients are those of the twin; ``tolerance`` is of the largest."""
    (value, grads), (value_twin, grads_twin) = (
        quick(jax.value_and_grad(functools.partial(loss, function)))(inputs) for function in (renderer, twin))
    assert np.isclose(value, value_twin, rtol=1e-10)
    wanted = named(grads_twin)
    scale = max(np.abs(leaf).max() for leaf in wanted.values())
    for name, found in named(grads).items():
        np.testing.assert_allclose(found, wanted[name], atol=tolerance * scale, rtol=100 * tolerance, err_msg=name)


def test_the_renderer_with_kernels_equals_the_twin():
    """Image and every gradient, in float64, through ``splat.render`` as a GPU would run it."""
    with jax.enable_x64(True), mock.patch.object(blend, "in_kernels", lambda: True):
        inputs, alive = random_inputs(3, jnp.float64, width=WIDTH, height=HEIGHT)
        weights = random_weights(3, inputs.camera, jnp.float64)

        def loss(function, inputs):
            out = function(inputs.gaussians, inputs.camera, alive=alive, background=inputs.background,
                           probe=inputs.probe, sh_degree=2, options=ROOMY)
            return sum(jnp.sum(getattr(out, name) * getattr(weights, name)) for name in ("image", "alpha", "depth"))

        equal(loss, render, raster_ref, inputs, 1e-10)


def test_surfels_in_kernels_equal_the_twin():
    """Every map and every gradient, in float64, through the renderer as a GPU would run it."""
    with jax.enable_x64(True), mock.patch.object(surfel_blend, "in_kernels", lambda: True):
        inputs, alive, weights = surfels(3)
        camera = inputs.camera

        def loss(function, inputs):
            out = function(inputs.gaussians, camera, alive=alive, background=inputs.background, probe=inputs.probe,
                           options=OPTIONS)
            return sum(jnp.sum(getattr(out, name) * weights[name]) for name in MAPS)

        equal(loss, render_surfels, surfel_ref, inputs, 1e-9)


def test_more_pairs_than_can_be_indexed_are_refused():
    geometry, features, lists = lists_of(0, 512)
    wide = dataclasses.replace(lists, rows=jax.ShapeDtypeStruct((2**28,), jnp.int32))
    with pytest.raises(UserError, match="index 214,748,364"):
        jax.eval_shape(lambda *args: pallas.forward(*args, WIDTH, HEIGHT), geometry, features, wide)
