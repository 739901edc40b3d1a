"""Random scenes full of borderline rows, and adversaries that push rows towards the image, for the tests of scopes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from splat import Camera, Gaussians, RenderOptions, count_pairs, tiles
from splat.bounds import may_touch
from splat.gaussians import COLOUR_FIELDS, GEOMETRY_FIELDS
from splat.projection import project
from splat.surfel.bounds import may_touch_surfels
from splat.surfel.geometry import project as project_surfels
from splat.surfel.options import SurfelOptions
from splat.surfel.render import count_surfel_pairs
from tests.splat.render_cases import QUICK

ROWS, WIDTH, HEIGHT = 256, 64, 48
BORDER_LOGIT = float(np.log(1 / 254))  # of opacity 1/255
PLAIN = RenderOptions()
SURFELS = SurfelOptions()
Options = RenderOptions | SurfelOptions
KINDS = ("plain", "needle", "huge", "near", "behind", "faint", "small quaternion", "no rotation")


def random_camera(rng: np.random.Generator, width: int = WIDTH, height: int = HEIGHT, away: float = 1.0) -> Camera:
    """Any rotation or, as often, none; ``away`` from the origin, unequal focal lengths, principal point anywhere."""
    view = np.eye(4)
    rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    if rng.random() < 0.5:
        view[:3, :3] = rotation * np.sign(np.linalg.det(rotation))
    view[:3, 3] = away * rng.standard_normal(3)
    focal = width * rng.uniform(0.5, 1.5, 2)
    middle = [width * rng.uniform(-0.6, 1.6), height * rng.uniform(0.2, 0.8)]
    return Camera(jnp.asarray(view, jnp.float32), jnp.asarray([*focal, *middle], jnp.float32), width, height)


def random_rows(rng: np.random.Generator, camera: Camera, rows: int = ROWS) -> Gaussians:
    """Rows of all ``KINDS`` whose centres project in and around the image."""
    kind = np.asarray(KINDS)[rng.integers(len(KINDS), size=rows)]
    z = rng.uniform(0.25, 6, rows)
    z = np.where(kind == "near", 0.2 + 0.02 * rng.standard_normal(rows), z)
    z = np.where(kind == "behind", -z, z)
    fx, fy, cx, cy = np.asarray(camera.intrinsics, np.float64)
    x = (rng.uniform(-0.5, 1.5, rows) * camera.width - cx) / fx * z
    y = (rng.uniform(-0.5, 1.5, rows) * camera.height - cy) / fy * z
    view = np.asarray(camera.view, np.float64)
    means = (np.stack([x, y, z], 1) - view[:3, 3]) @ view[:3, :3]
    log_scales = rng.uniform(-6, -1, (rows, 3))
    log_scales[kind == "needle"] = rng.permuted(np.tile([0.5, -7.0, -7.0], (int(np.sum(kind == "needle")), 1)), axis=1)
    log_scales[kind == "huge"] += rng.uniform(4, 9)
    quats = rng.standard_normal((rows, 4))
    quats[kind == "small quaternion"] *= 1e-3
    quats[kind == "no rotation"] *= rng.choice([0.0, 1e-20, 1e-12, 1e-9])
    logits = rng.uniform(-5, 6, rows)
    logits = np.where(kind == "faint", BORDER_LOGIT + 0.05 * rng.standard_normal(rows), logits)
    logits = np.where((kind == "huge") & (rng.random(rows) < 0.5), BORDER_LOGIT - rng.random(rows), logits)
    geometry = (jnp.asarray(field, jnp.float32) for field in (means, log_scales, quats, logits))
    return Gaussians(*geometry, jnp.zeros((rows, 3)), jnp.zeros((rows, 15, 3)))


def aimed_rows(rng: np.random.Generator, camera: Camera, way: str, rows: int = ROWS) -> tuple[Gaussians, Gaussians]:
    """(rows, drift) for a camera that is not rotated and whose image lies right of its principal point, where rows
    reach the image by one ``way`` alone: "closer" (a row on the axis grows as it comes closer), "sway" (a row along
    the axis turns its side), "both" (a centre moves sideways and closer)."""
    z = rng.uniform(1, 3, rows)
    fx, _, cx, _ = np.asarray(camera.intrinsics, np.float64)
    gap = (0.5 - cx) * z / fx  # from the axis to the edge of the image, world units
    share = rng.uniform(0, 1, rows)
    side = {"closer": np.log(share * gap / 2.5), "sway": np.full(rows, -7.0), "both": np.full(rows, -7.0)}[way]
    along = np.log(0.5 * z) if way == "sway" else np.full(rows, -7.0)
    x = gap * (2 * share - 1) * (way != "closer")
    scales = np.stack([side, np.full(rows, -7.0), along], 1)
    view = np.asarray(camera.view, np.float64)
    means = np.stack([x, np.zeros(rows), z], 1) - view[:3, 3]
    quats = np.tile([1.0, 0, 0, 0], (rows, 1))
    fields = (means, scales, quats, np.full(rows, 3.0))
    gaussians = Gaussians(*(jnp.asarray(f, jnp.float32) for f in fields), jnp.zeros((rows, 3)),
                          jnp.zeros((rows, 15, 3)))
    axes = {"closer": [0.0, 0, 0.5], "sway": [0.07, 0, 0], "both": [0.05, 0, 0.5]}[way]
    none: Any = dict.fromkeys(COLOUR_FIELDS)
    drift = Gaussians(jnp.asarray(np.asarray(axes) * z[:, None], jnp.float32), jnp.zeros((rows, 3)),
                      jnp.zeros((rows, 4)), jnp.zeros(rows), **none)
    return gaussians, drift


def random_drift(rng: np.random.Generator, rows: int = ROWS) -> Gaussians:
    """Bounds of any size from tiny to beyond what training has; a field or an axis may not move at all, so that each
    part of a scope is needed alone in some scene."""
    def field(most: float, *shape: int) -> jax.Array:
        size = most * 10 ** rng.uniform(-2, 0) * (rng.random() < 0.6)
        moving = rng.random(shape) < 0.6
        return jnp.asarray(size * moving * (1 - 0.3 * rng.random((rows, *shape))), jnp.float32)

    none: Any = dict.fromkeys(COLOUR_FIELDS)
    return Gaussians(field(1.0, 3), field(1.0, 3), field(1.0, 4), field(2.0), **none)


@functools.cache
def touched(options: Options) -> Callable[..., np.ndarray]:
    """(gaussians, camera, alive) → [N] bool rows the renderer touches."""
    count = count_surfel_pairs if isinstance(options, SurfelOptions) else count_pairs
    run = jax.jit(lambda g, c, alive: count(g, c, alive=alive, options=options)[0], compiler_options=QUICK)
    return lambda *inputs: np.asarray(run(*inputs))


@functools.cache
def scope(options: Options) -> Callable[..., np.ndarray]:
    """(gaussians, drift, camera, alive) → [N] bool of ``may_touch`` or ``may_touch_surfels``."""
    bound = may_touch_surfels if isinstance(options, SurfelOptions) else may_touch
    run = jax.jit(lambda g, d, c, alive: bound(g, d, c, alive=alive, options=options), compiler_options=QUICK)
    return lambda *inputs: np.asarray(run(*inputs))


@functools.cache
def toward_image(options: Options) -> Callable[[Gaussians, Camera], Gaussians]:
    """(gaussians, camera) → gradient of how far each footprint's box reaches into the image, on its worst side."""
    def reach(gaussians: Gaussians, camera: Camera) -> jax.Array:
        if isinstance(options, SurfelOptions):
            proj = project_surfels(gaussians, camera, alive=None, sh_degree=0, probe=None, options=options).outline
        else:
            proj = project(gaussians, camera, alive=None, sh_degree=0, probe=None, options=options)
        _, half_x, half_y = tiles.footprint(proj)
        x, y = proj.geometry[:, 0], proj.geometry[:, 1]
        sides = (x + half_x, camera.width - x + half_x, y + half_y, camera.height - y + half_y)
        return jnp.sum(jnp.min(jnp.stack(sides), axis=0))

    return jax.jit(jax.grad(reach), compiler_options=QUICK)


def moved(gaussians: Gaussians, drift: Gaussians, signs: Gaussians) -> Gaussians:
    """The rows with each geometry element moved by ``signs`` (in −1..1) times its drift."""
    return dataclasses.replace(gaussians, **{
        name: getattr(gaussians, name) + getattr(signs, name) * getattr(drift, name) for name in GEOMETRY_FIELDS})


def random_signs(rng: np.random.Generator, like: Gaussians, corner: bool = True) -> Gaussians:
    """±1 for each element at random, or anything between."""
    def field(array: jax.Array) -> jax.Array:
        return jnp.asarray(rng.choice([-1.0, 1.0], array.shape) if corner else rng.uniform(-1, 1, array.shape),
                           jnp.float32)

    return jax.tree.map(field, like)


def signs_toward_image(rng: np.random.Generator, gaussians: Gaussians, camera: Camera,
                       options: Options) -> Gaussians:
    """Signs of the steepest way into the image; random where there is no way, but never towards less opacity."""
    way = toward_image(options)(gaussians, camera)
    chance = random_signs(rng, gaussians)
    chance = dataclasses.replace(chance, opacity_logits=jnp.ones_like(chance.opacity_logits))
    return jax.tree.map(lambda w, c: jnp.where((w == 0) | ~jnp.isfinite(w), c, jnp.sign(w)), way, chance)


def ends(rng: np.random.Generator, gaussians: Gaussians, drift: Gaussians, camera: Camera,
         options: Options) -> Iterator[Gaussians]:
    """Where rows may end: corners of the box along the steepest way into the image, others, and inner points."""
    here = gaussians
    for _ in range(4):
        here = moved(gaussians, drift, signs_toward_image(rng, here, camera, options))
        yield here
    for corner in (True, True, False):
        signs = random_signs(rng, gaussians, corner)
        yield moved(gaussians, drift, signs)
        yield moved(gaussians, drift, dataclasses.replace(signs, opacity_logits=jnp.ones_like(signs.opacity_logits)))
