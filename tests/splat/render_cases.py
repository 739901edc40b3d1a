"""Random scenes, and the two renderers as compiled programs of one signature, for the renderer's tests."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from splat import Camera, Gaussians, RenderOptions, RenderOutput, render
from splat.raster.reference import raster_ref

# Compiling is most of the time of these tests; this takes a third of it, and what it leaves out is not their matter.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
WIDTH, HEIGHT, ROWS = 37, 29, 40  # of most scenes: no multiples of the tile side
ROOMY = RenderOptions(pair_capacity=2048)


@struct.dataclass
class Inputs:
    """All that a render can be differentiated to."""

    gaussians: Gaussians
    camera: Camera
    background: jax.Array  # [3]
    probe: jax.Array  # [N, 2]


@struct.dataclass
class Weights:
    """Of the loss Σ image·w + Σ alpha·w + Σ depth·w."""

    image: jax.Array  # [H, W, 3]
    alpha: jax.Array  # [H, W]
    depth: jax.Array  # [H, W]


def random_inputs(seed: int, dtype: Any, *, rows: int = ROWS, width: int = WIDTH, height: int = HEIGHT,
                  max_logit: float = 8.0, spread: float = 1.2, size: float = -1.8) -> tuple[Inputs, jax.Array]:
    """(inputs, alive [N] bool): rows at all depths, some behind the camera, of ``size`` (mean log scale) with a few
    much larger; up to opacity sigmoid(max_logit); two rows share a place, so that depths tie."""
    rng = np.random.default_rng([seed, zlib.crc32(b"render_cases")])

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    means = normal(rows, 3) * [spread, spread, 1.5] + [0, 0, 2]
    means[1] = means[0]
    gaussians = Gaussians(
        means=jnp.asarray(means, dtype),
        log_scales=jnp.asarray(normal(rows, 3) * 0.8 + size + 1.5 * (rng.random((rows, 1)) < 0.1), dtype),
        quats=jnp.asarray(normal(rows, 4), dtype),
        opacity_logits=jnp.asarray(rng.uniform(-4, max_logit, rows), dtype),
        sh_dc=jnp.asarray(normal(rows, 3), dtype),
        sh_rest=jnp.asarray(0.3 * normal(rows, 15, 3), dtype),
    )
    view = np.eye(4)
    view[:3, :3] = np.linalg.qr(np.eye(3) + 0.2 * normal(3, 3))[0]
    view[:3, :3] *= np.sign(np.diag(view[:3, :3]))[:, None]
    view[:3, 3] = 0.2 * normal(3) + [0, 0, 0.3]
    off_centre = [width * rng.uniform(0.2, 0.8), height * rng.uniform(0.2, 0.8)]
    intrinsics = [width * rng.uniform(0.7, 1.3), width * rng.uniform(0.7, 1.3), *off_centre]
    camera = Camera(jnp.asarray(view, dtype), jnp.asarray(intrinsics, dtype), width, height)
    probe = jnp.asarray(0.02 * normal(rows, 2), dtype)
    return Inputs(gaussians, camera, jnp.asarray(rng.random(3), dtype), probe), jnp.asarray(rng.random(rows) < 0.8)


def random_weights(seed: int, camera: Camera, dtype: Any) -> Weights:
    """Weights of the loss, of the size of one."""
    rng = np.random.default_rng([seed, zlib.crc32(b"weights")])
    shape = (camera.height, camera.width)
    return Weights(jnp.asarray(rng.standard_normal((*shape, 3)), dtype), jnp.asarray(rng.standard_normal(shape), dtype),
                   jnp.asarray(rng.standard_normal(shape), dtype))


@functools.cache
def program(renderer: str, options: RenderOptions, sh_degree: int, quick: bool) -> Callable[..., Any]:
    """(inputs, alive, weights) → ((loss, (image, alpha, depth)), gradient as Inputs) of "render" or "raster_ref"."""
    function = {"render": render, "raster_ref": raster_ref}[renderer]

    def loss(inputs: Inputs, alive: jax.Array, weights: Weights) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        out = function(inputs.gaussians, inputs.camera, alive=alive, background=inputs.background, probe=inputs.probe,
                       sh_degree=sh_degree, options=options)
        total = sum(jnp.sum(getattr(out, name) * getattr(weights, name)) for name in ("image", "alpha", "depth"))
        return total, (out.image, out.alpha, out.depth)

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK if quick else None)


@functools.cache
def forward(options: RenderOptions) -> Callable[..., RenderOutput]:
    """(gaussians, camera, alive, background) → RenderOutput."""
    return jax.jit(lambda gaussians, camera, alive, background: render(
        gaussians, camera, alive=alive, background=background, options=options), compiler_options=QUICK)


def named(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by path."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def relative_error(found: Any, wanted: Any) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-300))


def check_slopes(run: Callable[..., Any], inputs: Inputs, rest: tuple[Any, ...], rng: np.random.Generator, *,
                 step: float, tolerance: float) -> None:
    """Assert that gradients are finite differences along a random direction in each input.

    ``run(inputs, *rest)`` gives ((loss, anything), gradient as Inputs).
    """
    _, grads = run(inputs, *rest)
    leaves, structure = jax.tree.flatten(inputs)
    for i, (name, slopes) in enumerate(zip(named(inputs), jax.tree.leaves(grads), strict=True)):
        start = np.asarray(leaves[i])
        direction = rng.standard_normal(start.shape)

        def at(h: float, i: int = i, start: np.ndarray = start, direction: np.ndarray = direction) -> float:
            moved = [*leaves[:i], jnp.asarray(start + h * direction), *leaves[i + 1:]]
            return float(run(structure.unflatten(moved), *rest)[0][0])

        slope = float(np.sum(np.asarray(slopes) * direction))
        assert abs((at(step) - at(-step)) / (2 * step) - slope) < tolerance * (1 + abs(slope)), name
