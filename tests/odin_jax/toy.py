"""A pipeline small enough to compile in a moment: the image is the mean colour of the rows that are alive.

It has everything the loop must handle: moments, a structural event that grows the capacity, a count of pairs
that can overflow, and gradients that can be made to fail. Plugged in from outside with ``--pipeline
toy:factory``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from splat.gaussians import Gaussians
from splat.pipelines.protocol import Evidence

GROW_EVERY = 20  # steps between structural events
POISON_STEP = 10**9  # a test may set the step from which the gradient of row 3 is not a number
PAIRS_STEP = 10**9  # a test may set the step from which a view wants ten times the pairs


@struct.dataclass
class ToyState:
    gaussians: Gaussians
    alive: jax.Array
    moment: jax.Array


def colour(gaussians, alive):
    weights = alive / jnp.maximum(jnp.sum(alive), 1)
    return jnp.sum(gaussians.sh_dc * weights[:, None], axis=0)


class Toy:
    name = "toy"

    def __init__(self):
        self.rooms_used = []

    def init(self, points, colours, extent, seed):
        n = len(points)
        rng = np.random.default_rng(seed)
        gaussians = Gaussians(
            jnp.asarray(points, jnp.float32),
            jnp.zeros((n, 3)),
            jnp.tile(jnp.asarray([1.0, 0, 0, 0]), (n, 1)),
            jnp.zeros(n),
            jnp.asarray(rng.normal(size=(n, 3)), jnp.float32),
            jnp.zeros((n, 15, 3)),
        )
        return ToyState(gaussians, jnp.ones(n, bool), jnp.zeros((n, 3)))

    def scope(self, state, camera):
        return state.alive, jnp.int32(100)

    def loss_and_grad(self, state, views, step, pair_capacity):
        self.rooms_used.append(pair_capacity)
        pairs = jnp.where(step >= PAIRS_STEP, 1_000_000, 100)
        overflow = pairs > pair_capacity

        def loss(gaussians):
            target = jnp.stack([jnp.mean(view.photo / 255.0, axis=(0, 1)) for view in views])
            behind = jnp.stack([view.background for view in views])
            return jnp.mean((colour(gaussians, state.alive) + 0.1 * behind - target) ** 2)

        value, grads = jax.value_and_grad(loss)(state.gaussians)
        bad = jnp.where((step >= POISON_STEP) & (jnp.arange(len(state.alive)) == 3), jnp.nan, 0.0)
        grads = grads.replace(sh_dc=jnp.where(overflow, jnp.nan, grads.sh_dc + bad[:, None]))
        n = len(state.alive)
        return grads, Evidence(
            active=jnp.broadcast_to(state.alive, (len(views), n)),
            magnitude=jnp.zeros(n),
            visible_count=jnp.ones(n, jnp.int32),
            pairs=jnp.broadcast_to(pairs, len(views)),
            overflow=overflow,
            loss=jnp.where(overflow, jnp.nan, value),
            mse=value,
        )

    def update(self, state, grads, evidence, step):
        moment = 0.9 * state.moment + grads.sh_dc
        rate = 0.3 / jnp.sqrt(step.astype(jnp.float32))
        sh_dc = state.gaussians.sh_dc - rate * len(state.alive) * moment
        return state.replace(gaussians=state.gaussians.replace(sh_dc=sh_dc), moment=moment)

    def events(self, step):
        return ("grow",) if step % GROW_EVERY == 0 else ()

    def apply_event(self, state, event, step):
        def pad(leaf):
            return jnp.concatenate([leaf, jnp.zeros((8, *leaf.shape[1:]), leaf.dtype)])

        count = int(jnp.sum(state.alive))
        grown = state if count < len(state.alive) else jax.tree.map(pad, state)
        return grown.replace(alive=grown.alive.at[count].set(True))

    def render(self, gaussians, camera, background, pair_capacity):
        image = jnp.broadcast_to(
            colour(gaussians, jnp.ones(gaussians.count)), (camera.height, camera.width, 3)
        )
        return image + 0.1 * background, jnp.int32(100)


def factory(config):
    return Toy()
