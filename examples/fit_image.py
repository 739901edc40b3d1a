"""Fit Gaussians to one image: a notebook-sized tour of the renderer.

    python examples/fit_image.py [IMAGE] [--rows 1500] [--steps 200] [--out fit.png]

Runs as a script, or cell by cell where `# %%` marks cells. Without an image it fits a picture made by code.
"""

# %% Imports
from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image

import splat


# %% The picture: [H, W, 3] in 0..1
def picture(path: Path | None, side: int = 128) -> np.ndarray:
    """The image file, at most ``side`` pixels a side, or rings and a ramp."""
    if path is not None:
        image = Image.open(path).convert("RGB")
        image.thumbnail((side, side))
        return np.asarray(image, np.float32) / 255
    y, x = np.mgrid[0:side, 0:side] / side
    rings = 0.5 + 0.5 * np.sin(20 * np.hypot(x - 0.4, y - 0.6))
    return np.stack([rings, x, 1 - y * rings], axis=-1).astype(np.float32)


# %% The Gaussians: a flat sheet in front of the camera, one unit of the world per image width
def sheet(photo: np.ndarray, rows: int, seed: int = 0) -> tuple[splat.Gaussians, splat.Camera]:
    """``rows`` Gaussians at random places of the picture, in its colours, and the camera that sees them."""
    height, width, _ = photo.shape
    rng = np.random.default_rng(seed)
    u, v = rng.random(rows), rng.random(rows)
    colours = photo[(v * height).astype(int), (u * width).astype(int)]
    means = np.stack([u - 0.5, (v - 0.5) * height / width, np.zeros(rows)], axis=-1)
    size = np.sqrt(height / width / rows)  # together they just cover the picture
    gaussians = splat.Gaussians(
        means=jnp.asarray(means, jnp.float32), log_scales=jnp.full((rows, 3), np.log(size), jnp.float32),
        quats=jnp.tile(jnp.array([1.0, 0.0, 0.0, 0.0]), (rows, 1)), opacity_logits=jnp.zeros(rows),
        sh_dc=jnp.asarray((colours - 0.5) / 0.28209479, jnp.float32), sh_rest=jnp.zeros((rows, 15, 3)))
    view = jnp.eye(4).at[2, 3].set(2.0)
    lens = jnp.array([2.0 * width, 2.0 * width, width / 2, height / 2])
    return gaussians, splat.Camera(view, lens, width, height)


# %% The fit: any optax optimizer and any loss will do
def fit(photo: np.ndarray, rows: int, steps: int) -> tuple[splat.Gaussians, splat.Camera, list[float]]:
    """The fitted Gaussians, the camera and the PSNR (dB) at every step."""
    gaussians, camera = sheet(photo, rows)
    target = jnp.asarray(photo)
    adam = optax.adam(optax.exponential_decay(0.03, steps, 0.1))

    @jax.jit
    def step(gaussians, moments):
        def loss(gaussians):
            return jnp.mean((splat.render(gaussians, camera, sh_degree=0).image - target) ** 2)

        error, gradient = jax.value_and_grad(loss)(gaussians)
        change, moments = adam.update(gradient, moments)
        return optax.apply_updates(gaussians, change), moments, -10 * jnp.log10(error)

    moments, quality = adam.init(gaussians), []
    for _ in range(steps):
        gaussians, moments, psnr = step(gaussians, moments)
        quality.append(float(psnr))
    return gaussians, camera, quality


# %% Run it
def main(argv: list[str] | None = None) -> list[float]:
    """Fit, write picture and render beside each other, print the PSNR; the PSNR at every step."""
    parser = argparse.ArgumentParser(description="Fit Gaussians to one image.")
    parser.add_argument("image", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("fit.png"))
    options = parser.parse_args(argv)
    photo = picture(options.image)
    gaussians, camera, quality = fit(photo, options.rows, options.steps)
    image = np.clip(splat.render(gaussians, camera, sh_degree=0).image, 0, 1)
    Image.fromarray(np.rint(255 * np.concatenate([photo, image], axis=1)).astype(np.uint8)).save(options.out)
    print(f"{options.out}: PSNR {quality[0]:.2f} → {quality[-1]:.2f} dB with {options.rows} Gaussians")
    return quality


if __name__ == "__main__":
    main()
