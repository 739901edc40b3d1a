"""Shapes of what the programs of a training take, without any array: for compiling ahead of time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from odin_jax import placement
from odin_jax.parallel.mesh import OWN, Ranks
from splat.cameras import Camera
from splat.pipelines.protocol import View

SEEDS = 64  # points that a pipeline is started from, to see which arrays its state has


@dataclass(frozen=True)
class Sizes:
    """How much a training has of what."""

    rows: int  # capacity for primitives, a multiple of 8
    width: int  # of every photo, pixels
    height: int  # pixels
    views: int  # of each rank in a unit
    pairs: int  # room for tile-row pairs of a view
    urgent: int  # room for rows of C_A that the next unit reads
    rest: int  # room for the other rows of C_A
    active: int  # room for all rows of C_A


def abstract(tree: Any) -> Any:
    """Shapes and types of the arrays of a pytree."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), tree)


def state(pipeline: Any, rows: int) -> Any:
    """A rank's state of a pipeline with room for ``rows`` rows."""
    points = np.random.default_rng(0).uniform(-1, 1, (SEEDS, 3)).astype(np.float32)
    small = pipeline.init(points, np.full((SEEDS, 3), 128, np.uint8), 1.0, 0)
    has = len(small.alive)

    def widened(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        of_rows = bool(leaf.shape) and leaf.shape[0] == has
        return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]) if of_rows else leaf.shape, leaf.dtype)

    return jax.tree.map(widened, abstract(small))


def views(sizes: Sizes) -> tuple[View, ...]:
    """A rank's views in a unit."""
    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    camera: Any = Camera(array(jnp.float32, 4, 4), array(jnp.float32, 4), sizes.width, sizes.height)
    photo = array(jnp.uint8, sizes.height, sizes.width, 3)
    return (View(camera, photo, None, array(jnp.float32, 3)),) * sizes.views


def packed(rows: int) -> jax.ShapeDtypeStruct:
    """A packed set of rows."""
    return jax.ShapeDtypeStruct((-(-rows // 8),), jnp.uint8)


def number() -> jax.ShapeDtypeStruct:
    """A step number."""
    return jax.ShapeDtypeStruct((), jnp.int32)


def own(ranks: Ranks, tree: Any) -> Any:
    """A rank's arrays as all ranks hold them: each its own part, along a leading axis."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((ranks.count, *leaf.shape), leaf.dtype), tree)


def placed(ranks: Ranks, pipeline: Any, state: Any) -> Any:
    """A rank's state as all ranks hold it (see ``placement.place``)."""
    kinds = placement.kinds(pipeline, state)
    names = [field.name for field in dataclasses.fields(state)]
    return dataclasses.replace(state, **{name: own(ranks, getattr(state, name)) for name in names
                                         if getattr(kinds, name) == OWN})

