"""Periodic textures for the procedural scene, drawn from a seed, and their mip-mapped look-up. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Texture:
    """A square periodic picture with its mip levels."""

    levels: tuple[np.ndarray, ...]  # [S, S, 3] float32 0..1, then halved down to 1×1
    period: float  # world units after which it repeats

    def look_up(self, uv: np.ndarray, footprint: np.ndarray) -> np.ndarray:
        """Colour at surface coordinates.

        Args:
            uv: [n, 2] world units along the surface.
            footprint: [n] side of a pixel on the surface, world units; picks the mip level.

        Returns:
            [n, 3] in 0..1, trilinear.
        """
        texels = footprint * self.levels[0].shape[0] / self.period
        level = np.clip(np.log2(np.maximum(texels, 1e-9)), 0, len(self.levels) - 1)
        low = np.minimum(level.astype(np.int64), len(self.levels) - 2)
        colour = np.zeros((len(uv), 3))
        for number in np.unique(low):
            rows = np.flatnonzero(low == number)
            share = (level[rows] - number)[:, None]
            colour[rows] = ((1 - share) * _bilinear(self.levels[number], uv[rows] / self.period)
                            + share * _bilinear(self.levels[number + 1], uv[rows] / self.period))
        return colour


def make_texture(kind: str, seed: int, size: int, period: float, palette: np.ndarray) -> Texture:
    """A texture of one kind: "tiles", "bricks", "stripes", "checks", "rings" or "marble".

    Args:
        kind: pattern.
        seed: of its noise.
        size: texels per side, a power of two.
        period: world units after which it repeats.
        palette: [2, 3] the two main colours, 0..1.
    """
    rng = np.random.default_rng([seed, sum(map(ord, kind))])
    grid = (np.arange(size) + 0.5) / size
    v, u = np.meshgrid(grid, grid, indexing="ij")
    fine, coarse = fractal_noise(rng, size, 16, 4), fractal_noise(rng, size, 4, 4)
    mix, shade = _PATTERNS[kind](u, v, coarse, rng)
    colour = palette[0] + np.clip(mix, 0, 1)[..., None] * (palette[1] - palette[0])
    light = np.clip(shade * (0.72 + 0.36 * coarse + 0.28 * (fine - 0.5)), 0, 1.4)
    levels = [np.clip(colour * light[..., None], 0, 1).astype(np.float32)]
    while levels[-1].shape[0] > 1:
        last = levels[-1]
        levels.append(0.25 * (last[::2, ::2] + last[1::2, ::2] + last[::2, 1::2] + last[1::2, 1::2]))
    return Texture(tuple(levels), period)


def fractal_noise(rng: np.random.Generator, size: int, cells: int, octaves: int) -> np.ndarray:
    """[size, size] periodic value noise in 0..1: lattices of ``cells``, 2 ``cells``, … at falling weight."""
    total, weight = np.zeros((size, size)), 0.0
    for octave in range(octaves):
        count = min(cells << octave, size)
        lattice = rng.random((count, count))
        place = (np.arange(size) + 0.5) / size * count
        first = place.astype(np.int64) % count
        share = place - np.floor(place)
        share = share * share * (3 - 2 * share)
        second = (first + 1) % count
        rows = lattice[first] * (1 - share)[:, None] + lattice[second] * share[:, None]
        total += 0.5**octave * (rows[:, first] * (1 - share) + rows[:, second] * share)
        weight += 0.5**octave
    return total / weight


def _tiles(u: np.ndarray, v: np.ndarray, coarse: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
    count = 16
    tone = rng.random((count, count))[(v * count).astype(int), (u * count).astype(int)]
    return 0.25 * coarse + 0.9 * tone, 1 - 0.55 * _seam(u * count, 0.035) - 0.55 * _seam(v * count, 0.035)


def _bricks(u: np.ndarray, v: np.ndarray, coarse: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = 12, 6
    row = (v * rows).astype(int)
    along = (u * columns + 0.5 * (row % 2)) % columns
    tone = rng.random((rows, columns))[row, along.astype(int)]
    return tone, 1 - 0.5 * _seam(v * rows, 0.07) - 0.5 * _seam(along, 0.035)


def _stripes(u: np.ndarray, v: np.ndarray, coarse: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
    wave = np.sin(2 * np.pi * (4 * u + 2 * v + 0.6 * coarse))
    return 0.5 + 0.5 * np.tanh(4 * wave), np.ones_like(u)


def _checks(u: np.ndarray, v: np.ndarray, coarse: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
    odd = ((u * 6).astype(int) + (v * 6).astype(int)) % 2
    return 0.85 * odd + 0.15 * coarse, np.ones_like(u)


def _rings(u: np.ndarray, v: np.ndarray, coarse: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
    return 0.5 + 0.5 * np.sin(2 * np.pi * (9 * v + 2.5 * coarse)), 0.9 + 0.2 * coarse


def _marble(u: np.ndarray, v: np.ndarray, coarse: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
    return np.abs(np.sin(2 * np.pi * (u + 2 * v + 2.2 * coarse))) ** 0.5, np.ones_like(u)


_PATTERNS = {"tiles": _tiles, "bricks": _bricks, "stripes": _stripes, "checks": _checks, "rings": _rings,
             "marble": _marble}


def _seam(position: np.ndarray, width: float) -> np.ndarray:
    """1 on the lines at integers, falling to 0 at ``width`` from them."""
    distance = np.abs(position - np.rint(position))
    return np.clip(1.5 - distance / width, 0, 1)


def _bilinear(image: np.ndarray, uv: np.ndarray) -> np.ndarray:
    size = image.shape[0]
    place = uv * size - 0.5
    low = np.floor(place).astype(np.int64)
    share = (place - low).astype(np.float32)
    x0, y0 = low[:, 0] % size, low[:, 1] % size
    x1, y1 = (x0 + 1) % size, (y0 + 1) % size * size
    y0 = y0 * size
    sx, sy = share[:, :1], share[:, 1:]
    texels = image.reshape(-1, 3)
    upper = texels.take(y0 + x0, axis=0) * (1 - sx) + texels.take(y0 + x1, axis=0) * sx
    lower = texels.take(y1 + x0, axis=0) * (1 - sx) + texels.take(y1 + x1, axis=0) * sx
    return upper * (1 - sy) + lower * sy
