"""Surfels agree with the numbers of an independent renderer (the golden files' README says what is in them).

Its low-pass filter lies at the middle of the box around the disk of radius one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat import Camera, Gaussians
from splat.surfel.options import SurfelOptions
from splat.surfel.reference import surfel_ref
from splat.surfel.render import render_surfels
from tests.splat.render_cases import QUICK, relative_error

FILE = "g2d400_56x40.npz"
MAPS = ("image", "alpha", "normal", "depth", "median_depth", "distortion")
RENDERERS = {"render": render_surfels, "twin": surfel_ref}


class Case:
    """The golden file in one precision, rendered by the renderer or its twin."""

    def __init__(self, folder: Path, renderer: str, dtype: Any):
        golden = self.golden = dict(np.load(folder / FILE))
        options = SurfelOptions(pair_capacity=8192, near=float(golden["near"]), far=float(golden["far"]),
                                centre_cutoff=1.0)
        k, sh = golden["in_K"], self.given("in_sh", dtype)
        rows = (self.given(f"in_{name}", dtype) for name in ("means", "log_scales", "quats", "logit_opac"))
        gaussians = Gaussians(*rows, sh[:, 0], sh[:, 1:])
        intrinsics = jnp.asarray([k[0, 0], k[1, 1], k[0, 2], k[1, 2]], dtype)
        weights = {name: self.given(f"in_weight_{name}", dtype) for name in ("image", "normal", "depth", "distortion")}

        def loss(gaussians: Gaussians, view: jax.Array) -> tuple[jax.Array, Any]:
            camera = Camera(view, intrinsics, int(golden["width"]), int(golden["height"]))
            out = RENDERERS[renderer](gaussians, camera, background=self.given("in_bg", dtype), options=options)
            parts = {name: jnp.sum(getattr(out, name) * weight) for name, weight in weights.items()}
            return sum(parts.values()) + 9 * parts["distortion"], out

        run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), compiler_options=QUICK)
        (self.loss, self.out), (g, view) = run(gaussians, self.given("in_viewmat", dtype))
        self.gradients = {"means": g.means, "quats": g.quats, "log_scales": g.log_scales, "viewmat": view,
                          "logit_opac": g.opacity_logits, "sh": jnp.concatenate([g.sh_dc[:, None], g.sh_rest], 1)}

    def given(self, name: str, dtype: Any) -> jax.Array:
        return jnp.asarray(self.golden[name], dtype)


@pytest.fixture(scope="module")
def single(golden_dir):
    return Case(golden_dir, "render", jnp.float32)


@pytest.fixture(scope="module", params=RENDERERS)
def double(request, golden_dir):
    with jax.enable_x64(True):
        yield Case(golden_dir, request.param, jnp.float64)


def test_float64_maps_and_loss(double):
    for name in MAPS:
        difference = np.abs(np.asarray(getattr(double.out, name)) - double.golden[f"out_{name}"]).max()
        assert difference < 1e-9, name
    assert float(double.loss) == pytest.approx(float(double.golden["out_loss"]), rel=1e-9)


def test_float64_gradients(double):
    assert {f"grad_{name}" for name in double.gradients} == {k for k in double.golden if k.startswith("grad_")}
    for name, found in double.gradients.items():
        assert relative_error(found, double.golden[f"grad_{name}"]) < 1e-9, name


def test_float32_maps(single):
    for name in MAPS:
        difference = np.abs(np.asarray(getattr(single.out, name)) - single.golden[f"out_{name}"])
        assert np.median(difference) < 1e-6, name
        assert np.sum(difference > 1e-4) <= 6, name


def test_float32_gradients(single):
    for name, found in single.gradients.items():
        assert relative_error(found, single.golden[f"grad_{name}"]) < 4e-4, name
