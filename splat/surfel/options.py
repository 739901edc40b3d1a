"""Static options of a surfel render, hashable so that they can key a compiled program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from splat.errors import UserError


@dataclass(frozen=True)
class SurfelOptions:
    """What is compiled into the surfel renderer; everything traced is an argument of ``render_surfels`` instead."""

    pair_capacity: int | None = None  # tile-row pairs there is room for; None: counted when concrete, else from N
    near: float = 0.2  # hits and centres at or before this camera depth are not rendered, world units
    far: float = 100.0  # depth at which the distortion's depth coordinate is 1, world units
    # The low-pass filter lies at the middle of the box around the projected disk of this radius, in units of the
    # scales: 3 in the renderer published with 2DGS, 1 in gsplat.
    centre_cutoff: float = 3.0

    def __post_init__(self) -> None:
        """Raises UserError for a value that cannot work."""
        if self.pair_capacity is not None and self.pair_capacity < 1:
            raise UserError(f"pair_capacity={self.pair_capacity}: must be at least 1, or None to have it counted")
        for name in ("near", "centre_cutoff"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name}={value}: must be a finite number above 0")
        if not (math.isfinite(self.far) and self.far > self.near):
            raise UserError(f"far={self.far}: must be a finite number above near={self.near}")
