"""One surface from the depth maps of many views: a truncated signed distance volume, and its zero level as a mesh.

Each voxel keeps the mean, over the views that see it, of how far it lies in front of the surface along the view's
axis, in units of the truncation (Curless and Levoy, 1996). The mesh comes from marching cubes of scikit-image.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from splat.cameras import Camera
from splat.errors import UserError

TRUNCATION = 4.0  # distance that counts as far in front of the surface, voxels


@struct.dataclass
class Volume:
    """Voxels of a box; the first index of the arrays is along x."""

    low: jax.Array  # [3] centre of the first voxel, world units
    voxel: jax.Array  # [] side of a voxel, world units
    distance: jax.Array  # [X, Y, Z] mean truncated distance, −1..1; 1 where nothing was seen
    weight: jax.Array  # [X, Y, Z] views that saw the voxel
    colour: jax.Array  # [X, Y, Z, 3] mean colour of the views near whose surface it lies, 0..1
    hits: jax.Array  # [X, Y, Z] number of those views


class Mesh(NamedTuple):
    """Triangles with a colour per corner."""

    vertices: np.ndarray  # [V, 3] float32, world units
    colours: np.ndarray  # [V, 3] uint8
    faces: np.ndarray  # [F, 3] int32, corners counter-clockwise as seen from outside


def empty_volume(low: np.ndarray, high: np.ndarray, resolution: int) -> Volume:
    """A volume over the box from ``low`` to ``high`` [3] with ``resolution`` voxels along its longest side.

    Raises UserError for a box without volume or fewer than 8 voxels.
    """
    size = np.asarray(high, float) - np.asarray(low, float)
    if resolution < 8:
        raise UserError(f"a volume of {resolution} voxels along its longest side holds no surface: give at least 8")
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise UserError(f"the box from {np.asarray(low).tolist()} to {np.asarray(high).tolist()} has no volume")
    voxel = float(size.max()) / resolution
    shape = tuple(int(n) for n in np.maximum(np.ceil(size / voxel), 2))
    return Volume(jnp.asarray(np.asarray(low, float) + voxel / 2, jnp.float32), jnp.float32(voxel),
                  jnp.ones(shape, jnp.float32), jnp.zeros(shape, jnp.float32),
                  jnp.zeros((*shape, 3), jnp.float32), jnp.zeros(shape, jnp.float32))


@functools.partial(jax.jit, donate_argnums=0)
def integrate(volume: Volume, camera: Camera, depth: jax.Array, image: jax.Array) -> Volume:
    """The volume with one more view: its depth map [H, W] (world units, 0 where there is none) and image [H, W, 3]."""
    truncation = TRUNCATION * volume.voxel
    _, *plane = volume.distance.shape
    y, z = (volume.low[1 + i] + volume.voxel * jnp.arange(size) for i, size in enumerate(plane))

    def slab(parts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """One layer of voxels [Y, Z] across x."""
        x, distance, weight, colour, hits = parts
        v = camera.view
        at = [v[i, 0] * x + v[i, 1] * y[:, None] + v[i, 2] * z + v[i, 3] for i in range(3)]
        ahead = at[2] > volume.voxel
        far = jnp.where(ahead, at[2], 1)
        fx, fy, cx, cy = camera.intrinsics
        column = jnp.floor(fx * at[0] / far + cx).astype(jnp.int32)
        row = jnp.floor(fy * at[1] / far + cy).astype(jnp.int32)
        inside = ahead & (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
        place = jnp.where(inside, row, 0), jnp.where(inside, column, 0)
        front = depth[place] - far
        seen = inside & (depth[place] > 0) & (front > -truncation)
        near = seen & (front < truncation)
        new_weight, new_hits = weight + seen, hits + near
        distance = jnp.where(seen, (distance * weight + jnp.minimum(front / truncation, 1))
                             / jnp.maximum(new_weight, 1), distance)
        mixed = (colour * hits[..., None] + image[place]) / jnp.maximum(new_hits, 1)[..., None]
        return distance, new_weight, jnp.where(near[..., None], mixed, colour), new_hits

    xs = volume.low[0] + volume.voxel * jnp.arange(volume.distance.shape[0])
    layers = jax.lax.map(slab, (xs, volume.distance, volume.weight, volume.colour, volume.hits))
    return Volume(volume.low, volume.voxel, *layers)


def surface(volume: Volume, keep: int) -> Mesh:
    """The zero level of the distance where it was seen, without all but the ``keep`` largest connected pieces.

    Raises UserError where scikit-image is not installed or there is no surface.
    """
    try:
        from skimage.measure import marching_cubes  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("a mesh needs scikit-image: pip install scikit-image") from error
    distance, seen = np.array(volume.distance), np.asarray(volume.weight) > 0
    # Distances grow out of the surface, which scikit-image calls descent: its faces are to look outwards.
    nothing = UserError("the depth maps show no surface inside the box: train longer or take a larger share")
    if not np.any(distance[seen] < 0):
        raise nothing
    try:
        places, faces, _, _ = marching_cubes(distance, 0.0, mask=seen, gradient_direction="descent")
    except RuntimeError as error:  # no cube has the surface between corners that were all seen
        raise nothing from error
    places, faces = _largest_pieces(places, faces.astype(np.int32), keep)
    nearest = tuple(np.rint(places).astype(int).T)
    colours = np.rint(255 * np.clip(np.asarray(volume.colour)[nearest], 0, 1)).astype(np.uint8)
    vertices = np.asarray(volume.low) + float(volume.voxel) * places
    return Mesh(vertices.astype(np.float32), colours, faces)


def _largest_pieces(places: np.ndarray, faces: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces of the ``keep`` connected pieces with the most faces."""
    edges = np.concatenate([faces[:, :2], faces[:, 1:]])
    links = coo_array((np.ones(len(edges), bool), tuple(edges.T)), shape=(len(places), len(places)))
    _, piece = connected_components(links, directed=False)
    sizes = np.bincount(piece[faces[:, 0]])
    kept = np.isin(piece, np.argsort(-sizes, kind="stable")[:keep])
    return places[kept], (np.cumsum(kept) - 1)[faces[kept[faces[:, 0]]]].astype(np.int32)
