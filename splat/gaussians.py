"""The trainable rows of a Gaussian scene as one immutable pytree."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

# What a reader needs to project, cull, bin and sort, and what it needs only to blend (paper §4.3; design §7).
GEOMETRY_FIELDS = ("means", "log_scales", "quats", "opacity_logits")
COLOUR_FIELDS = ("sh_dc", "sh_rest")
FIELDS = GEOMETRY_FIELDS + COLOUR_FIELDS


@struct.dataclass
class Gaussians:
    """N primitives; row i of every field belongs to primitive i. All fields are floating point of one dtype.

    A gradient with respect to a ``Gaussians`` is again a ``Gaussians``. Rows that are only capacity (not alive)
    are told to the renderer by a separate mask, so that this class stays differentiable throughout.
    """

    means: jax.Array  # [N, 3] centre, world units
    log_scales: jax.Array  # [N, 3] log of the axis lengths, world units ([N, 2] for surfels)
    quats: jax.Array  # [N, 4] rotation (w, x, y, z), not normalised
    opacity_logits: jax.Array  # [N] logit of the opacity
    sh_dc: jax.Array  # [N, 3] degree-0 coefficient per colour channel
    sh_rest: jax.Array  # [N, 15, 3] coefficients of degrees 1 to 3

    @property
    def count(self) -> int:
        """Rows, capacity included."""
        return self.means.shape[0]

    @property
    def scales(self) -> jax.Array:
        """[N, 3] axis lengths in world units."""
        return jnp.exp(self.log_scales)

    @property
    def opacities(self) -> jax.Array:
        """[N] opacity in (0, 1)."""
        return jax.nn.sigmoid(self.opacity_logits)

    def take(self, rows: jax.Array) -> Gaussians:
        """The rows named by an integer array or a boolean mask (a mask only outside jit)."""
        return jax.tree.map(lambda field: field[rows], self)
