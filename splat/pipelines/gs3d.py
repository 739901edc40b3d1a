"""3D Gaussian splatting: initialisation, loss and gradient, optimizer step and density control (spec §0, §1).

One iteration is ``loss_and_grad`` → ``update`` → the events that are due, each by ``apply_event``. The
released code densifies *before* the optimizer step, and there a densified scene is made of new tensors that
have no gradient, so that step does nothing; after an opacity reset the opacities alone have none.
``update`` therefore leaves all fields alone at a step with a densification, the opacities at a step with a
reset, and all at the last step (spec §0.4, §1.5); with that, its order and ours give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.spatial import KDTree

from splat import density, optim, schedule
from splat.bounds import may_touch
from splat.cameras import Camera
from splat.density import DensityStats
from splat.errors import UserError
from splat.gaussians import COLOUR_FIELDS, FIELDS, GEOMETRY_FIELDS, Gaussians
from splat.loss import mean_squared_error, photometric
from splat.options import RenderOptions
from splat.pipelines.gs3d_config import Gs3dConfig
from splat.pipelines.protocol import Evidence, View
from splat.pipelines.rows import Rows, StepInputs, only, present
from splat.render import count_pairs, render
from splat.sh import C0

SH_REST = 15  # coefficients of degrees 1 to 3
SOON = 4  # a limit within so many times the rows gets its room at once


@struct.dataclass
class Gs3dState:
    """All that training changes, and what it needs to be continued exactly."""

    gaussians: Gaussians  # rows, capacity included
    alive: jax.Array  # [N] bool, rows that exist
    optimizer: optim.AdamState  # moments as rows
    stats: DensityStats  # since the last densification
    structural_version: jax.Array  # [] int32, structural events so far
    extent: jax.Array  # [] float32 scene extent, world units (spec §0)
    seed: jax.Array  # [] uint32, all random numbers follow from it


class Gs3d:
    """The 3DGS pipeline; see ``splat.pipelines.protocol.Pipeline`` for the contract of each method."""

    name = "3dgs"
    geometry_fields = GEOMETRY_FIELDS
    colour_fields = COLOUR_FIELDS
    local_fields = ("stats",)

    def __init__(self, config: Gs3dConfig):
        config.check()
        self.config = config
        self._batch = config.batch if config.batch_rule == "sqrt" else 1
        make = optim.sparse_adam if config.optimizer == "sparse_adam" else optim.dense_adam
        self._optimizer: Any = make(self._batch)

    def init(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> Gs3dState:
        """State from points [P, 3] (world units) and colours [P, 3] uint8 (spec §0.1).

        With a cap below P a random subset of the points is taken. Raises UserError without points.
        """
        config = self.config
        points, colours = np.asarray(points, np.float32), np.asarray(colours)
        if len(points) == 0:
            raise UserError("the scene has no points to start from; run the reconstruction again or give random ones")
        if config.cap is not None and len(points) > config.cap:
            rows = np.sort(np.random.default_rng(seed).permutation(len(points))[: config.cap])
            points, colours = points[rows], colours[rows]
        rows = len(points)
        logit = np.log(config.start_opacity / (1 - config.start_opacity))
        gaussians = Gaussians(
            means=jnp.asarray(points),
            log_scales=jnp.asarray(_start_log_scales(points, extent)),
            quats=jnp.zeros((rows, 4), jnp.float32).at[:, 0].set(1),
            opacity_logits=jnp.full(rows, logit, jnp.float32),
            sh_dc=jnp.asarray((colours.astype(np.float32) / 255 - 0.5) / C0, jnp.float32),
            sh_rest=jnp.zeros((rows, SH_REST, 3), jnp.float32),
        )
        capacity = self._capacity(rows)
        gaussians = density.widen(gaussians, capacity)
        return Gs3dState(
            gaussians,
            jnp.arange(capacity) < rows,
            self._optimizer.init(gaussians),
            density.empty_stats(capacity),
            jnp.zeros((), jnp.int32),
            jnp.float32(extent),
            jnp.uint32(seed),
        )

    def scope(self, state: Gs3dState, camera: Camera) -> tuple[jax.Array, jax.Array]:
        """([N] bool rows that a render of ``camera`` touches, [] int32 tile-row pairs); one program per
        image size.
        """
        return _scope(state.gaussians, state.alive, camera, RenderOptions(antialias=self.config.antialias))

    def loss_and_grad(
        self, state: Gs3dState, views: Sequence[View], step: jax.Array, pair_capacity: int
    ) -> tuple[Gaussians, Evidence]:
        """Gradient of the mean loss over the views, and the evidence; jittable with ``pair_capacity`` static.

        Views of one shape run as a loop in one program, so that neither memory nor compile time grow with B.
        ``Evidence.magnitude`` sums the norms of each view's own gradient, not divided by B: densification
        thresholds stay those of single views (spec §6.4).
        """
        options = RenderOptions(antialias=self.config.antialias, pair_capacity=pair_capacity)
        degree = schedule.sh_degree(step, self.config.sh_every)
        of_view = partial(_view_loss_and_grad, state.gaussians, state.alive, degree, options)
        if len(views) == 1:
            return of_view(views[0])

        def add(total: tuple[Gaussians, Evidence], view: View) -> tuple[tuple[Gaussians, Evidence], Any]:
            (grads, evidence), (grads_one, one) = total, of_view(view)
            evidence = jax.tree.map(jnp.add, evidence, replace(one, active=None, pairs=None))
            return (jax.tree.map(jnp.add, grads, grads_one), evidence), (one.active[0], one.pairs[0])

        total, of_views, order = _nothing(state), [], []
        for places, alike in _by_shape(views):
            total, of_group = jax.lax.scan(add, total, alike)
            of_views.append(of_group)
            order += places
        active, pairs = (jnp.concatenate(parts)[np.argsort(order)] for parts in zip(*of_views, strict=True))
        grads, evidence = total
        share = 1 / len(views)
        return (
            jax.tree.map(lambda field: field * share, grads),
            replace(
                evidence,
                loss=evidence.loss * share,
                mse=evidence.mse * share,
                active=active,
                pairs=pairs,
            ),
        )

    def update(self, state: Gs3dState, grads: Gaussians, evidence: Evidence, step: jax.Array) -> Gs3dState:
        """The statistics of the unit and one optimizer step; jittable, donate ``state`` at the jit boundary.

        Fields that have no gradient at ``step`` in the released code are not stepped (see the module's text).
        """
        inputs = self.step_inputs(state, step)
        rows = self.step_rows(self.rows(state), grads, evidence.visible_count > 0, inputs)
        return self.with_rows(self.observe(state, evidence, step), rows, inputs)

    def observe(self, state: Gs3dState, evidence: Evidence, step: jax.Array) -> Gs3dState:
        """The state with the density statistics of the unit added."""
        counting = step < self.config.densify_until
        stats = DensityStats(
            state.stats.grad_accum + jnp.where(counting, evidence.magnitude, 0),
            state.stats.denom + jnp.where(counting, evidence.visible_count, 0),
        )
        return replace(state, stats=stats)

    def step_inputs(self, state: Gs3dState, step: jax.Array) -> StepInputs:
        """Count, rates and stepped fields of the optimizer step ``step``."""
        stepped = self.stepped(step)
        count = optim.next_count(state.optimizer.count, stepped)
        return StepInputs(count, self.learning_rates(step, state.extent), stepped)

    def rows(self, state: Gs3dState) -> Rows:
        """Parameters and moments."""
        return Rows(state.gaussians, state.optimizer.mu, state.optimizer.nu)

    def with_rows(self, state: Gs3dState, rows: Rows, inputs: StepInputs) -> Gs3dState:
        """The state after the optimizer step that gave ``rows``."""
        return replace(
            state, gaussians=rows.params, optimizer=optim.AdamState(inputs.count, rows.mu, rows.nu)
        )

    def step_rows(self, rows: Rows, grads: Any, visible: jax.Array, inputs: StepInputs) -> Rows:
        """One optimizer step of the given rows [M] and of the fields that they have; ``visible`` [M] bool."""
        fields = present(grads)
        updates, after = self._optimizer.update(
            grads,
            optim.AdamState(inputs.count, rows.mu, rows.nu),
            rows.params,
            learning_rates=only(inputs.rates, fields),
            stepped=only(inputs.stepped, fields),
            visible=visible,
            count=inputs.count,
        )
        return Rows(jax.tree.map(jnp.add, rows.params, updates), after.mu, after.nu)

    def drift(self, state: Gs3dState, step: jax.Array) -> Gaussians:
        """Most that each geometry parameter may move in the pending optimizer step ``step`` (design §6)."""
        inputs = self.step_inputs(state, step)
        dense = self.config.optimizer != "sparse_adam"
        return optim.worst_step(
            state.optimizer, inputs.count, inputs.rates, inputs.stepped, batch=self._batch, bias_corrected=dense
        )

    def reach(self, state: Gs3dState, camera: Camera, drift: Gaussians) -> jax.Array:
        """[N] bool: rows that a render of ``camera`` may touch after any move within ``drift``."""
        options = RenderOptions(antialias=self.config.antialias)
        return may_touch(state.gaussians, drift, camera, alive=state.alive, options=options)

    def learning_rates(self, step: jax.Array, extent: jax.Array) -> Gaussians:
        """Rate of each field at ``step`` as a ``Gaussians`` of [] float32 (spec §0.4), × √B under the √B
        rule.
        """
        config = self.config
        means = extent * schedule.log_linear(
            config.position_lr_start, config.position_lr_end, config.position_lr_steps, step
        )
        rates = Gaussians(
            means,
            *map(
                jnp.float32,
                (config.scale_lr, config.rotation_lr, config.opacity_lr, config.sh_dc_lr, config.sh_rest_lr),
            ),
        )
        return jax.tree.map(lambda rate: rate * jnp.float32(self._batch**0.5), rates)

    def stepped(self, step: jax.Array) -> Gaussians:
        """Which fields take an optimizer step at ``step``, as a ``Gaussians`` of [] bool."""
        all_ = ~(self._densifies(step) | (step == self.config.iterations))
        return Gaussians(**{**dict.fromkeys(FIELDS, all_), "opacity_logits": all_ & ~self._resets(step)})

    def events(self, step: int) -> tuple[str, ...]:
        """ "densify", "reset" and "sh_degree" where due after ``step``; a new SH degree holds from ``step +
        1`` on.
        """
        every = self.config.sh_every
        raised = (step + 1) % every == 0 and (step + 1) // every <= schedule.MAX_SH_DEGREE
        due = {"densify": self._densifies(step), "reset": self._resets(step), "sh_degree": raised}
        return tuple(name for name, now in due.items() if now)

    def apply_event(self, state: Gs3dState, event: str, step: int) -> Gs3dState:
        """The state after a structural event; runs outside jit, may change the capacity."""
        if event == "densify":
            state = self._densify(state, step)
        elif event == "reset":
            state = _reset(state, self.config.reset_opacity)
        elif event != "sh_degree":
            raise ValueError(f"3dgs has no event {event!r}")
        return replace(state, structural_version=state.structural_version + 1)

    def render(
        self, gaussians: Gaussians, camera: Camera, background: jax.Array, pair_capacity: int
    ) -> tuple[jax.Array, jax.Array]:
        """([H, W, 3] unclamped image, [] int32 tile-row pairs wanted) of exported rows, all alive, SH
        degree 3.
        """
        options = RenderOptions(antialias=self.config.antialias, pair_capacity=pair_capacity)
        out = render(gaussians, camera, background=background, options=options)
        return out.image, out.pairs

    def _densifies(self, step: Any) -> Any:
        config = self.config
        return schedule.due(step, config.densify_every, config.densify_from, config.densify_until)

    def _resets(self, step: Any) -> Any:
        config = self.config
        on_white = config.white_background & (step == config.densify_from) & (step < config.densify_until)
        return schedule.due(step, config.reset_every, 0, config.densify_until) | on_white

    def _densify(self, state: Gs3dState, step: int) -> Gs3dState:
        choice = density.choose(
            state.gaussians,
            state.alive,
            state.stats.mean_gradient,
            state.extent,
            jnp.asarray(step > self.config.prune_large_from),
            self.config.rules,
        )
        rows = int(choice.rows)
        capacity = self._capacity(rows) if rows > state.gaussians.count else state.gaussians.count
        arrangement = density.arrange(choice, state.alive, capacity, int(state.seed), int(state.structural_version))
        return _grown(_widened(state, capacity), arrangement)

    def _capacity(self, rows: int) -> int:
        """Room for ``rows``: all that a limit allows if that is not far off, so that the step compiles once."""
        capacity, limit = density.bucket(rows, self.config.capacity_growth), self.config.rules.limit
        if limit is None:
            return capacity
        most = -(-max(limit, rows) // density.ROW_MULTIPLE) * density.ROW_MULTIPLE
        return most if most <= SOON * rows else min(capacity, most)


def _start_log_scales(points: np.ndarray, extent: float) -> np.ndarray:
    """[P, 3] ½ log of the mean squared distance to the 3 nearest neighbours, at least 1e-7 (spec §0.1).

    With fewer than 4 points the mean is over those there are; a single point gets a hundredth of the extent.
    """
    if len(points) == 1:
        squared = np.full(1, (0.01 * extent) ** 2)
    else:
        distances = KDTree(points).query(points, k=min(4, len(points)))[0][:, 1:]
        squared = np.mean(np.square(distances), axis=1)
    logs = 0.5 * np.log(np.maximum(squared, 1e-7))
    return np.repeat(logs[:, None], 3, axis=1).astype(np.float32)


@partial(jax.jit, static_argnames="options")
def _scope(
    gaussians: Gaussians, alive: jax.Array, camera: Camera, options: RenderOptions
) -> tuple[jax.Array, jax.Array]:
    return count_pairs(gaussians, camera, alive=alive, options=options)


def _by_shape(views: Sequence[View]) -> list[tuple[list[int], View]]:
    """Places in the unit and the views stacked along a new first axis, for each combination of image size and mask or
    none.
    """
    groups: dict[object, list[int]] = {}
    for place, view in enumerate(views):
        groups.setdefault((view.camera.width, view.camera.height, view.mask is None), []).append(place)
    return [(places, jax.tree.map(lambda *leaves: jnp.stack(leaves), *(views[place] for place in places)))
            for places in groups.values()]


def _nothing(state: Gs3dState) -> tuple[Gaussians, Evidence]:
    """Gradient and evidence of no view."""
    rows, dtype = state.alive.shape, state.gaussians.means.dtype
    zero = jnp.zeros((), dtype)
    return jax.tree.map(jnp.zeros_like, state.gaussians), Evidence(
        active=None,
        magnitude=jnp.zeros(rows, dtype),
        visible_count=jnp.zeros(rows, jnp.int32),
        pairs=None,
        overflow=jnp.zeros((), bool),
        loss=zero,
        mse=zero,
    )


def _view_loss_and_grad(
    gaussians: Gaussians, alive: jax.Array, degree: jax.Array, options: RenderOptions, view: View
) -> tuple[Gaussians, Evidence]:
    """Gradient of one view's loss, and its evidence."""
    dtype = gaussians.means.dtype
    photo = view.photo.astype(dtype) / 255
    mask = None if view.mask is None else view.mask.astype(dtype) / 255

    def loss(gaussians: Gaussians, probe: jax.Array):
        out = render(
            gaussians,
            view.camera,
            alive=alive,
            background=view.background,
            sh_degree=degree,
            probe=probe,
            options=options,
        )
        return photometric(out.image, photo, mask), out

    probe = jnp.zeros((gaussians.count, 2), dtype)
    (value, out), (grads, probe_grad) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(gaussians, probe)
    return grads, Evidence(
        active=_took_part(grads)[None],
        magnitude=jnp.linalg.norm(probe_grad, axis=-1),
        visible_count=out.visible.astype(jnp.int32),
        pairs=out.pairs.astype(jnp.int32)[None],
        overflow=out.overflow,
        loss=value,
        mse=mean_squared_error(out.image, photo, mask),
    )


def _took_part(grads: Gaussians) -> jax.Array:
    """[N] bool: rows with a gradient that is not zero, or no number."""
    fields = [(field != 0).reshape(len(field), -1).any(axis=1) for field in jax.tree.leaves(grads)]
    return jnp.stack(fields).any(axis=0)


@partial(jax.jit, static_argnames="capacity")
def _widened(state: Gs3dState, capacity: int) -> Gs3dState:
    """The state with room for ``capacity`` rows."""
    wide = density.pad_rows((state.alive, state.optimizer.mu, state.optimizer.nu, state.stats), capacity)
    alive, mu, nu, stats = wide
    return replace(
        state,
        gaussians=density.widen(state.gaussians, capacity),
        alive=alive,
        optimizer=optim.AdamState(state.optimizer.count, mu, nu),
        stats=stats,
    )


@jax.jit
def _grown(state: Gs3dState, arrangement: density.Arrangement) -> Gs3dState:
    strange = arrangement.newborn | ~arrangement.alive
    mu, nu = density.forget((state.optimizer.mu, state.optimizer.nu), strange)
    return replace(
        state,
        gaussians=density.grow(state.gaussians, arrangement),
        alive=arrangement.alive,
        stats=jax.tree.map(jnp.zeros_like, state.stats),
        optimizer=optim.AdamState(state.optimizer.count, mu, nu),
    )


@partial(jax.jit, static_argnames="most")
def _reset(state: Gs3dState, most: float) -> Gs3dState:
    mu, nu = (
        replace(moment, opacity_logits=jnp.zeros_like(moment.opacity_logits))  # type: ignore[attr-defined]
        for moment in (state.optimizer.mu, state.optimizer.nu)
    )
    return replace(
        state,
        gaussians=density.reset_opacity(state.gaussians, most),
        optimizer=optim.AdamState(state.optimizer.count, mu, nu),
    )
