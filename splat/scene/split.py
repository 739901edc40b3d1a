"""Which views train and which test, and how large the scene is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splat.errors import UserError


def split_by_name(count: int, test_every: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(train, test) indices of ``count`` photos sorted by name; every ``test_every``-th tests (spec §0).

    ``test_every = 0`` means no test views.

    Raises:
        UserError: ``test_every`` is 1 or negative, so nothing would be left to train on.
    """
    if test_every < 0 or test_every == 1:
        raise UserError(f"--test-every {test_every} leaves no training view; use 0 (none) or more than 1")
    test = tuple(range(0, count, test_every)) if test_every and count > 1 else ()
    held = set(test)
    return tuple(index for index in range(count) if index not in held), test


def scene_extent(centres: np.ndarray) -> float:
    """1.1 × the largest distance of a camera centre [V, 3] from their mean, world units (spec §0)."""
    centres = np.asarray(centres, np.float64)
    return float(1.1 * np.linalg.norm(centres - centres.mean(axis=0), axis=1).max())


def split_by_roles(roles: Sequence[str | None]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(train, test) indices where the source itself says which view is which."""
    train = tuple(index for index, role in enumerate(roles) if role != "test")
    return train, tuple(index for index, role in enumerate(roles) if role == "test")
