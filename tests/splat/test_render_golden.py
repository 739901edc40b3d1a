"""Agreement with the numbers of an independent renderer (the golden files' README says what is in them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from splat import Camera, Gaussians, RenderOptions, quat, tiles
from splat.projection import project
from tests.splat.render_cases import QUICK, Inputs, Weights, program, relative_error

FILES = {"g2000_128x96.npz": False, "g1500_70x50_aa.npz": True}  # name: antialiased


class Case:
    """One golden file in one precision, rendered."""

    def __init__(self, folder: Path, name: str, dtype: Any):
        self.golden = dict(np.load(folder / name))
        self.size = width, height = int(self.golden["width"]), int(self.golden["height"])
        options = RenderOptions(antialias=FILES[name], pair_capacity=8192, low_pass=float(self.golden["eps2d"]),
                                near=float(self.golden["near"]))
        k, sh = self.golden["in_K"], self.given("in_sh", dtype)
        rows = (self.given(f"in_{name}", dtype) for name in ("means", "log_scales", "quats", "logit_opac"))
        self.gaussians = Gaussians(*rows, sh[:, 0], sh[:, 1:])
        intrinsics = jnp.asarray([k[0, 0], k[1, 1], k[0, 2], k[1, 2]], dtype)
        camera = Camera(self.given("in_viewmat", dtype), intrinsics, width, height)
        weight = self.given("in_loss_weight", dtype)
        nothing = jnp.zeros((height, width), dtype)
        inputs = Inputs(self.gaussians, camera, self.given("in_bg", dtype), jnp.zeros((len(sh), 2), dtype))
        quick = dtype == jnp.float64 or options.antialias  # one file is rendered by the program that users run
        run = program("render", options, int(self.golden["sh_degree"]), quick)
        alive = jnp.ones(len(sh), bool)
        (self.loss, (self.image, self.alpha, _)), self.grads = run(inputs, alive, Weights(weight, nothing, nothing))
        projection = jax.jit(lambda g: project(g, camera, alive=None, sh_degree=3, probe=None, options=options),
                             compiler_options=QUICK)
        self.projected = projection(self.gaussians)

    def given(self, name: str, dtype: Any) -> jax.Array:
        return jnp.asarray(self.golden[name], dtype)

    def gradients(self) -> dict[str, tuple[jax.Array, np.ndarray]]:
        """Ours and theirs by name."""
        g = self.grads.gaussians
        ours = {"means": g.means, "quats": g.quats, "log_scales": g.log_scales, "logit_opac": g.opacity_logits,
                "sh": jnp.concatenate([g.sh_dc[:, None], g.sh_rest], 1), "viewmat": self.grads.camera.view}
        assert {f"grad_{name}" for name in ours} == {name for name in self.golden if name.startswith("grad_")}
        return {name: (grad, self.golden[f"grad_{name}"]) for name, grad in ours.items()}

    def intermediates(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ours and theirs by name, in the rows that both draw."""
        rows = np.asarray(self.projected.valid) & (self.golden["out_radii"] > 0).all(1)
        assert rows.sum() > 0.5 * len(rows)
        p, q = jax.tree.map(np.asarray, (self.projected, self.gaussians.quats))
        turn = np.moveaxis(np.asarray(jax.jit(quat.rotation)(*q.T)), -1, 0)
        ours = {"means2d": p.geometry[:, :2], "conics": p.geometry[:, 2:5], "depths": p.features[:, 3],
                "colors": p.features[:, :3], "opac": p.opacity,
                "covars": np.einsum("nij,nj,nkj->nik", turn, np.exp(2 * self.gaussians.log_scales), turn)}
        return {name: (value[rows], self.golden[f"out_{name}"][rows]) for name, value in ours.items()}


@pytest.fixture(scope="module", params=FILES)
def single(request, golden_dir):
    return Case(golden_dir, request.param, jnp.float32)


@pytest.fixture(scope="module", params=FILES)
def double(request, golden_dir):
    with jax.enable_x64(True):
        yield Case(golden_dir, request.param, jnp.float64)


def test_float32_image(single):
    for found, wanted in ((single.image, "out_image"), (single.alpha, "out_alpha")):
        difference = np.abs(np.asarray(found) - single.golden[wanted])
        assert np.median(difference) < 1e-6
        assert np.sum(difference > 1e-4) <= 6


def test_float32_intermediates(single):
    for name, (found, wanted) in single.intermediates().items():
        assert relative_error(found, wanted) < 2e-6, name


def test_float32_gradients(single):
    for name, (found, wanted) in single.gradients().items():
        assert relative_error(found, wanted) < 2e-4, name


def test_float64_image_and_loss(double):
    assert np.abs(np.asarray(double.image) - double.golden["out_image"]).max() < 1e-9
    assert np.abs(np.asarray(double.alpha) - double.golden["out_alpha"]).max() < 1e-9
    assert float(double.loss) == pytest.approx(float(double.golden["out_loss"]), rel=1e-9)


def test_float64_intermediates(double):
    for name, (found, wanted) in double.intermediates().items():
        assert relative_error(found, wanted) < 1e-9, name


def test_float64_gradients(double):
    for name, (found, wanted) in double.gradients().items():
        assert relative_error(found, wanted) < 1e-9, name


def test_what_is_drawn_is_what_they_draw_in_no_more_tiles(double):
    """Their boxes hold every footprint, so a row that we draw has one; exact footprints list fewer pairs."""
    theirs = (double.golden["out_radii"] > 0).all(1)
    ours = jax.jit(lambda p: tiles.count(p, *double.size, 16), compiler_options=QUICK)(double.projected)
    assert np.all(theirs[np.asarray(ours[0])])
    assert int(ours[1]) < int(double.golden["n_isect"])
