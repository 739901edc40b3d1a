"""Losses of strips add up to that of the image, wherever it is cut, and go back to the same gradient."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat.cameras import Camera
from splat.loss import mean_squared_error, photometric
from splat.pipelines.gs2d import Gs2d, Gs2dConfig
from splat.pipelines.gs3d import Gs3d, Gs3dConfig
from splat.pipelines.protocol import View
from splat.strips import cut_out, photometric_part, squared_error_part

WIDTH, HEIGHT = 40, 36  # pixels
ROOM = 4000  # tile-row pairs
REGULARISED = {"normal_from": 0, "distortion_from": 0, "distortion_weight": 10.0}
PIPELINES = {"3dgs": (Gs3d, Gs3dConfig, {}), "2dgs": (Gs2d, Gs2dConfig, REGULARISED)}
_part = jax.jit(lambda image, strip: (photometric_part(image, strip), squared_error_part(image, strip)))


def view(masked: bool) -> View:
    rng = np.random.default_rng(3)
    photo = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    mask: Any = rng.integers(0, 256, (HEIGHT, WIDTH), np.uint8) if masked else None
    camera: Any = Camera(np.eye(4, dtype=np.float32), np.float32([40, 42, 20, 18]), WIDTH, HEIGHT)  # type: ignore[arg-type]
    return View(camera, photo, mask, np.float32([0.1, 0.2, 0.3]))  # type: ignore[arg-type]


def strips(whole: View, ends: list[int], rows: int) -> list[Any]:
    """Strips with room for so many rows that end at the given rows."""
    return [jax.tree.map(jnp.asarray, cut_out(whole, first, end - first, rows))
            for first, end in pairwise([0, *ends])]


@settings(deadline=None, max_examples=12)
@given(st.sets(st.integers(1, HEIGHT - 1), min_size=1, max_size=3), st.booleans())
def test_losses_of_strips_add_up_to_that_of_the_image(cuts, masked):
    whole, image = view(masked), np.random.default_rng(5).random((HEIGHT, WIDTH, 3), np.float32)
    padded = np.pad(image, ((HEIGHT, 2 * HEIGHT), (0, 0), (0, 0)), constant_values=7)  # what lies outside: of no effect
    total = np.zeros(2)
    for strip in strips(whole, [*sorted(cuts), HEIGHT], HEIGHT):
        top = int(strip.top) + HEIGHT
        total += np.asarray(_part(padded[top : top + strip.photo.shape[0]], strip))
    photo = np.asarray(whole.photo, np.float32) / 255
    mask = None if whole.mask is None else np.asarray(whole.mask, np.float32) / 255
    expected = photometric(image, photo, mask), mean_squared_error(image, photo, mask)
    np.testing.assert_allclose(total, expected, rtol=2e-6)


@pytest.mark.parametrize(("name", "masked"), [("3dgs", True), ("2dgs", False)])
def test_divided_rendering_has_the_loss_and_gradient_of_the_whole(name, masked):
    kind, config, changes = PIPELINES[name]
    pipeline = kind(config.for_iterations(1000, **changes))
    rng = np.random.default_rng(1)
    points = rng.uniform([-1, -1, 2], [1, 1, 4], (200, 3))
    state = pipeline.init(points, rng.integers(0, 256, (200, 3), np.uint8), 1.0, 0)
    whole, step = view(masked), jnp.int32(30)

    cut = jax.tree.map(lambda *leaves: jnp.stack(leaves), *strips(whole, [13, 20, HEIGHT], 16))

    def divided(gaussians: Any, probe: jax.Array) -> tuple[jax.Array, Any]:
        seen = pipeline.screen(state, gaussians, whole.camera, step, probe)
        losses, parts = jax.lax.map(lambda strip: pipeline.strip_loss(seen.attributes, strip, step, ROOM), cut)
        return jnp.sum(losses), parts

    probe = jnp.zeros((len(state.alive), 2))
    (loss, parts), (grads, d_probe) = jax.jit(jax.value_and_grad(divided, (0, 1), has_aux=True))(state.gaussians, probe)
    expected, evidence = jax.jit(pipeline.loss_and_grad, static_argnums=3)(state, (whole,), step, ROOM)
    np.testing.assert_allclose([loss, jnp.sum(parts.mse)], [evidence.loss, evidence.mse], rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(d_probe, axis=-1), evidence.magnitude, atol=1e-6)
    for field in dataclasses.fields(expected):
        one, other = getattr(grads, field.name), getattr(expected, field.name)
        np.testing.assert_allclose(one, other, atol=2e-5 * float(jnp.abs(other).max()) + 1e-9, err_msg=field.name)


def test_rows_that_no_strip_is_sent_are_those_that_the_view_does_not_show():
    pipeline = Gs3d(Gs3dConfig.for_iterations(1000))
    points = np.random.default_rng(2).uniform([-3, -3, 0], [3, 3, 6], (300, 3))
    state, camera = pipeline.init(points, np.zeros((300, 3), np.uint8), 1.0, 0), view(False).camera
    seen = pipeline.screen(state, state.gaussians, camera, jnp.int32(1), jnp.zeros((len(state.alive), 2)))
    touched, _ = pipeline.scope(state, camera)
    np.testing.assert_array_equal(seen.visible, touched)
    assert 0 < int(touched.sum()) < 300 and (np.asarray(seen.last - seen.first >= 0) == np.asarray(touched)).all()
