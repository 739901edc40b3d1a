"""Strips of images: the pixels of one view that one rank renders, with the halo that makes their loss exact.

A batch of images is one list of tile rows, cut into pieces (Grendel, spec §6.1). A piece within an image is a strip. It
is rendered with a halo of ``HALO`` pixel rows at its seams, so that the window of SSIM sees what lies beyond, and
counts only its own pixels: the losses of the strips of an image add up to that of the image, seams included, however
it is cut. All strips of a program have one height; rows below the own ones and outside the image weigh nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from splat.cameras import Camera
from splat.loss import DSSIM_WEIGHT
from splat.pipelines.protocol import View
from splat.ssim import RADIUS, ssim_sum

HALO = RADIUS  # pixel rows beyond a seam that the loss of the rows before it reads


@struct.dataclass
class Strip:
    """Rows of one view as its rank has them; with the halo above and below it has Hs = own height + 2·HALO rows."""

    camera: Camera  # the view's, of this strip's grid: W × Hs pixels
    photo: jax.Array  # [Hs, W, 3] uint8, zero outside the image
    mask: jax.Array | None  # [Hs, W] uint8 weight 0..255 of a pixel in the loss; None: all count
    background: jax.Array  # [3] colour behind everything, 0..1
    first: jax.Array  # [] int32, first own row in the image, pixels
    count: jax.Array  # [] int32, own rows, pixels; 0: nothing to render
    height: jax.Array  # [] int32 of the image, pixels
    weight: jax.Array  # [] float32, sum of the mask over the image in 0..1 (its pixels where there is none)

    @property
    def top(self) -> jax.Array:
        """[] int32 first row of this grid in the image, pixels; before the image where the halo is."""
        return self.first - HALO

    @property
    def rows(self) -> jax.Array:
        """[Hs] int32 where the rows of this grid are in the image, pixels."""
        return jnp.arange(self.photo.shape[0], dtype=jnp.int32) + self.top


def part_of(camera: Camera, top: int, height: int) -> Camera:
    """The camera of the ``height`` pixel rows from row ``top`` on, which may lie outside its image; NumPy arrays."""
    moved: Any = np.asarray(camera.intrinsics) - np.asarray([0, 0, 0, top], np.float32)
    return Camera(camera.view, moved, camera.width, height)


def cut_out(view: View, first: int, count: int, rows: int) -> Strip:
    """The strip of own rows ``first`` to ``first + count`` of a view [H, W], of ``rows`` + 2·HALO rows in all.

    Arrays are NumPy's.
    """
    photo, mask = np.asarray(view.photo), None if view.mask is None else np.asarray(view.mask)
    height = len(photo)
    top, bottom = first - HALO, first + rows + HALO
    inside = slice(min(max(top, 0), height), min(bottom, height))
    margins = (max(-top, 0), rows + 2 * HALO - max(-top, 0) - (inside.stop - inside.start))

    def part(pixels: np.ndarray) -> np.ndarray:
        return np.pad(pixels[inside], [margins] + [(0, 0)] * (pixels.ndim - 1))

    weight = photo.shape[0] * photo.shape[1] if mask is None else np.sum(mask, dtype=np.float64) / 255
    camera = part_of(view.camera, top, rows + 2 * HALO)
    numbers: Any = np.int32(first), np.int32(count), np.int32(height), np.float32(weight)
    return Strip(camera, part(photo), None if mask is None else part(mask), view.background, *numbers)  # type: ignore[arg-type]


def own_rows(strip: Strip) -> tuple[jax.Array, jax.Array]:
    """[Hs, 1] bool: rows that count; rows inside the image."""
    row = strip.rows[:, None]
    return (row >= strip.first) & (row < strip.first + strip.count), (row >= 0) & (row < strip.height)


def row_share(strip: Strip, dtype: jnp.dtype) -> jax.Array:
    """[Hs, 1] what a pixel of each row weighs in a mean over the image, whatever the mask; 0 where it is not own."""
    return own_rows(strip)[0].astype(dtype) / (strip.height * strip.photo.shape[1])


def photometric_part(image: jax.Array, strip: Strip) -> jax.Array:
    """[] what the strip's own pixels add to ``splat.loss.photometric`` of the whole image; ``image`` [Hs, W, 3]."""
    own, inside = own_rows(strip)
    photo = strip.photo.astype(image.dtype) / 255
    seen = jnp.where(inside[..., None], image, 0)
    counts = own.astype(image.dtype)
    if strip.mask is not None:
        mask = strip.mask.astype(image.dtype) / 255
        seen = photo + mask[..., None] * (seen - photo)
        counts = counts * mask
    counts = jnp.broadcast_to(counts, image.shape[:2])
    total = jnp.maximum(strip.weight, jnp.finfo(image.dtype).tiny)
    l1 = jnp.sum(own[..., None] * jnp.abs(seen - photo))
    similarity = ssim_sum(seen, photo, counts)
    channels = image.shape[-1]
    share = jnp.where(strip.weight > 0, jnp.sum(counts) / total - similarity / (channels * total), 0)
    return (1 - DSSIM_WEIGHT) * l1 / (channels * total) + DSSIM_WEIGHT * share


def squared_error_part(image: jax.Array, strip: Strip) -> jax.Array:
    """[] what the strip's own pixels add to ``splat.loss.mean_squared_error`` of the whole image."""
    own, _ = own_rows(strip)
    error = jnp.square(jnp.clip(image, 0.0, 1.0) - strip.photo.astype(image.dtype) / 255)
    weights = own.astype(image.dtype)
    if strip.mask is not None:
        weights = weights * strip.mask.astype(image.dtype) / 255
    total = jnp.maximum(strip.weight, jnp.finfo(image.dtype).tiny)
    return jnp.sum(weights[..., None] * error) / (image.shape[-1] * total)
