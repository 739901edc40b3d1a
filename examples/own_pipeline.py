"""A renderer that is not 3DGS, plugged into the runtime; docs/bring-your-own-pipeline.md explains every method.

    PYTHONPATH=. odin train --scene PATH --out out/blobs --pipeline examples.own_pipeline:factory --batch 2 --devices 2

The scene is a cloud of coloured blobs of one size. A blob is a disc in the image whose weight falls to exactly zero at
its rim; a pixel is the weighted mean of the colours that cover it. Adam moves a number by at most its learning rate.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from splat.gaussians import Gaussians
from splat.pipelines.protocol import Evidence
from splat.pipelines.rows import Rows, StepInputs, only, present
from splat.sh import C0

NEAR, FAINT = 0.1, 1e-3  # nearest depth that is drawn, world units; weight of the background in every pixel


@struct.dataclass
class Blobs:
    places: jax.Array  # [N, 3] world units
    colours: jax.Array  # [N, 3] 0..1, not clamped


@struct.dataclass
class State:
    rows: Rows  # Blobs: parameters and their two moments
    alive: jax.Array  # [N] bool
    size: jax.Array  # [N] radius, world units
    count: jax.Array  # [] int32 optimizer steps taken

    @property
    def gaussians(self) -> Gaussians:
        """The blobs as the rows that PLY files hold: what evaluation, viewers and `odin export` read."""
        places, n = self.rows.params.places, len(self.alive)
        return Gaussians(places, jnp.log(jnp.repeat(self.size[:, None], 3, 1) / 2), jnp.eye(4)[jnp.zeros(n, int)],
                         jnp.full(n, 3.0), (self.rows.params.colours - 0.5) / C0, jnp.zeros((n, 15, 3)))


def seen_from(camera, places):
    """[3, N]: x, y and depth in the camera's frame."""
    return jnp.sum(camera.view[:3, None, :3] * places, axis=-1) + camera.view[:3, 3:]


def draw(blobs, size, alive, camera, background):
    """([H, W, 3] image, [N] bool rows with weight in some pixel)."""
    (x, y, z), (fx, fy, cx, cy) = seen_from(camera, blobs.places), camera.intrinsics
    shown, depth = alive & (z > NEAR), jnp.maximum(z, NEAR)
    u, v = (fx * x / depth + cx)[:, None, None], (fy * y / depth + cy)[:, None, None]
    squared = (jnp.arange(camera.width) + 0.5 - u) ** 2 + (jnp.arange(camera.height)[:, None] + 0.5 - v) ** 2
    inside = jnp.maximum(1 - squared / ((fx * size / depth) ** 2)[:, None, None], 0)  # [N, H, W]
    weight = jnp.where(shown[:, None, None], inside**2, 0)
    colour = jnp.einsum("nhw,nc->hwc", weight, blobs.colours) + FAINT * background
    return colour / (jnp.sum(weight, axis=0) + FAINT)[..., None], jnp.any(weight > 0, axis=(1, 2))


class OwnPipeline:
    name = "blobs"
    geometry_fields, colour_fields, local_fields = ("places",), ("colours",), ()

    def init(self, points, colours, extent, seed):
        blobs = Blobs(jnp.asarray(points, jnp.float32), jnp.asarray(colours, jnp.float32) / 255)
        moments = (jax.tree.map(jnp.zeros_like, blobs) for _ in range(2))
        n = len(points)
        size = 2 * jnp.mean(jnp.std(blobs.places, axis=0)) / n ** (1 / 3)  # about the distance of neighbours
        return State(Rows(blobs, *moments), jnp.ones(n, bool), jnp.full(n, size), jnp.int32(0))

    def loss_and_grad(self, state, views, step, pair_capacity):
        def of_view(view):
            def loss(blobs):
                image, seen = draw(blobs, state.size, state.alive, view.camera, view.background)
                counts = 1 if view.mask is None else view.mask[..., None] / 255
                return jnp.mean(counts * (image - view.photo / 255) ** 2), seen
            (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(state.rows.params)
            return value, seen, grads, jnp.any((grads.places != 0) | (grads.colours != 0), axis=1)
        value, seen, grads, active = jax.tree.map(lambda *parts: jnp.stack(parts), *map(of_view, views))
        return jax.tree.map(lambda grad: jnp.mean(grad, axis=0), grads), Evidence(
            active=active, magnitude=jnp.sum(jnp.linalg.norm(grads.places, axis=-1), axis=0),
            visible_count=jnp.sum(seen, axis=0, dtype=jnp.int32), pairs=jnp.sum(seen, axis=1, dtype=jnp.int32),
            overflow=jnp.zeros((), bool), loss=jnp.mean(value), mse=jnp.mean(value))

    def observe(self, state, evidence, step):
        return state  # no statistics

    def step_inputs(self, state, step):
        rates = Blobs(0.05 * jnp.max(state.size) / jnp.sqrt(step), 0.05 / jnp.sqrt(step))
        return StepInputs(state.count + 1, rates, None)

    def rows(self, state):
        return state.rows

    def with_rows(self, state, rows, inputs):
        return state.replace(rows=rows, count=inputs.count)

    def step_rows(self, rows, grads, visible, inputs):
        mu = jax.tree.map(lambda old, g: 0.9 * old + 0.1 * g, rows.mu, grads)
        nu = jax.tree.map(lambda old, g: 0.99 * old + 0.01 * g * g, rows.nu, grads)
        rates = only(inputs.rates, present(grads))  # a part of a step has the other fields None
        return Rows(jax.tree.map(lambda p, m, v, rate: p - rate * jnp.clip(m / (jnp.sqrt(v) + 1e-12), -1, 1),
                                 rows.params, mu, nu, rates), mu, nu)

    def update(self, state, grads, evidence, step):
        inputs = self.step_inputs(state, step)
        rows = self.step_rows(self.rows(state), grads, evidence.visible_count > 0, inputs)
        return self.with_rows(self.observe(state, evidence, step), rows, inputs)

    def drift(self, state, step):
        rate = self.step_inputs(state, step).rates.places
        return Blobs(jnp.full_like(state.rows.params.places, rate), None)

    def reach(self, state, camera, drift):
        (x, y, z), (fx, fy, cx, cy) = seen_from(camera, state.rows.params.places), camera.intrinsics
        move, rim = jnp.linalg.norm(drift.places, axis=-1), fx * state.size
        near = state.alive & (z + move > 0.99 * NEAR)
        for f, a, before, after in ((fx, x, cx, camera.width - cx), (fy, y, cy, camera.height - cy)):
            before, after = before + 1, after + 1  # the image and one pixel around it, as two planes
            near &= f * a + before * z + rim + (f + jnp.abs(before)) * move > 0
            near &= f * a - after * z - rim - (f + jnp.abs(after)) * move < 0
        return near

    def scope(self, state, camera):
        rows = self.reach(state, camera, Blobs(jnp.zeros_like(state.rows.params.places), None))
        return rows, jnp.sum(rows, dtype=jnp.int32)

    def events(self, step):
        return ()  # no structural events, so apply_event is never called

    def render(self, gaussians, camera, background, pair_capacity):
        blobs = Blobs(gaussians.means, gaussians.sh_dc * C0 + 0.5)
        alive = gaussians.opacity_logits > -20  # rows that are only capacity are made too faint to draw
        image, seen = draw(blobs, 2 * jnp.exp(gaussians.log_scales[:, 0]), alive, camera, background)
        return image, jnp.sum(seen, dtype=jnp.int32)


def factory(config):
    return OwnPipeline()
