"""Static options of a render, hashable so that they can key a compiled program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from splat.errors import UserError


@dataclass(frozen=True)
class RenderOptions:
    """What is compiled into the renderer; everything traced is an argument of ``splat.render`` instead."""

    antialias: bool = False  # scale opacity by the footprint lost to the low-pass filter (spec §1.1 step 5)
    pair_capacity: int | None = None  # tile-row pairs there is room for; None: counted when concrete, else from N
    low_pass: float = 0.3  # added to both diagonal entries of the projected covariance, pixels²
    near: float = 0.2  # rows at or before this camera depth are not rendered, world units

    def __post_init__(self) -> None:
        """Raises UserError for a value that cannot work."""
        if self.pair_capacity is not None and self.pair_capacity < 1:
            raise UserError(f"pair_capacity={self.pair_capacity}: must be at least 1, or None to have it counted")
        for name in ("low_pass", "near"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"{name}={value}: must be a finite number of at least 0")
