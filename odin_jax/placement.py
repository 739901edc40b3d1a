"""A pipeline's state on all ranks: rows replicated, sums over views per rank until an event reads them (design §7).

A pipeline names its sums in ``local_fields``. They never travel per step: a rank adds up those of its own views, and a
structural event gets the sum over ranks, in their order. The event runs on one device of each process, where arrays are
the same everywhere; then the rows go back on all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from odin_jax import exchange
from odin_jax.parallel.mesh import OWN, SAME, Ranks, here


def kinds(pipeline: Any, state: Any) -> Any:
    """Which fields of a state are the same on all ranks and which are a rank's own, as the state's class."""
    names = [field.name for field in dataclasses.fields(state)]
    return type(state)(**{name: OWN if name in pipeline.local_fields else SAME for name in names})


def place(ranks: Ranks, pipeline: Any, state: Any) -> Any:
    """A state of one device on all ranks; the first rank's sums are the state's, the others' are zero.

    Arrays of the first device are taken over, not copied: once the ranks train on, the given state is used up.
    """
    local = _local(pipeline, state)
    parts = [local if rank == 0 else jax.tree.map(np.zeros_like, local) for rank in ranks.local]
    return _joined(ranks, pipeline, state, ranks.own(parts))


def place_parts(ranks: Ranks, pipeline: Any, state: Any, parts: int | None) -> Any:
    """A saved state on all ranks; its ``local_fields`` hold the sums of ``parts`` ranks along a leading axis.

    ``parts`` None: they have no such axis. Sums of another count of ranks are added up, in their order.
    """
    if parts != ranks.count:
        return place(ranks, pipeline, summed(pipeline, state, parts))
    local = _local(pipeline, state)
    of_rank = [jax.tree.map(lambda leaf, rank=rank: leaf[rank], local) for rank in ranks.local]
    return _joined(ranks, pipeline, state, ranks.own(of_rank))


def summed(pipeline: Any, state: Any, parts: int | None) -> Any:
    """A saved state of ``parts`` ranks as one device has it."""
    if parts is None:
        return state
    return dataclasses.replace(state, **_added(_local(pipeline, state)))


def one_device(ranks: Ranks, pipeline: Any, state: Any) -> Any:
    """The state on one device of this process, with the sums over all ranks. Every process has to call it."""
    return _here(pipeline, state, _added(_parts(ranks, pipeline, state)))


def with_parts(ranks: Ranks, pipeline: Any, state: Any) -> Any:
    """The state on one device of this process with the sums of each rank along a leading axis [R], to be saved."""
    return _here(pipeline, state, _parts(ranks, pipeline, state))


def _parts(ranks: Ranks, pipeline: Any, state: Any) -> dict[str, Any]:
    return here(gatherer(ranks)(_local(pipeline, state)))


@cache
def gatherer(ranks: Ranks) -> Callable[[Any], Any]:
    """The program that gives all ranks the parts of each; compiled once."""
    return ranks.program(lambda tree: jax.tree.map(exchange.every, tree), (OWN,), SAME)


def _local(pipeline: Any, state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in pipeline.local_fields}


def _here(pipeline: Any, state: Any, local: dict[str, Any]) -> Any:
    names = [field.name for field in dataclasses.fields(state) if field.name not in pipeline.local_fields]
    return dataclasses.replace(state, **local, **{name: here(getattr(state, name)) for name in names})


def _joined(ranks: Ranks, pipeline: Any, state: Any, local: dict[str, Any]) -> Any:
    names = [field.name for field in dataclasses.fields(state) if field.name not in pipeline.local_fields]
    return dataclasses.replace(state, **local, **{name: ranks.same(getattr(state, name)) for name in names})


def _added(local: dict[str, Any]) -> dict[str, Any]:
    """Sums over the leading axis of ranks, in their order."""
    return jax.tree.map(lambda leaf: reduce(add, map(jnp.asarray, leaf)), local)
