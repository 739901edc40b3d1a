"""The ranks of a run: all devices of all processes on one mesh axis, and programs that run on every one of them.

The same code serves simulated devices of one process, the devices of a host and many hosts. An array is either the
same on all ranks (``SAME``) or has one part per rank (``OWN``): outside a program such an array has a leading axis [R],
inside it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RANKS = "ranks"  # name of the mesh axis
SAME, OWN = P(), P(RANKS)


class Ranks:
    """The devices that train together, in the order of their ranks."""

    def __init__(self, devices: Sequence[Any] | None = None):
        devices = sorted(devices or jax.devices(), key=lambda device: (device.process_index, device.id))
        self.mesh = Mesh(np.array(devices), (RANKS,))
        self.count = len(devices)
        self.process, self.processes = jax.process_index(), jax.process_count()
        self.local = [rank for rank, device in enumerate(devices) if device.process_index == self.process]
        self._devices = [devices[rank] for rank in self.local]

    def program(self, function: Callable[..., Any], ins: Sequence[Any], outs: Any,
                donate: tuple[int, ...] = (), options: dict[str, Any] | None = None) -> Callable[..., Any]:
        """``function`` compiled to run on every rank; it may use collectives over ``RANKS``.

        ``ins`` has SAME or OWN, or a pytree prefix of them, per argument; ``outs`` likewise. Compiled on the first
        call and for each new shape. Arguments named in ``donate`` are used up; ``options`` are XLA's.
        """
        ins = tuple(ins)

        def on_rank(*args: Any) -> Any:
            result = function(*(_narrowed(kind, arg) for kind, arg in zip(ins, args, strict=True)))
            return _widened(outs, result)

        mapped = jax.shard_map(on_rank, mesh=self.mesh, in_specs=ins, out_specs=outs, check_vma=False)
        return jax.jit(mapped, donate_argnums=donate, compiler_options=options)

    def same(self, tree: Any) -> Any:
        """The pytree on all ranks; every process must give the same values."""
        return jax.tree.map(lambda leaf: self._global(leaf, SAME, [leaf] * len(self.local), np.shape(leaf)), tree)

    def own(self, parts: Sequence[Any]) -> Any:
        """One pytree from the parts of this process's ranks, alike in structure and shapes, with a leading axis [R]."""
        def stacked(*leaves: Any) -> jax.Array:
            shape = (self.count, *np.shape(leaves[0]))
            return self._global(leaves[0], OWN, [np.asarray(leaf)[None] for leaf in leaves], shape)

        return jax.tree.map(stacked, *parts)

    def _global(self, leaf: Any, kind: P, shards: Sequence[Any], shape: tuple[int, ...]) -> jax.Array:
        arrays = [jax.device_put(shard, device) for shard, device in zip(shards, self._devices, strict=True)]
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, kind), arrays)


def here(tree: Any) -> Any:
    """A pytree that is the same on all ranks as arrays of one device of this process; no copy."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def mine(tree: Any) -> list[Any]:
    """The parts of this process's ranks of a pytree of OWN arrays, as NumPy."""
    ranks = len(jax.tree.leaves(tree)[0].addressable_shards)
    return [jax.tree.map(lambda leaf, at=at: np.asarray(leaf.addressable_shards[at].data)[0], tree)
            for at in range(ranks)]


def _narrowed(kind: Any, arg: Any) -> Any:
    return _by_kind(kind, arg, lambda leaf: leaf[0])


def _widened(kind: Any, result: Any) -> Any:
    return _by_kind(kind, result, lambda leaf: leaf[None])


def _by_kind(kinds: Any, tree: Any, of_own: Callable[[jax.Array], jax.Array]) -> Any:
    def apply(kind: P, part: Any) -> Any:
        return jax.tree.map(of_own, part) if kind == OWN else part

    return jax.tree.map(apply, kinds, tree, is_leaf=lambda node: isinstance(node, P))
