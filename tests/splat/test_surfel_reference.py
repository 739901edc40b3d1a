"""The surfel renderer agrees with its slow twin and with finite differences, in all that it is differentiated to."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat import Camera, Gaussians
from splat.surfel.options import SurfelOptions
from splat.surfel.reference import surfel_ref
from splat.surfel.render import render_surfels
from tests.splat.render_cases import QUICK, Inputs, check_slopes, named, random_inputs

F64 = jnp.float64
MAPS = ("image", "alpha", "normal", "depth", "median_depth", "distortion")
OPTIONS = SurfelOptions(pair_capacity=2048)


def surfels(seed: int, **scene: Any) -> tuple[Inputs, jax.Array, dict[str, jax.Array]]:
    """(inputs, alive [N], weight of each map in the loss) of a random scene of surfels."""
    inputs, alive = random_inputs(seed, F64, **scene)
    flat = dataclasses.replace(inputs.gaussians, log_scales=inputs.gaussians.log_scales[:, :2])
    camera, rng = inputs.camera, np.random.default_rng(seed)
    shapes = {name: (camera.height, camera.width, *((3,) if name in ("image", "normal") else ())) for name in MAPS}
    weights = {name: jnp.asarray(rng.standard_normal(shape), F64) for name, shape in shapes.items()}
    return dataclasses.replace(inputs, gaussians=flat), alive, weights


@functools.cache
def program(renderer: Callable[..., Any]) -> Callable[..., Any]:
    """(inputs, alive, weights) → ((loss, maps by name), gradient as Inputs)."""

    def loss(inputs: Inputs, alive: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        out = renderer(inputs.gaussians, inputs.camera, alive=alive, background=inputs.background,
                       probe=inputs.probe, options=OPTIONS)
        maps = {name: getattr(out, name) for name in MAPS}
        return sum(jnp.sum(maps[name] * weights[name]) for name in MAPS), maps

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), max_logit=st.sampled_from([0.0, 8.0]), size=st.sampled_from([-4.5, -1.8, 0.5]),
       spread=st.sampled_from([0.4, 1.2, 4.0]))
def test_maps_and_gradients_equal_the_twin(seed, max_logit, size, spread):
    """Small disks that the low-pass filter widens, large ones that reach behind the camera, capped responses, pixels
    that end early, rows beyond the image."""
    with jax.enable_x64(True):
        scene = surfels(seed, max_logit=max_logit, size=size, spread=spread)
        (_, maps), grads = program(render_surfels)(*scene)
        (_, wanted), grads_wanted = program(surfel_ref)(*scene)
    for name in MAPS:
        np.testing.assert_allclose(maps[name], wanted[name], rtol=1e-9, atol=1e-9, err_msg=name)
    gradients = named(grads_wanted)
    scale = max(np.abs(leaf).max() for leaf in gradients.values())
    for name, found in named(grads).items():
        np.testing.assert_allclose(found, gradients[name], atol=1e-10 * scale, rtol=1e-6, err_msg=name)


def test_the_cases_reach_what_they_claim():
    """Some disks of the large scenes reach behind the camera plane within what is seen of them."""
    with jax.enable_x64(True):
        inputs, alive, _ = surfels(0, size=0.5)
        g, view = inputs.gaussians, np.asarray(inputs.camera.view)
        q = np.asarray(g.quats / jnp.linalg.norm(g.quats, axis=1, keepdims=True))
        depth = np.asarray(g.means) @ view[2, :3] + view[2, 3]
        turn = np.stack([_turned(q, axis) for axis in np.eye(3)[:2]], 1) @ view[2, :3]
        reach = np.sqrt(2 * np.log(np.maximum(255 * np.asarray(g.opacities), 1)))
        lowest = depth - reach * np.linalg.norm(turn * np.exp(np.asarray(g.log_scales)), axis=1)
    crossing = np.asarray(alive) & (depth > 0.2) & (lowest < 0)
    assert crossing.sum() >= 3


def _turned(q: np.ndarray, axis: np.ndarray) -> np.ndarray:
    w, u = q[:, :1], q[:, 1:]
    across = np.cross(u, axis)
    return axis + 2 * (w * across + np.cross(u, across))


@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_equal_finite_differences(seed):
    """Along a random direction in each input; no response is capped, since the cap's gradient passes straight
    through. The median depth jumps from hit to hit, so it has no part here."""
    step = 1e-8
    with jax.enable_x64(True):
        inputs, alive, weights = surfels(seed, max_logit=2.0)
        weights["median_depth"] = jnp.zeros_like(weights["median_depth"])
        run = program(render_surfels)
        check_slopes(run, inputs, (alive, weights), np.random.default_rng(seed), step=step, tolerance=1e-4)


def test_one_disk_seen_face_on():
    """Responses, depth and normal of a disk in front of the camera are those of the formula on paper."""
    with jax.enable_x64(True):
        rows = Gaussians(jnp.array([[0.0, 0.0, 2.0]]), jnp.log(jnp.array([[0.5, 0.25]])),
                         jnp.array([[1.0, 0.0, 0.0, 0.0]]), jnp.array([math.log(4.0)]), jnp.zeros((1, 3)),
                         jnp.zeros((1, 15, 3)))
        camera = Camera(jnp.eye(4), jnp.array([20.0, 20.0, 12.0, 10.0]), 24, 20)
        out = render_surfels(rows, camera, options=OPTIONS)
    x, y = np.meshgrid(np.arange(24) + 0.5 - 12, np.arange(20) + 0.5 - 10)
    wanted = 0.8 * np.exp(-0.5 * ((x / 5) ** 2 + (y / 2.5) ** 2))
    wanted[wanted < 1 / 255] = 0
    np.testing.assert_allclose(out.alpha, wanted, atol=1e-12)
    np.testing.assert_allclose(out.depth, 2 * wanted, atol=1e-12)
    np.testing.assert_allclose(out.median_depth, np.where(wanted > 0, 2, 0), atol=1e-12)
    np.testing.assert_allclose(out.normal, -wanted[..., None] * [0, 0, 1], atol=1e-12)
    assert np.abs(out.distortion).max() < 1e-12
