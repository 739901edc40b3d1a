"""2DGS through the command line: trained, exported, shown as normals and depth, and turned into a mesh."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from captures import write_capture
from plyfile import PlyData
from processes import start

from odin_jax import cli
from splat.gaussians import Gaussians
from splat.io.ply import read_ply

RUN = {"--pipeline": "2dgs", "--iterations": "40", "--gs2d.densify-from": "10", "--gs2d.densify-every": "10",
       "--gs2d.grad-threshold": "1e-6", "--gs2d.normal-from": "5", "--gs2d.prune-opacity": "0.005"}
ROWS = 3000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("surfels")
    process = start(write_capture(folder / "capture"), folder / "out", folder / "xla", **RUN)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return folder / "out"


def run(*argv):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in argv])
    assert ended.value.code == 0


def test_a_run_leaves_surfels_and_the_options_of_its_pipeline(trained):
    names = PlyData.read(str(trained / "point_cloud.ply"))["vertex"].data.dtype.names
    assert [name for name in names if name.startswith("scale_")] == ["scale_0", "scale_1"]
    rows = read_ply(trained / "point_cloud.ply")
    assert rows.log_scales.shape == (rows.count, 2) and rows.count > 40
    config = json.loads((trained / "config.json").read_text())
    assert config["gs2d"]["normal_from"] == 5 and config["gs2d"]["distortion_from"] == 4
    assert config["pipeline"] == "2dgs"


def ball() -> Gaussians:
    """Opaque disks on the unit sphere; the third axis of each rotation points outwards."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((ROWS, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    quats = np.stack([1 + normal[:, 2], -normal[:, 1], normal[:, 0], np.zeros(ROWS)], 1)
    fields = (normal, np.full((ROWS, 2), np.log(0.04)), quats, np.full(ROWS, 4.0), normal, np.zeros((ROWS, 15, 3)))
    return Gaussians(*(jnp.asarray(field, jnp.float32) for field in fields))
