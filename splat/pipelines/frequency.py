"""At which resolution to train when, from what frequencies the photos have (spec §4.1).

A photo k times smaller keeps the centre of its spectrum, the window of 1/k of each side. |F| is the magnitude of the
centred 2D FFT. Training starts at the scale whose window holds a given share of it and ends at full size; each level of
resolution lasts in proportion to the logarithm of what its window holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.fft

BISECTIONS = 64  # steps to find a scale


class Spectrum(NamedTuple):
    """How much |F| each centred window of one image size holds."""

    below: np.ndarray  # [H + 1, W + 1] float64 sums of |F| over the rows and columns before each entry

    def window(self, scale: float) -> float:
        """|F| within the centred window of ⌊size / scale⌋, at least the constant part."""
        sums = self.below
        (top, bottom), (left, right) = (_span(size - 1, scale) for size in sums.shape)
        return float(sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left])


class Schedule(NamedTuple):
    """Levels of resolution, coarse to fine."""

    scales: tuple[float, ...]  # by how much sides are divided at each level, from the largest on
    energies: tuple[float, ...]  # |F| that each level holds, in units of the first

    def starts(self, until: int) -> list[int]:
        """Step at which each level is reached when the last one is at ``until``."""
        whole = math.log(self.energies[-1])
        return [int(until * math.log(energy) / whole) if whole > 0 else 0 for energy in self.energies]

    def scale(self, step: int, until: int) -> float:
        """Between the levels 1/s² grows linearly with the step; 1 from ``until`` on."""
        if step >= until:
            return 1.0
        starts = self.starts(until)
        level = next((level for level, start in enumerate(starts) if start > step), None)
        if level is None:
            return self.scales[-1]
        done = (step - starts[level - 1]) / (starts[level] - starts[level - 1])
        return (done / self.scales[level] ** 2 + (1 - done) / self.scales[level - 1] ** 2) ** -0.5

    def fine_from(self, until: int) -> int:
        """t*: the step at which the first level with a scale below 2 is reached; ``until`` where there is none."""
        fine = (start for start, scale in zip(self.starts(until), self.scales, strict=True) if scale < 2)
        return next(fine, until)


def schedule_of(photos: Sequence[np.ndarray], max_scale: float, start_energy: float, levels: int) -> Schedule:
    """The schedule of photos [H, W, 3] uint8, at least one, which need not be of one size.

    The first level is the largest scale up to ``max_scale`` at which every photo keeps the share ``start_energy`` of
    its |F|; from there ``levels`` go to scale 1 in equal steps of the mean |F| over photos.
    """
    sums: dict[tuple[int, ...], np.ndarray] = {}
    first = float(max_scale)
    for place in range(len(photos)):
        magnitude = magnitude_of(photos[place])
        spectrum = spectrum_of(magnitude)
        first = min(first, largest_scale(spectrum, start_energy * spectrum.window(1), first))
        sums[magnitude.shape] = sums.get(magnitude.shape, 0) + magnitude
    mean = [spectrum_of(total / len(photos)) for total in sums.values()]

    def window(scale: float) -> float:
        return sum(spectrum.window(scale) for spectrum in mean)

    wanted = np.linspace(window(first), window(1), levels)
    scales = [first, *(_bisected(window, energy, first) for energy in wanted[1:-1]), 1.0][:levels]
    unit = wanted[0] if wanted[0] > 0 else 1.0
    return Schedule(tuple(scales), tuple(max(float(energy / unit), 1.0) for energy in wanted))


def magnitude_of(photo: np.ndarray) -> np.ndarray:
    """[H, W] float64 |F| of a photo [H, W, 3] uint8, summed over channels, frequency 0 at (⌊H/2⌋, ⌊W/2⌋)."""
    channels = np.moveaxis(photo.astype(np.float64) / 255, -1, 0)
    spectra: Any = scipy.fft.fft2(channels, axes=(-2, -1))
    return np.fft.fftshift(np.abs(spectra).sum(axis=0))


def spectrum_of(magnitude: np.ndarray) -> Spectrum:
    """The window sums of a centred |F| [H, W]."""
    return Spectrum(np.pad(magnitude.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0))))


def largest_scale(spectrum: Spectrum, energy: float, most: float) -> float:
    """The largest scale from 1 to ``most`` whose window holds ``energy``."""
    return _bisected(spectrum.window, energy, most)


def _bisected(window: Any, energy: float, most: float) -> float:
    if window(most) >= energy:
        return most
    low, high = 1.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if window(middle) >= energy else (low, middle)
    return low


def _span(size: int, scale: float) -> tuple[int, int]:
    """First row and the one after the last of the window of ⌊size / scale⌋ rows around the constant part."""
    rows = max(int(size / scale), 1)
    first = size // 2 - rows // 2
    return first, first + rows
