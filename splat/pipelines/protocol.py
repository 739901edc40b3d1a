"""What a training pipeline offers the trainer: pure functions over frozen pytrees.

3DGS implements this protocol and so can any sibling or a renderer from elsewhere. The trainer owns order,
devices, files and time; a pipeline owns the state and what one optimizer step or one structural event does to
it.

One step is ``loss_and_grad`` → ``update`` → ``apply_event`` for each of ``events(step)``, in that order. A
pipeline whose original changes the rows between gradient and optimizer step says so inside ``update``, which
knows the step: it leaves alone the fields that have no gradient there (3DGS: all at a densification, the
opacities at a reset). Then every structural event is a barrier *between* steps, after the publication of one
unit and before the next one reads, and no gradient ever has to follow rows that move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from flax import struct

from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.pipelines.rows import Rows, StepInputs


@struct.dataclass
class View:
    """One training sample on the device."""

    camera: Camera
    photo: jax.Array  # [H, W, 3] uint8
    mask: jax.Array | None  # [H, W] uint8 weight 0..255 of a pixel in the loss, or None: all count
    background: jax.Array  # [3] colour behind everything, 0..1


@struct.dataclass
class Evidence:
    """What one unit really did (paper §4.3), known after backward."""

    active: Any  # [V, N] bool per view: rows with a gradient; their union is C_U (None where nobody asks)
    magnitude: jax.Array  # [N] g_U(p): norms of each view's own NDC position gradient, summed over views
    visible_count: jax.Array  # [N] int32, in how many views of the unit the row was visible
    pairs: Any  # [V] int32, tile-row pairs of each view
    overflow: jax.Array  # [] bool, a static capacity was too small: the gradients must not be used
    loss: jax.Array  # [] mean loss over the unit's views
    mse: jax.Array  # [] mean squared colour error over the unit's views


class Pipeline(Protocol):
    """Pure functions of one pipeline.

    ``State`` is a frozen pytree of arrays with at least ``gaussians`` and ``alive``.
    """

    name: str

    def init(self, points: np.ndarray, colours: np.ndarray, extent: float, seed: int) -> Any:
        """State from points [P, 3] (world units) and colours [P, 3] uint8 (spec §0.1)."""
        ...

    def scope(self, state: Any, camera: Camera) -> tuple[jax.Array, jax.Array]:
        """([N] bool rows the renderer may touch in this view, [] int32 tile-row pairs it will list)."""
        ...

    def loss_and_grad(self, state: Any, views: Sequence[View], step: jax.Array,
                      pair_capacity: int) -> tuple[Any, Evidence]:
        """Gradient of the mean loss over the unit's views at 1-based ``step``, and the evidence."""
        ...

    def update(self, state: Any, grads: Any, evidence: Evidence, step: jax.Array) -> Any:
        """The density statistics of the unit and one optimizer step, as far as ``step`` takes one."""
        ...

    def events(self, step: int) -> tuple[str, ...]:
        """Names of the structural events due after 1-based ``step``, in order; plain Python."""
        ...

    def apply_event(self, state: Any, event: str, step: int) -> Any:
        """The state after a structural event; runs outside jit, may change the capacity."""
        ...

    def render(self, gaussians: Gaussians, camera: Camera, background: jax.Array,
               pair_capacity: int) -> tuple[jax.Array, jax.Array]:
        """([H, W, 3] unclamped image, [] int32 tile-row pairs wanted) of exported rows, to evaluate and view.

        All rows are alive and of full SH degree. The image is NaN when the pairs exceed ``pair_capacity``.
        """
        ...


class Staged(Protocol):
    """What a pipeline may offer beside, each method alone: a look at the photos, a scale of theirs, views for events,
    fields that are not stepped every time.

    Like ``events`` they are plain Python and have to give the same on all hosts.
    """

    def survey(self, photos: Sequence[np.ndarray]) -> Any:
        """JSON values about the training photos, each [H, W, 3] uint8 and decoded when asked for; once per run."""
        ...

    def with_survey(self, found: Any) -> Any:
        """The pipeline that trains by what ``survey`` found; called before the first state is made."""
        ...

    def scale(self, step: int) -> int:
        """By how much the sides of photos and renders are divided in unit ``step``.

        The unit after a change must follow a structural event: ``events(step)`` is not empty where ``scale(step + 1)``
        differs from ``scale(step)``.
        """
        ...

    def event_views(self, event: str, step: int, state: Any) -> Sequence[int]:
        """Training views, counted from 0, that ``apply_event(state, event, step, views)`` gets; none: no argument.

        The views are at the scale of ``step``, their arrays on the host.
        """
        ...

    def exchanged_fields(self, step: int) -> tuple[str, ...]:
        """Fields of the rows that the optimizer step ``step`` changes: all, where a pipeline does not say.

        A field that is left out keeps rows and moments. Its gradients may be summed in a field of ``local_fields`` and
        be given with those of the unit that steps it; its evidence then also has ``carried`` [N] bool, the rows in
        which this rank's sum is not zero. They are published like rows of that unit's own.
        """
        ...

    def told(self, state: Any, step: int) -> dict[str, Any]:
        """JSON numbers about the schedule after the events of ``step``, to be written down and drawn."""
        ...


class RowPipeline(Pipeline, Protocol):
    """What a pipeline offers beside, so that its steps can be published by rows and fields (design §7).

    ``update`` is then ``observe`` and ``step_rows`` on all rows; both ways give the same numbers.
    """

    geometry_fields: tuple[str, ...]  # fields of a row that are read to project, cull, bin and sort
    colour_fields: tuple[str, ...]  # fields that are read only to blend
    local_fields: tuple[str, ...]  # fields of the state that are sums over views and only structural events read

    def bins(self, state: Any, views: Sequence[View], pair_capacity: int) -> Any:
        """What ``loss_and_grad`` needs of geometry alone, e.g. tile lists; it then takes it as ``bins=``.

        Made while the colours of the rows are still on their way (design §7). A pipeline may leave it out.
        """
        ...

    def observe(self, state: Any, evidence: Evidence, step: jax.Array) -> Any:
        """The state with the statistics of a unit added to its ``local_fields``."""
        ...

    def step_inputs(self, state: Any, step: jax.Array) -> Any:
        """What is the same for all rows in the optimizer step ``step``; the state is the one before it."""
        ...

    def rows(self, state: Any) -> Rows:
        """Parameters and moments, [N, ...] each."""
        ...

    def with_rows(self, state: Any, rows: Rows, inputs: StepInputs) -> Any:
        """The state with other rows and the count of ``inputs``."""
        ...

    def step_rows(self, rows: Rows, grads: Any, visible: jax.Array, inputs: StepInputs) -> Rows:
        """The optimizer step of M rows and of the fields that are not None; element-wise. ``visible`` [M] bool."""
        ...

    def drift(self, state: Any, step: jax.Array) -> Any:
        """How far each geometry parameter may move in the optimizer step ``step``, whatever the gradient [N, ...]."""
        ...

    def reach(self, state: Any, camera: Camera, drift: Any) -> jax.Array:
        """[N] bool: rows that a render of ``camera`` may touch once parameters moved by no more than ``drift``."""
        ...
