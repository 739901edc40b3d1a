"""Shape of the tiles and of the blending loop per backend, chosen in this one place (design §11)."""

from __future__ import annotations

from typing import NamedTuple

from splat.backend import backend


class LoopShape(NamedTuple):
    """Rows gathered per step, and pixels of the tiles that step together."""

    chunk: int
    pixels: int | None  # None: all of the image at once


class KernelShape(NamedTuple):
    """Of the kernels that blend a tile on a GPU."""

    rows: int  # walked before it is asked whether the tile is opaque
    warps: int  # threads / 32 that share the tile


# A CPU core wants a step to stay in its first-level cache; a GPU wants every tile in one step.
_FORWARD = {"cpu": LoopShape(16, 1024), "gpu": LoopShape(16, None)}
_BACKWARD = {"cpu": LoopShape(32, 512), "gpu": LoopShape(16, None)}

# Of ``splat.raster.pallas``. A thread has eight pixels of a tile, so that what all pixels of a row share costs little
# and sums stay in a warp.
KERNEL = KernelShape(rows=16, warps=1)
# Of ``splat.surfel.pallas``. A pixel carries twice as much, and registers are 255 to a thread.
SURFEL_KERNEL = KernelShape(rows=16, warps=2)

COARSE_TILE = 16  # side of a tile, pixels
_FINE_TILE = 8  # evaluates half as many responses where footprints are small, but lists twice as many pairs
_FINE_PIXELS = 300_000  # images up to this size gain from fine tiles on a CPU core; at 960×540 both are equal


def forward_shape() -> LoopShape:
    """Loop shape of the forward pass."""
    return _FORWARD.get(backend(), _FORWARD["gpu"])


def backward_shape() -> LoopShape:
    """Loop shape of the backward pass."""
    return _BACKWARD.get(backend(), _BACKWARD["gpu"])


def in_kernels() -> bool:
    """Whether tiles are blended by the kernels of ``splat.raster.pallas`` and ``splat.surfel.pallas``; else by XLA's
    loops.
    """
    return backend() == "gpu"


def tile_side(width: int, height: int) -> int:
    """Side of the tiles, pixels, in which an image is blended fastest."""
    fine = backend() == "cpu" and width * height <= _FINE_PIXELS
    return _FINE_TILE if fine else COARSE_TILE
