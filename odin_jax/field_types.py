"""Whether the values of a dataclass that was read from a file are of the kinds its fields state."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def wrong_field(config: Any, prefix: str = "") -> str | None:
    """``name: value`` of the first field of another kind than stated, dataclasses inside included; None: all fit."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, hints[field.name]):
            return f"{prefix}{field.name}: {value!r}"
        inside = wrong_field(value, f"{prefix}{field.name}.") if dataclasses.is_dataclass(value) else None
        if inside:
            return inside
    return None


def _fits(value: Any, hint: Any) -> bool:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in choices
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in choices)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_fits(item, choices[0]) for item in value)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)
