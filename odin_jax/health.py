"""Stop a run that diverged: say which field, row and step, instead of rendering garbage for hours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from odin_jax.checkpoint import named_leaves
from splat.errors import UserError


class Diverged(UserError):
    """A number of the run is no longer finite."""


class NotFinite(Exception):
    """An engine met numbers that are not finite; the loop, which knows the checkpoints, makes ``Diverged`` of it."""

    def __init__(self, what: str, tree: Any, step: int, loss: float):
        super().__init__(what)
        self.what, self.tree, self.step, self.loss = what, tree, step, loss


def all_finite(tree: Any) -> jax.Array:
    """[] bool: every floating-point number of the pytree is finite; to be jitted with what made it."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def first_bad(tree: Any) -> tuple[str, int] | None:
    """(field, row) of the first number that is not finite; row 0 for a scalar."""
    for name, leaf in named_leaves(tree).items():
        values = np.asarray(leaf)
        if np.issubdtype(values.dtype, np.floating) and not np.all(np.isfinite(values)):
            bad = np.argwhere(~np.isfinite(values))[0]
            return name, int(bad[0]) if bad.size else 0
    return None


def diverged(what: str, tree: Any, step: int, loss: float, last_checkpoint: int | None) -> Diverged:
    """The exception that names the first bad number of ``tree`` ("gradient" or "state") at ``step``."""
    bad = first_bad(tree)
    where = f"{what} of {bad[0]}, row {bad[1]} is not finite" if bad else f"the loss is {loss}"
    kept = (
        f"the checkpoint of step {last_checkpoint} is kept"
        if last_checkpoint
        else "no checkpoint was written yet"
    )
    return Diverged(
        f"diverged at step {step}: {where}; {kept}; lower the learning rates or check the photos and poses"
    )
