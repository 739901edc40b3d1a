"""The regularisers of 2DGS, against values known on paper."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from splat import Camera
from splat.surfel.losses import Regularisers, normal_loss, regularisation, surface_depth, surface_normals
from splat.surfel.render import SurfelOutput

CAMERA = Camera(jnp.eye(4), jnp.array([30.0, 25.0, 11.0, 9.5]), 24, 18)


def plane(normal: np.ndarray, distance: float) -> np.ndarray:
    """[H, W] depth of the plane normal·p = distance."""
    x, y = np.meshgrid((np.arange(24) + 0.5 - 11) / 30, (np.arange(18) + 0.5 - 9.5) / 25)
    return distance / (normal[0] * x + normal[1] * y + normal[2])


def output(depth: np.ndarray, alpha: float, normal: np.ndarray) -> SurfelOutput:
    height, width = depth.shape
    of_pixels = jnp.full((height, width), alpha)
    none = jnp.zeros(())
    return SurfelOutput(jnp.zeros((height, width, 3)), of_pixels, alpha * jnp.broadcast_to(normal, (height, width, 3)),
                        alpha * jnp.asarray(depth), jnp.asarray(depth) + 1, 0.25 * of_pixels, none, none, none)


def test_normals_of_a_plane():
    normal = np.array([0.2, -0.3, -0.9]) / np.linalg.norm([0.2, -0.3, -0.9])
    found = np.asarray(surface_normals(jnp.asarray(plane(normal, -3.0)), CAMERA))
    np.testing.assert_allclose(found[1:-1, 1:-1], np.broadcast_to(normal, (16, 22, 3)), atol=2e-5)
    assert not found[0].any() and not found[-1].any() and not found[:, 0].any() and not found[:, -1].any()


def test_depth_is_the_mean_or_the_median_and_zero_where_nothing_is():
    out = output(np.full((18, 24), 2.0), 0.5, np.array([0.0, 0, -1]))
    np.testing.assert_allclose(surface_depth(out, 0.0), 2, rtol=1e-6)
    np.testing.assert_allclose(surface_depth(out, 1.0), 3, rtol=1e-6)
    empty = jax.tree.map(jnp.zeros_like, out)
    assert not np.asarray(surface_depth(empty, 0.0)).any()
    slope = jax.grad(lambda depth: normal_loss(dataclasses.replace(empty, depth=depth), CAMERA, 0.0))(empty.depth)
    assert np.isfinite(slope).all()


def test_losses_of_a_plane():
    """Aligned normals leave 1 − A² inside and 1 on the border; the distortion is averaged."""
    normal = np.array([0.1, 0.2, -0.8]) / np.linalg.norm([0.1, 0.2, -0.8])
    out = output(plane(normal, -3.0), 0.8, normal)
    inside = 16 * 22 / (18 * 24)
    np.testing.assert_allclose(normal_loss(out, CAMERA, 0.0), 1 - 0.64 * inside, rtol=1e-4)
    weights = Regularisers(jnp.float32(0.05), jnp.float32(10.0))
    wanted = 0.05 * (1 - 0.64 * inside) + 10 * 0.25 * 0.8
    np.testing.assert_allclose(regularisation(out, CAMERA, weights, 0.0), wanted, rtol=1e-4)
