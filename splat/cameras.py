"""Pinhole cameras (OpenCV axes: x right, y down, z forward; pixel centres at +0.5)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Camera:
    """One pinhole camera. The arrays may carry a leading batch axis for ``jax.vmap``."""

    view: jax.Array  # [4, 4] world → camera
    intrinsics: jax.Array  # [4] fx, fy, cx, cy in pixels; the centre of the top-left pixel is (0.5, 0.5)
    width: int = struct.field(pytree_node=False)  # pixels
    height: int = struct.field(pytree_node=False)  # pixels

    @property
    def centre(self) -> jax.Array:
        """[3] camera centre in world units: the last column of the inverse of ``view``.

        The true inverse, not −Rᵀt, so that the gradient to ``view`` is that of the map on all 4×4 matrices.
        """
        r, t, last = self.view[:3, :3], self.view[:3, 3], self.view[3]
        cofactors = jnp.stack([jnp.cross(r[1], r[2]), jnp.cross(r[2], r[0]), jnp.cross(r[0], r[1])])
        back = (t @ cofactors) / jnp.dot(r[0], cofactors[0])
        return -back / (last[3] - jnp.dot(last[:3], back))


def resized(camera: Camera, width: int, height: int) -> Camera:
    """The same camera over another pixel grid: focal lengths and centre scale with the sides."""
    sx, sy = width / camera.width, height / camera.height
    scale = jnp.asarray([sx, sy, sx, sy], camera.intrinsics.dtype)
    return Camera(camera.view, camera.intrinsics * scale, width, height)
