"""Real spherical harmonics to degree 3, with the signs of PlenOctrees (spec §0.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

C0 = 0.28209479177387814
C1 = 0.4886025119029199
C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
C3 = (-0.5900435899266435, 2.890611442640554, -0.4570457994644658, 0.3731763325901154, -0.4570457994644658,
      1.445305721320277, -0.5900435899266435)
DEGREE_OF_COEFFICIENT = (0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3)


def basis(directions: jax.Array) -> jax.Array:
    """[..., 16] basis values of unit ``directions`` [..., 3], degrees 0 to 3 in order."""
    x, y, z = directions[..., 0], directions[..., 1], directions[..., 2]
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    return jnp.stack([
        jnp.full_like(x, C0),
        -C1 * y, C1 * z, -C1 * x,
        C2[0] * xy, C2[1] * yz, C2[2] * (2 * zz - xx - yy), C2[3] * xz, C2[4] * (xx - yy),
        C3[0] * y * (3 * xx - yy), C3[1] * xy * z, C3[2] * y * (4 * zz - xx - yy),
        C3[3] * z * (2 * zz - 3 * xx - 3 * yy), C3[4] * x * (4 * zz - xx - yy), C3[5] * z * (xx - yy),
        C3[6] * x * (xx - 3 * yy),
    ], axis=-1)


def colours(sh_dc: jax.Array, sh_rest: jax.Array, directions: jax.Array, degree: int | jax.Array) -> jax.Array:
    """[N, 3] colours max(0, Σ + 0.5) seen along ``directions`` [N, 3] (camera centre → primitive, any length).

    ``sh_dc`` [N, 3], ``sh_rest`` [N, 15, 3]. ``degree`` 0..3 may be traced: coefficients above it count as zero.
    """
    unit = directions * jax.lax.rsqrt(jnp.sum(directions * directions, -1, keepdims=True) + 1e-30)
    active = jnp.asarray(DEGREE_OF_COEFFICIENT) <= degree
    values = basis(unit) * active.astype(unit.dtype)
    rest = jnp.sum(values[:, 1:, None] * sh_rest, axis=1)
    return jax.nn.relu(values[:, :1] * sh_dc + rest + 0.5)


def from_rgb(rgb: jax.Array) -> jax.Array:
    """Degree-0 coefficient that shows colour ``rgb`` (0..1) from every side."""
    return (rgb - 0.5) / C0
