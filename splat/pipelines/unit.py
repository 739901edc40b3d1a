"""The gradient of a task unit from that of one view: views of one shape run as a loop in one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from splat.gaussians import Gaussians
from splat.loss import mean_squared_error, photometric
from splat.pipelines.protocol import Evidence, View

Draw = Callable[[Gaussians, jax.Array, View, Any], Any]
OfView = Callable[[View, Any], tuple[Gaussians, Evidence]]


def loss_and_grad(of_view: OfView, gaussians: Gaussians, views: Sequence[View],
                  bins: Sequence[Any] | None = None) -> tuple[Gaussians, Evidence]:
    """Gradient of the mean loss over the views, and the evidence; jittable.

    ``of_view`` gives the gradient of one view's loss with respect to ``gaussians`` and its evidence, whose ``active``
    is [1, N] and whose ``pairs`` is [1]; it is called with the view and its part of ``bins``, None without. Neither
    memory nor compile time grow with the number of views. ``Evidence.magnitude`` sums the norms of each view's own
    gradient, not divided by their number: densification thresholds stay those of single views (spec §6.4).
    """
    made = bins or [None] * len(views)
    if len(views) == 1:
        return of_view(views[0], made[0])

    def add(total: tuple[Gaussians, Evidence], pair: tuple[View, Any]) -> tuple[tuple[Gaussians, Evidence], Any]:
        (grads, evidence), (grads_one, one) = total, of_view(*pair)
        evidence = jax.tree.map(jnp.add, evidence, replace(one, active=None, pairs=None))
        return (jax.tree.map(jnp.add, grads, grads_one), evidence), (one.active[0], one.pairs[0])

    total, of_views, order = nothing(gaussians), [], []
    for places in _by_shape(views):
        total, of_group = jax.lax.scan(add, total, (_stacked(views, places), _stacked(made, places)))
        of_views.append(of_group)
        order += places
    active, pairs = (jnp.concatenate(parts)[np.argsort(order)] for parts in zip(*of_views, strict=True))
    grads, evidence = total
    share = 1 / len(views)
    return (
        jax.tree.map(lambda field: field * share, grads),
        replace(evidence, loss=evidence.loss * share, mse=evidence.mse * share, active=active, pairs=pairs),
    )


def view_loss_and_grad(draw: Draw, gaussians: Gaussians, view: View, made: Any,
                       regularise: Callable[[Any, View], jax.Array] | None = None) -> tuple[Gaussians, Evidence]:
    """Gradient of one view's loss, and its evidence.

    ``draw(gaussians, probe, view, made)`` renders with the screen positions moved by ``probe`` [N, 2] (NDC units) and
    gives at least image, visible, pairs and overflow; ``made``: of the view by ``each``, or None.
    ``regularise(output, view)`` is added to the photometric loss.
    """
    dtype = gaussians.means.dtype
    photo = view.photo.astype(dtype) / 255
    mask = None if view.mask is None else view.mask.astype(dtype) / 255

    def loss(gaussians: Gaussians, probe: jax.Array):
        out = draw(gaussians, probe, view, made)
        total = photometric(out.image, photo, mask)
        return total if regularise is None else total + regularise(out, view), out

    probe = jnp.zeros((gaussians.count, 2), dtype)
    (value, out), (grads, probe_grad) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(gaussians, probe)
    return grads, Evidence(
        active=took_part(grads)[None],
        magnitude=jnp.linalg.norm(probe_grad, axis=-1),
        visible_count=out.visible.astype(jnp.int32),
        pairs=out.pairs.astype(jnp.int32)[None],
        overflow=out.overflow,
        loss=value,
        mse=mean_squared_error(out.image, photo, mask),
    )


def each(of_view: Callable[[View], Any], views: Sequence[View]) -> tuple[Any, ...]:
    """``of_view`` of every view, one pytree of arrays each; views of one shape run as a loop in one program."""
    results: dict[int, Any] = {}
    for places in _by_shape(views):
        group = jax.lax.map(of_view, _stacked(views, places))
        results.update({place: jax.tree.map(lambda leaf, at=at: leaf[at], group) for at, place in enumerate(places)})
    return tuple(results[place] for place in range(len(views)))


def _by_shape(views: Sequence[View]) -> list[list[int]]:
    """Places in the unit of the views of each combination of image size and mask or none."""
    groups: dict[object, list[int]] = {}
    for place, view in enumerate(views):
        groups.setdefault((view.camera.width, view.camera.height, view.mask is None), []).append(place)
    return list(groups.values())


def _stacked(items: Sequence[Any], places: Sequence[int]) -> Any:
    """The items at ``places`` along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(items[place] for place in places))


def took_part(grads: Gaussians) -> jax.Array:
    """[N] bool: rows with a gradient that is not zero, or no number."""
    fields = [(field != 0).reshape(len(field), -1).any(axis=1) for field in jax.tree.leaves(grads)]
    return jnp.stack(fields).any(axis=0)


def nothing(gaussians: Gaussians) -> tuple[Gaussians, Evidence]:
    """Gradient and evidence of no view."""
    rows, dtype = (gaussians.count,), gaussians.means.dtype
    zero = jnp.zeros((), dtype)
    return jax.tree.map(jnp.zeros_like, gaussians), Evidence(
        active=None,
        magnitude=jnp.zeros(rows, dtype),
        visible_count=jnp.zeros(rows, jnp.int32),
        pairs=None,
        overflow=jnp.zeros((), bool),
        loss=zero,
        mse=zero,
    )
