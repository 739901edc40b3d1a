"""Rows of a model as what an optimizer step changes, and parts of them by field.

An optimizer step is element-wise over rows and fields, so a step can be made and published in parts: any rows, any
fields, in any order (design §7). A part by field is the same dataclass with the other fields None, which JAX treats as
absent; a part by rows has fewer rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from flax import struct


@struct.dataclass
class Rows:
    """What a step changes: parameters and moments, each a dataclass of row arrays [N, ...] with the same fields."""

    params: Any
    mu: Any  # first moments
    nu: Any  # second moments


@struct.dataclass
class StepInputs:
    """What is the same for all rows in one optimizer step; a pipeline that needs more adds it in a subclass."""

    count: jax.Array  # [] int32 steps taken after this one
    rates: Any  # learning rate of each field, [] float32
    stepped: Any  # [] bool per field: whether it is stepped at all


@struct.dataclass
class AdamInputs(StepInputs):
    """What a step of Adam needs."""

    corrections: jax.Array  # [2] float32, see ``splat.optim.bias_corrections``


def only(tree: Any, fields: tuple[str, ...]) -> Any:
    """The dataclass (or ``Rows`` of such) with all fields but ``fields`` None."""
    if isinstance(tree, Rows):
        return Rows(*(only(part, fields) for part in (tree.params, tree.mu, tree.nu)))
    return dataclasses.replace(tree, **{name: None for name in _names(tree) if name not in fields})


def present(tree: Any) -> tuple[str, ...]:
    """Names of the fields that a part has."""
    return tuple(name for name in _names(tree) if getattr(tree, name) is not None)


def merged(whole: Any, part: Any) -> Any:
    """``whole`` with the fields that ``part`` has replaced by its arrays."""
    if isinstance(whole, Rows):
        return Rows(*(merged(getattr(whole, name), getattr(part, name)) for name in ("params", "mu", "nu")))
    return dataclasses.replace(whole, **{name: getattr(part, name) for name in present(part)})


def with_more(cls: type[Any], whole: Any, **more: Any) -> Any:
    """An instance of ``cls``, a subclass of the dataclass ``whole``, with its fields and ``more``."""
    return cls(**{name: getattr(whole, name) for name in _names(whole)}, **more)


def _names(tree: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(tree))
