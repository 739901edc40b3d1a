"""What one process knows and all need: values and arrays from the first process, and what each one has to add."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def from_first(value: Any) -> Any:
    """The first process's JSON ``value`` in every process; every process has to call it."""
    if jax.process_count() == 1:
        return value
    return json.loads(_bytes_from_first(json.dumps(value).encode()))


def arrays_from_first(arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """The first process's arrays in every process, bit for bit; the others give None."""
    if jax.process_count() == 1:
        assert arrays is not None
        return arrays
    described = {name: [list(array.shape), array.dtype.str] for name, array in (arrays or {}).items()}
    told = from_first(described)
    return {name: np.frombuffer(_bytes_from_first(arrays[name].tobytes() if arrays else b""), dtype).reshape(shape)
            for name, (shape, dtype) in told.items()}


def from_every(value: Any) -> list[Any]:
    """The JSON ``value`` of each process, in their order, in every process."""
    if jax.process_count() == 1:
        return [value]
    own = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([own.size])).ravel()
    padded = np.pad(own, (0, int(sizes.max()) - own.size))
    texts = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
    return [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)]


def _bytes_from_first(own: bytes) -> bytes:
    size = int(multihost_utils.broadcast_one_to_all(np.array([len(own)]))[0])
    data = np.frombuffer(own, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(data)).astype(np.uint8).tobytes()
