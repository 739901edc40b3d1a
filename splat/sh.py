"""Real spherical harmonics to degree 3, with the signs of PlenOctrees (spec §0.2)."""

from __future__ import annotations

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp

from splat.apart import apart
from splat.columns import always, columns, stack

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
    active = [jnp.asarray(own <= degree, sh_rest.dtype) for own in DEGREE_OF_COEFFICIENT[1:]]
    values = [value * factor for value, factor in zip(_along(directions), active, strict=True)]
    total = C0 * sh_dc + _weighted(values, sh_rest) + 0.5
    return jnp.where(total > 0, total, 0 * total)  # unlike relu, makes NaN of −inf, not black


def _basis_along(directions: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    x, y, z = directions
    inverse = jax.lax.rsqrt(x * x + y * y + z * z + TINY)
    return basis(x * inverse, y * inverse, z * inverse)


@jax.custom_vjp
def _along(directions: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """The 15 basis values [N] along directions; its gradient is not evaluated again for every use on XLA:CPU."""
    return _basis_along(directions)


def _along_bwd(directions: tuple[jax.Array, ...], cotangents: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...]]:
    return apart(lambda at, d: jax.vjp(_basis_along, at)[1](d), always(directions[0]), directions, cotangents)


_along.defvjp(lambda directions: (_basis_along(directions), directions), _along_bwd)


@jax.custom_vjp
def _weighted(values: list[jax.Array], coefficients: jax.Array) -> jax.Array:
    """[N, 3] Σₖ values[k] [N] · coefficients [N, K, 3], in a form that XLA:CPU passes over once, as its gradient."""
    def total(values: list[jax.Array], coefficients: jax.Array) -> jax.Array:
        return reduce(add, (value[:, None] * coefficients[:, k] for k, value in enumerate(values)))

    return apart(total, always(coefficients), values, coefficients)


def _weighted_bwd(saved: tuple[list[jax.Array], jax.Array], cotangent: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    values, coefficients = saved

    def by_value(cotangent: jax.Array, coefficients: jax.Array) -> jax.Array:
        return reduce(add, (cotangent[:, c, None] * coefficients[:, :, c] for c in range(3)))

    d_values = columns(apart(by_value, always(coefficients), cotangent, coefficients))
    return list(d_values), stack(values)[:, :, None] * cotangent[:, None, :]


_weighted.defvjp(lambda values, coefficients: (_weighted(values, coefficients), (values, coefficients)), _weighted_bwd)
