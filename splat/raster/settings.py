"""Shape of the blending loop per backend, chosen in this one place (design §11)."""

from __future__ import annotations

from typing import NamedTuple

import jax


class LoopShape(NamedTuple):
    """Rows gathered per step and tiles that step together."""

    chunk: int
    group: int | None  # None: all tiles of the image at once


# A CPU core wants a step to stay in its first-level cache; a GPU wants every tile in one step.
_FORWARD = {"cpu": LoopShape(16, 4), "gpu": LoopShape(16, None)}
_BACKWARD = {"cpu": LoopShape(32, 2), "gpu": LoopShape(16, None)}


def forward_shape() -> LoopShape:
    """Loop shape of the forward pass on the default backend."""
    return _FORWARD.get(jax.default_backend(), _FORWARD["gpu"])


def backward_shape() -> LoopShape:
    """Loop shape of the backward pass on the default backend."""
    return _BACKWARD.get(jax.default_backend(), _BACKWARD["gpu"])
