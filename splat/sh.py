"""Real spherical harmonics to degree 3, with the signs of PlenOctrees (spec §0.2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from splat.columns import from_columns

C0 = 0.28209479177387814
C1 = 0.4886025119029199
C2 = (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396)
C3 = (-0.5900435899266435, 2.890611442640554, -0.4570457994644658, 0.3731763325901154, -0.4570457994644658,
      1.445305721320277, -0.5900435899266435)
TINY = 1e-24  # keeps the gradient at the camera centre finite in float32
DEGREE_OF_COEFFICIENT = (0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3)


def basis(x: jax.Array, y: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
    """The 15 basis values [N] of degrees 1 to 3 along unit directions given by component [N]."""
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    return (-C1 * y, C1 * z, -C1 * x,
            C2[0] * xy, C2[1] * yz, C2[2] * (2 * zz - xx - yy), C2[3] * xz, C2[4] * (xx - yy),
            C3[0] * y * (3 * xx - yy), C3[1] * xy * z, C3[2] * y * (4 * zz - xx - yy),
            C3[3] * z * (2 * zz - 3 * xx - 3 * yy), C3[4] * x * (4 * zz - xx - yy), C3[5] * z * (xx - yy),
            C3[6] * x * (xx - 3 * yy))


def colours(sh_dc: jax.Array, sh_rest: jax.Array, directions: tuple[jax.Array, jax.Array, jax.Array],
            degree: int | jax.Array) -> jax.Array:
    """[N, 3] colours max(0, Σ + 0.5) seen along ``directions`` (x, y, z [N]: camera centre → primitive, any length).

    ``sh_dc`` [N, 3], ``sh_rest`` [N, 15, 3]. ``degree`` 0..3 may be traced: coefficients above it count as zero.
    """
    x, y, z = directions
    inverse = jax.lax.rsqrt(x * x + y * y + z * z + TINY)
    values = from_columns(basis(x * inverse, y * inverse, z * inverse))
    active = jnp.asarray(DEGREE_OF_COEFFICIENT[1:]) <= degree
    total = C0 * sh_dc + _weighted(values * active.astype(values.dtype), sh_rest) + 0.5
    return jnp.where(total > 0, total, 0 * total)  # unlike relu, makes NaN of −inf, not black


@jax.custom_vjp
def _weighted(values: jax.Array, coefficients: jax.Array) -> jax.Array:
    """[N, 3] Σₖ values [N, K] · coefficients [N, K, 3]; its own gradient spares two layout copies on XLA:CPU."""
    return jnp.einsum("nk,nkc->nc", values, coefficients)


def _weighted_bwd(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    values, coefficients = saved
    return jnp.einsum("nc,nkc->nk", cotangent, coefficients), values[:, :, None] * cotangent[:, None, :]


_weighted.defvjp(lambda values, coefficients: (_weighted(values, coefficients), (values, coefficients)), _weighted_bwd)
