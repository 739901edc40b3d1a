"""The least time that a pass over a scene can take on a device, from the bytes it has to move and the numbers it makes.

Bytes count each array once per pass that cannot do without it; arithmetic counts every pixel of every listed tile, as
if no tile became opaque before its list ended. A multiply-add counts as two, a power of two as four.
"""

from __future__ import annotations

from typing import NamedTuple

from odin_jax.gpu import cluster

FLOAT = 4  # bytes
ROW = 59  # numbers of a Gaussian
FOOTPRINT = 10  # numbers of a row that blending reads
DIGITS = 4  # passes of a radix sort over 32 bits
PIXELS = 256  # of a tile
# Per pixel and pair: θ 10, power 4, α and transmittance 6, weight 2, five sums 10.
FORWARD = 32
# Per pixel and pair: the same up to the weight 22, gain 8, what lies behind 2, derivative 7, products and ten sums 23.
BACKWARD = 62


class Work(NamedTuple):
    """What a pass has to do at least."""

    bytes: int
    flops: int

    def seconds(self, device: str) -> float:
        """On a described device, whichever of memory and arithmetic takes longer."""
        lanes = cluster.number(device, "core_count") * cluster.number(device, "fpus_per_core")
        peak = 2 * lanes * cluster.number(device, "clock_rate_ghz") * 1e9
        return max(self.bytes / cluster.number(device, "memory_bandwidth"), self.flops / peak)

    def __add__(self, other: tuple[int, ...]) -> Work:  # type: ignore[override]
        return Work(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def forward(rows: int, pairs: int, pixels: int) -> Work:
    """Project ``rows`` rows, list and sort ``pairs`` pairs, blend them into an image of ``pixels`` pixels."""
    projected = rows * (ROW + FOOTPRINT)
    sorted_ = 2 * 2 * DIGITS * (pairs + rows)  # key and value, read and written
    blended = pairs * (1 + FOOTPRINT) + 5 * pixels
    return Work(FLOAT * (projected + sorted_ + blended), FORWARD * PIXELS * pairs)


def backward(rows: int, pairs: int, pixels: int) -> Work:
    """The gradient of a loss by all numbers of the rows, from what ``forward`` made."""
    walked = pairs * (1 + 3 * FOOTPRINT)  # rows read, slots written and read
    summed = rows * (2 * FOOTPRINT + 2 * ROW)  # footprints' gradient, rows read, gradients written
    return Work(FLOAT * (walked + summed + 3 * 5 * pixels), BACKWARD * PIXELS * pairs)


def update(rows: int) -> Work:
    """One step of Adam: parameters, moments and gradient are read, all but the gradient written."""
    return Work(FLOAT * 7 * ROW * rows, 16 * ROW * rows)


def described_as(kind: str) -> str | None:
    """Which of the described devices one of this kind is; None: none of them."""
    return next((name for name in cluster.TARGETS if f'"{kind}"' in cluster.described(name)), None)
