"""Measure a trained scene: render views, compare 8-bit pixels with the photos, keep both side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np
from PIL import Image

from odin_jax.feed import camera_of
from odin_jax.rooms import PairRooms
from splat import metrics
from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.io.files import atomic_write
from splat.pipelines.protocol import Pipeline
from splat.scene.types import Scene, load_photo

PAIRS_PER_ROW = 6  # first guess; a view that needs more is rendered once more with the room it asked for
SEAM = 4  # white pixels between photo and render


class Drawer:
    """Renders exported rows; remembers the room so that programs are few.

    ``draw(gaussians, camera, background, room)`` gives maps, then the tile-row pairs wanted.
    """

    def __init__(self, draw: Callable[..., tuple[jax.Array, ...]], gaussians: Gaussians, background: np.ndarray):
        self._gaussians, self._background = gaussians, background
        self._draw = jax.jit(draw, static_argnums=3)
        self._rooms = PairRooms()

    def __call__(self, camera: Camera) -> tuple[jax.Array, ...]:
        """The maps of a view."""
        size = (camera.width, camera.height)
        if size not in self._rooms.rooms:
            self._rooms.open(size, PAIRS_PER_ROW * self._gaussians.count)
        while True:
            room = self._rooms.rooms[size]
            *maps, pairs = self._draw(self._gaussians, camera, self._background, room)
            if int(pairs) <= room:
                return tuple(maps)
            self._rooms.widen(size, int(pairs))


class Painter:
    """Renders exported rows of one pipeline to 8-bit images."""

    def __init__(self, pipeline: Pipeline, gaussians: Gaussians, background: np.ndarray):
        self._drawer = Drawer(pipeline.render, gaussians, background)

    def __call__(self, camera: Camera) -> np.ndarray:
        """[H, W, 3] uint8: rounded to 8 bit after clamping to [0, 1]."""
        return to_8_bit(np.asarray(self._drawer(camera)[0]))


def to_8_bit(image: np.ndarray) -> np.ndarray:
    """uint8 pixels of an image in 0..1: clamped, then rounded to the nearest level."""
    return np.rint(np.clip(image, 0.0, 1.0) * 255.0).astype(np.uint8)


def evaluate(
    painter: Painter, scene: Scene, indices: Iterable[int], lpips: bool, folder: Path | None
) -> list[dict[str, Any]]:
    """Per view: name, size, psnr (dB), ssim and, if wanted, lpips (VGG) of the 8-bit render and the photo.

    Where a photo has a mask, both are darkened by it first, so that only what counts is compared. With a
    folder, ``FOLDER/NAME.png`` shows photo and render beside each other.
    """
    rows, names = [], [photo.name for photo in scene.photos]
    for index in indices:
        photo = scene.photos[index]
        truth, mask = load_photo(scene, index)
        image = painter(camera_of(photo))
        if folder is not None:
            write_png(folder / png_name(photo.name, names), side_by_side(truth, image))
        if mask is not None:
            truth, image = _masked(truth, mask), _masked(image, mask)
        row: dict[str, Any] = {
            "name": photo.name,
            "width": photo.width,
            "height": photo.height,
            "psnr": float(metrics.psnr(image, truth)),
            "ssim": float(metrics.ssim(image, truth)),
        }
        if lpips and min(image.shape[:2]) >= metrics.LPIPS_LEAST:
            row["lpips"] = float(metrics.lpips(image, truth))
        rows.append(row)
    return rows


def png_name(name: str, names: Iterable[str]) -> str:
    """A photo's name with the ending .png, appended where replacing would make two of the ``names`` one."""
    stem = PurePosixPath(name).with_suffix("")
    twins = [other for other in names if PurePosixPath(other).with_suffix("") == stem]
    return f"{name}.png" if len(twins) > 1 else f"{stem}.png"


def side_by_side(truth: np.ndarray, image: np.ndarray) -> np.ndarray:
    """[H, 2 W + 4, 3] uint8: the photo on the left, the render on the right."""
    seam = np.full((truth.shape[0], SEAM, 3), 255, np.uint8)
    return np.concatenate([truth, seam, image], axis=1)


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write [H, W, 3] uint8 as PNG, atomically. Raises UserError when the folder cannot be written to."""
    with atomic_write(path) as file:
        Image.fromarray(pixels).save(file, format="PNG")


def _masked(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.rint(pixels * (mask[..., None] / 255.0)).astype(np.uint8)
