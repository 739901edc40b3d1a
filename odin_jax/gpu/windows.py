"""The programs of a training with one program per window (``odin_jax.fused``), and what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from odin_jax import fused, placement
from odin_jax.executor import Programs
from odin_jax.gpu import shapes
from odin_jax.gpu.shapes import Sizes, number, own, packed
from odin_jax.parallel.mesh import SAME, Ranks
from odin_jax.rooms import PairRooms
from splat.density import Arrangement
from splat.pipelines import state as states

# What has to lie between start and end of a collective of the window's program, by exchange: scope of the collective,
# its kind, and the loop. Under ``ordered`` the other collectives end before the next of their part can begin.
OVERLAPS = {
    "psum": ((fused.COLOUR, "all-reduce", fused.BINS), (fused.REST, "all-reduce", fused.UNIT)),
    "ordered": ((fused.REST, "all-gather", fused.UNIT),),
}
SCOPES = (fused.GEOMETRY, fused.COLOUR, fused.REST, fused.BINS, fused.UNIT)


class Call(NamedTuple):
    """A program and the shapes of its arguments."""

    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    overlaps: tuple[tuple[str, str, str], ...] = ()  # see OVERLAPS
    beside: int = 0  # bytes that a device holds while it runs and that are not its arguments


def calls(ranks: Ranks, pipeline: Any, sizes: Sizes, exchange: str, names: tuple[str, ...]) -> list[Call]:
    """The programs called ``names`` of a training of ``pipeline`` with so much of everything.

    ``window``: publication of A beside forward and backward of B; ``whole``: publication with nothing beside it;
    ``alone``: forward and backward alone; ``scope`` and ``tell``: what is exchanged and decided between two units;
    ``densify``: rows change, while the state before is still held.
    """
    state = shapes.state(pipeline, sizes.rows)
    programs = Programs(ranks, pipeline, exchange, placement.kinds(pipeline, state))
    executor = fused.Fused(programs, PairRooms())
    fields = programs.fields(1)
    whole, views = shapes.placed(ranks, pipeline, state), own(ranks, shapes.views(sizes))
    grads, words = own(ranks, state.gaussians), packed(sizes.rows)
    inputs = jax.eval_shape(pipeline.step_inputs, state, number())
    alone = executor._alone(sizes.pairs)
    made = {
        "window": lambda: (executor._window(sizes.pairs, sizes.urgent, sizes.rest, fields),
                           (whole, grads, words, words, words, inputs, views, number())),
        "whole": lambda: (executor._whole(sizes.active, fields), (whole, grads, words, words, inputs)),
        "alone": lambda: (alone, (whole, views, number())),
        "scope": lambda: (programs.scope(), (whole, tuple(view.camera for view in views), None, number())),
        "tell": lambda: (programs.tell(False), (
            jax.eval_shape(alone, whole, views, number()).activity, *(own(ranks, words),) * 2,
            own(ranks, jax.ShapeDtypeStruct((2,), np.float32)))),
        "densify": lambda: (ranks.program(states.grown, (SAME, SAME), SAME), (state, _arrangement(sizes.rows))),
    }
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    found = []
    for name in names:
        program, args = made[name]()
        found.append(Call(name, program, args, OVERLAPS[exchange] if name == "window" else (),
                          held if name == "densify" else 0))
    return found


def _arrangement(rows: int) -> Arrangement:
    kinds = (np.int32, np.bool_, np.bool_, np.bool_)
    noise: Any = jax.ShapeDtypeStruct((rows, 3), np.float32)
    return Arrangement(*(jax.ShapeDtypeStruct((rows,), kind) for kind in kinds), noise)  # type: ignore[arg-type]


def compiled(call: Call) -> Any:
    """The program compiled for the devices of its mesh."""
    return call.program.trace(*call.args).lower(lowering_platforms=("cuda",)).compile()  # type: ignore[attr-defined]
