"""The renderer's slow twin: every row at every pixel, written as the spec reads. The oracle of the tests.

It shares no arithmetic with ``splat.render``: projection is in matrices, there are no tiles, and gradients are
JAX's own, except that the cap of one response passes its gradient straight through (spec §1.4).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from splat.cameras import Camera
from splat.gaussians import Gaussians
from splat.options import RenderOptions

MIN_ALPHA = 1 / 255
MAX_ALPHA = 0.99
MIN_TRANSMITTANCE = 1e-4
SLOPE_MARGIN = 0.3
COMPENSATION_FLOOR = 2.5e-5
TINY = 1e-24  # keeps the length of a zero vector differentiable


class Rendered(NamedTuple):
    """What ``raster_ref`` makes of a view."""

    image: jax.Array  # [H, W, 3] colour over the background
    alpha: jax.Array  # [H, W] Σ w
    depth: jax.Array  # [H, W] Σ w·z, world units


class _Footprints(NamedTuple):
    """N rows in one view, nearest first; opacity is zero in rows that are not drawn."""

    centre: jax.Array  # [N, 2] pixels
    conic: jax.Array  # [N, 2, 2] inverse covariance, 1/pixels²
    opacity: jax.Array  # [N]
    colour: jax.Array  # [N, 3]
    depth: jax.Array  # [N] camera z


def raster_ref(gaussians: Gaussians, camera: Camera, *, alive: jax.Array | None = None,
               background: jax.Array | None = None, sh_degree: int = 3, probe: jax.Array | None = None,
               opacities: jax.Array | None = None, options: RenderOptions | None = None) -> Rendered:
    """What ``splat.render`` promises, dense over every pixel and row (spec §1.1 to §1.4).

    Arguments as there; ``options.pair_capacity`` has no meaning here. Time grows as H·W·N, memory as W·N.
    """
    options = options or RenderOptions()
    rows, _ = _footprints(gaussians, camera, alive, sh_degree, probe, options, opacities)
    x, y = jnp.arange(camera.width) + 0.5, jnp.arange(camera.height) + 0.5
    pixels = jnp.stack(jnp.meshgrid(x, y), -1).astype(gaussians.means.dtype)
    line = jax.checkpoint(jax.vmap(lambda pixel: _blend_pixel(pixel, rows)))
    image, alpha, depth = jax.lax.map(line, pixels)
    if background is not None:
        image = image + (1 - alpha)[..., None] * background
    return Rendered(image, alpha, depth)


def contributions_ref(gaussians: Gaussians, camera: Camera, weights: jax.Array, *, alive: jax.Array | None = None,
                      opacities: jax.Array | None = None, options: RenderOptions | None = None) -> jax.Array:
    """[4, N] what ``splat.raster.contributions`` promises: sums over pixels of ``weights`` [H, W], of 1, of αT and of
    the distance to the centre, for every row where blending accepts it (spec §3.3).
    """
    rows, order = _footprints(gaussians, camera, alive, 0, None, options or RenderOptions(), opacities)
    x, y = jnp.arange(camera.width) + 0.5, jnp.arange(camera.height) + 0.5
    pixels = jnp.stack(jnp.meshgrid(x, y), -1).astype(gaussians.means.dtype)

    def of_pixel(pixel: jax.Array, omega: jax.Array) -> jax.Array:
        weight = _weights(pixel, rows)
        taken = weight > 0
        return jnp.stack([taken * omega, taken, weight, taken * jnp.linalg.norm(rows.centre - pixel, axis=-1)])

    lines = jax.lax.map(lambda line: jax.vmap(of_pixel)(*line).sum(0), (pixels, weights))
    return lines.sum(0)[:, jnp.argsort(order)]


def _blend_pixel(pixel: jax.Array, rows: _Footprints) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Colour [3], Σ w and Σ w·z of one pixel [2] (spec §1.3)."""
    weight = _weights(pixel, rows)
    return weight @ rows.colour, jnp.sum(weight), weight @ rows.depth


def _weights(pixel: jax.Array, rows: _Footprints) -> jax.Array:
    """[N] w = αT of each row at one pixel [2]."""
    d = rows.centre - pixel
    response = rows.opacity * jnp.exp(-0.5 * jnp.einsum("ni,nij,nj->n", d, rows.conic, d))
    alpha = response + jax.lax.stop_gradient(jnp.minimum(response, MAX_ALPHA) - response)
    alpha = jnp.where(response >= MIN_ALPHA, alpha, 0)
    behind = jnp.cumprod(1 - alpha)
    in_front = jnp.concatenate([jnp.ones_like(behind[:1]), behind[:-1]])
    return jnp.where(behind >= MIN_TRANSMITTANCE, alpha * in_front, 0)


def _footprints(gaussians: Gaussians, camera: Camera, alive: jax.Array | None, sh_degree: int,
                probe: jax.Array | None, options: RenderOptions,
                opacities: jax.Array | None) -> tuple[_Footprints, jax.Array]:
    """Projection of all rows (spec §1.1) in the order of their float32 depth, ties in row order (§1.2); that order."""
    turn, shift = camera.view[:3, :3], camera.view[:3, 3]
    at = gaussians.means @ turn.T + shift
    drawn = at[:, 2] > options.near
    if alive is not None:
        drawn &= alive
    at = jnp.where(drawn[:, None], at, jnp.ones(3))

    to_image = _jacobian(at, camera) @ turn
    sharp = to_image @ _covariance(gaussians) @ to_image.swapaxes(1, 2)
    blurred = sharp + options.low_pass * jnp.eye(2)
    opacity = gaussians.opacities if opacities is None else opacities
    if options.antialias:
        kept = jnp.linalg.det(sharp) / jnp.linalg.det(blurred)
        opacity = opacity * jnp.sqrt(jnp.maximum(kept, COMPENSATION_FLOOR))

    fx, fy, cx, cy = camera.intrinsics
    focal, principal = jnp.stack([fx, fy]), jnp.stack([cx, cy])
    centre = focal * at[:, :2] / at[:, 2:] + principal
    if probe is not None:
        centre = centre + probe * jnp.array([camera.width / 2, camera.height / 2])
    toward = gaussians.means - jnp.linalg.inv(camera.view)[:3, 3]
    rows = _Footprints(centre, jnp.linalg.inv(blurred), jnp.where(drawn, opacity, 0),
                       colours(gaussians, unit(toward), sh_degree), at[:, 2])
    order = jnp.argsort(at[:, 2].astype(jnp.float32), stable=True)
    return _Footprints(*(field[order] for field in rows)), order


def _jacobian(at: jax.Array, camera: Camera) -> jax.Array:
    """[N, 2, 3] of the perspective projection at camera positions [N, 3], slope clamped (steps 3, 4)."""
    fx, fy, cx, cy = camera.intrinsics
    x, y, z = at[:, 0], at[:, 1], at[:, 2]
    beyond_x, beyond_y = SLOPE_MARGIN * camera.width / 2 / fx, SLOPE_MARGIN * camera.height / 2 / fy
    x = z * jnp.clip(x / z, -cx / fx - beyond_x, (camera.width - cx) / fx + beyond_x)
    y = z * jnp.clip(y / z, -cy / fy - beyond_y, (camera.height - cy) / fy + beyond_y)
    zero = jnp.zeros_like(z)
    across = jnp.stack([fx / z, zero, -fx * x / z**2], -1)
    down = jnp.stack([zero, fy / z, -fy * y / z**2], -1)
    return jnp.stack([across, down], -2)


def _covariance(gaussians: Gaussians) -> jax.Array:
    """[N, 3, 3] R diag(s²) Rᵀ (step 2)."""
    rotation = rotations(gaussians.quats)
    return rotation * gaussians.scales[:, None, :] ** 2 @ rotation.swapaxes(1, 2)


def rotations(quats: jax.Array) -> jax.Array:
    """[N, 3, 3] R = 1 + 2w[v]ₓ + 2[v]ₓ² of the unit quaternions (w, v) along ``quats`` [N, 4]."""
    q = unit(quats)
    w, v = q[:, 0], q[:, 1:]
    cross = jnp.cross(v[:, None, :], jnp.eye(3)).swapaxes(1, 2)
    return jnp.eye(3) + 2 * w[:, None, None] * cross + 2 * cross @ cross


def unit(v: jax.Array) -> jax.Array:
    """Vectors [..., k] divided by their lengths."""
    return v / jnp.sqrt(jnp.sum(v * v, -1, keepdims=True) + TINY)


def colours(gaussians: Gaussians, direction: jax.Array, degree: int) -> jax.Array:
    """[N, 3] max(0, Σ c·Y(direction) + 0.5), coefficients above ``degree`` left out (spec §0.2)."""
    x, y, z = direction.T
    harmonics = [
        0.28209479177387814 * jnp.ones_like(x),
        -0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x,
        1.0925484305920792 * x * y, -1.0925484305920792 * y * z,
        0.31539156525252005 * (2 * z**2 - x**2 - y**2), -1.0925484305920792 * x * z,
        0.5462742152960396 * (x**2 - y**2),
        -0.5900435899266435 * y * (3 * x**2 - y**2), 2.890611442640554 * x * y * z,
        -0.4570457994644658 * y * (4 * z**2 - x**2 - y**2),
        0.3731763325901154 * z * (2 * z**2 - 3 * x**2 - 3 * y**2),
        -0.4570457994644658 * x * (4 * z**2 - x**2 - y**2), 1.445305721320277 * z * (x**2 - y**2),
        -0.5900435899266435 * x * (x**2 - 3 * y**2),
    ][: (degree + 1) ** 2]
    coefficients = jnp.concatenate([gaussians.sh_dc[:, None], gaussians.sh_rest], 1)[:, : len(harmonics)]
    return jnp.maximum(0, jnp.einsum("kn,nkc->nc", jnp.stack(harmonics), coefficients) + 0.5)
