"""What must hold of any render: loop shapes, repetition, overflow, rows that are not drawn, numbers not finite."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat import RenderOptions, UserError, count_pairs, quat, render, sh, tiles
from splat.finite import check_finite
from splat.gaussians import FIELDS
from splat.projection import project
from splat.raster import blend as blending
from splat.raster.exp2 import exp2
from splat.raster.settings import LoopShape
from tests.splat import render_cases
from tests.splat.render_cases import HEIGHT, QUICK, ROOMY, ROWS, WIDTH, forward, named, program, random_inputs


def rendered(inputs, alive):
    with jax.enable_x64(True):
        weights = render_cases.random_weights(0, inputs.camera, jnp.float64)
        return program("render", ROOMY, 3, True)(inputs, alive, weights)


def double_inputs(seed, **scene):
    with jax.enable_x64(True):
        return random_inputs(seed, jnp.float64, **scene)


def test_exp2_in_float32_is_accurate_where_it_stands_alone_and_where_it_is_fused():
    """The compiler once folded the rounding away, which made it wrong by 20 %."""
    x = np.concatenate([np.linspace(-126, 126, 400_001), np.linspace(-9, 1, 400_001), np.arange(-126, 127),
                        np.arange(-126, 126) + 0.5]).astype(np.float32)
    wanted = np.exp2(x.astype(np.float64))
    for function in (exp2, jax.jit(exp2), jax.jit(lambda x: exp2(0.5 * x + 0.25 * (x + x)))):
        assert np.max(np.abs(np.asarray(function(jnp.asarray(x)), np.float64) / wanted - 1)) < 3e-7
    assert np.all(np.asarray(exp2(jnp.asarray([-1e4, -127.0, -jnp.inf], jnp.float32))) <= 2.0**-126)


@pytest.fixture(scope="module")
def projected():
    """Some thirty rows on one another, so that lists have several chunks and pixels end early."""
    inputs, alive = double_inputs(1, rows=150, spread=0.3, size=-1.0)
    with jax.enable_x64(True):
        make = jax.jit(lambda g, c: project(g, c, alive=alive, sh_degree=3, probe=None, options=ROOMY),
                       compiler_options=QUICK)
        proj = make(inputs.gaussians, inputs.camera)
        return proj, {side: jax.jit(lambda p, side=side: tiles.build(p, WIDTH, HEIGHT, 2048, side),
                                    compiler_options=QUICK)(proj) for side in (8, 16)}


def blended(projected, side, shape, monkeypatch):
    calls = []
    monkeypatch.setattr(blending, "forward_shape", lambda: calls.append("forward") or shape)
    monkeypatch.setattr(blending, "backward_shape", lambda: calls.append("backward") or shape)
    with jax.enable_x64(True):
        proj, lists = projected[0], projected[1][side]
        weight = jnp.asarray(np.random.default_rng(0).standard_normal((HEIGHT, WIDTH, 5)))

        def loss(geometry, features):
            image = blending.blend(geometry, features, lists, WIDTH, HEIGHT)
            return jnp.sum(image * weight), image

        run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), compiler_options=QUICK)
        (_, image), grads = run(proj.geometry, proj.features)
    assert set(calls) == {"forward", "backward"}
    return tuple(np.asarray(x) for x in (image, *grads))


@pytest.mark.parametrize(("side", "chunk", "pixels"), [(16, 1, 512), (8, 7, 256), (16, 64, 1), (8, 16, 99_999)])
def test_tiles_and_the_shape_of_the_loop_change_nothing(projected, side, chunk, pixels, monkeypatch):
    wanted = blended(projected, 16, LoopShape(16, None), monkeypatch)
    assert np.max(wanted[0][..., -1]) > 0.999
    assert np.max(np.diff(np.asarray(projected[1][side].starts))) > 64
    for found, expected in zip(blended(projected, side, LoopShape(chunk, pixels), monkeypatch), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def test_twice_the_same_bits():
    inputs, alive = double_inputs(2)
    once, again = (jax.tree.leaves(rendered(inputs, alive)) for _ in range(2))
    for one, other in zip(once, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_overflow_gives_nan_and_says_how_much_it_needs():
    inputs, alive = random_inputs(0, jnp.float32)

    count = jax.jit(count_pairs, compiler_options=QUICK)
    touched, pairs = count(inputs.gaussians, inputs.camera, alive=alive)
    small, enough = (forward(options)(inputs.gaussians, inputs.camera, alive, inputs.background)
                     for options in (RenderOptions(pair_capacity=int(pairs) - 1), ROOMY))
    assert bool(small.overflow)
    assert int(small.pairs) > int(pairs) - 1
    assert all(bool(jnp.all(jnp.isnan(x))) for x in (small.image, small.alpha, small.depth))
    assert not bool(enough.overflow)
    assert int(enough.pairs) == int(pairs)
    np.testing.assert_array_equal(enough.visible, touched)
    assert 0 < int(jnp.sum(touched)) < ROWS
    assert np.all(np.isfinite(enough.image))


def test_rows_that_are_not_alive_leave_no_trace():
    inputs, alive = double_inputs(3)
    (_, maps), grads = rendered(inputs, alive)
    other, _ = double_inputs(4)
    mixed = jax.tree.map(lambda a, b: jnp.where(alive.reshape(-1, *[1] * (a.ndim - 1)), a, b), inputs.gaussians,
                         other.gaussians)
    (_, maps_mixed), grads_mixed = rendered(dataclasses.replace(inputs, gaussians=mixed), alive)
    for one, two in zip(maps, maps_mixed, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)
    for name, field in named(grads.gaussians).items():
        assert np.all(field[~np.asarray(alive)] == 0), name
    assert render_cases.relative_error(grads_mixed.camera.view, grads.camera.view) < 1e-10


def test_nothing_alive_shows_the_background():
    inputs, alive = double_inputs(5)
    (_, (image, alpha, depth)), grads = rendered(inputs, jnp.zeros_like(alive))
    np.testing.assert_array_equal(image, np.broadcast_to(inputs.background, image.shape))
    assert not np.any(alpha)
    assert not np.any(depth)
    assert all(np.all(field == 0) for field in named(grads.gaussians).values())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", FIELDS)
def test_numbers_not_finite_are_never_drawn_where_they_cannot_be_reported(field, value):
    with jax.enable_x64(True):
        inputs, alive = random_inputs(6, jnp.float64)
        alive = alive.at[0].set(True)
        rows = getattr(inputs.gaussians, field)
        bad = dataclasses.replace(inputs.gaussians, **{field: rows.at[(0,) * rows.ndim].set(value)})
        (_, maps), grads = rendered(dataclasses.replace(inputs, gaussians=bad), alive)
        (_, wanted), wanted_grads = rendered(inputs, alive.at[0].set(False))
    for found, expected in zip(maps, wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    for name, expected in named(wanted_grads.gaussians).items():
        np.testing.assert_allclose(named(grads.gaussians)[name][1:], expected[1:], atol=1e-9, err_msg=name)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("field", FIELDS)
def test_numbers_not_finite_are_reported_with_field_and_row(field, value):
    inputs, _ = random_inputs(7, jnp.float32)
    rows = getattr(inputs.gaussians, field)
    bad = dataclasses.replace(inputs.gaussians, **{field: rows.at[(5,) + (-1,) * (rows.ndim - 1)].set(value)})
    with pytest.raises(UserError, match=f"^{field}, row 5, holds {value}") as caught:
        render(bad, inputs.camera, options=ROOMY)
    assert "\n" not in str(caught.value)
    check_finite(bad, jnp.arange(ROWS) != 5)
    check_finite(inputs.gaussians)


def test_a_camera_not_finite_and_a_scene_without_rows_are_reported():
    inputs, _ = random_inputs(8, jnp.float32)
    for name in ("view", "intrinsics"):
        bad = dataclasses.replace(inputs.camera, **{name: getattr(inputs.camera, name).at[0].set(jnp.nan)})
        with pytest.raises(UserError, match=f"^{name} of the camera"):
            render(inputs.gaussians, bad, options=ROOMY)
    empty = dataclasses.replace(inputs.camera, width=0)
    with pytest.raises(UserError, match="0x29 pixels"):
        jax.eval_shape(lambda g, c: render(g, c, options=ROOMY), inputs.gaussians, empty)
    with pytest.raises(UserError, match="no Gaussians"):
        render(inputs.gaussians.take(jnp.arange(0)), inputs.camera)


def test_gradients_of_rows_that_are_only_zeros_are_finite_in_float32():
    """Capacity rows may hold zeros: a quaternion without length, a row at the camera's centre."""
    zero = jnp.zeros(3)

    def total(w, x):
        return sum(jnp.sum(entry) for row in quat.rotation(w, x, x, x) for entry in row)

    def colour(x):
        return jnp.sum(sh.colours(jnp.ones((3, 3)), jnp.ones((3, 15, 3)), (x, x, x), 3))

    for grad in (*jax.jit(jax.grad(total, (0, 1)))(zero, zero), jax.jit(jax.grad(colour))(zero)):
        assert np.all(np.isfinite(grad))


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_traced_degree_leaves_out_the_coefficients_above_it(degree):
    inputs, _ = random_inputs(9, jnp.float32)
    g = inputs.gaussians
    directions = tuple(g.means.T)
    found = jax.jit(lambda d: sh.colours(g.sh_dc, g.sh_rest, directions, d))(degree)
    keep = (jnp.arange(15) < (degree + 1) ** 2 - 1)[:, None]
    np.testing.assert_allclose(found, sh.colours(g.sh_dc, g.sh_rest * keep, directions, 3), atol=1e-6)
    assert float(jnp.min(found)) == 0
