"""Look at a trained scene in the browser."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from scipy.spatial.transform import Rotation

from odin_jax.loaded import LoadedRun, open_run
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.sh import C0


@dataclass(frozen=True)
class ViewConfig:
    """Look at a trained scene in the browser (needs viser: pip install viser)."""

    dir: Annotated[Path, tyro.conf.Positional]  # folder written by `odin train --out` or `odin import --out`
    host: str = "127.0.0.1"  # address to listen on
    port: int = 8080  # TCP port


def main(config: ViewConfig) -> None:
    """Serve until interrupted. Raises UserError when the viewer is not installed or cannot show the rows."""
    if not 1 <= config.port <= 65535:
        raise UserError(f"--port {config.port}: must be a number from 1 to 65535")
    run = open_run(config.dir)
    try:
        viser: Any = importlib.import_module("viser")
    except ImportError as error:
        raise UserError("the viewer is not installed; run: pip install viser") from error
    server = viser.ViserServer(host=config.host, port=config.port)
    server.scene.add_gaussian_splats("/scene", **splats(run.gaussians))
    _place_cameras(server, run)
    print(f"http://{config.host}:{config.port} shows {run.gaussians.count:,} Gaussians; Ctrl-C ends it")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        server.stop()


def splats(gaussians: Gaussians) -> dict[str, np.ndarray]:
    """centres [N, 3], covariances [N, 3, 3], rgbs [N, 3] in 0..1 (degree 0 only) and opacities [N, 1]."""
    if gaussians.log_scales.shape[1] != 3:
        raise UserError("the viewer shows Gaussians with three scales only; surfels cannot be shown")
    turns = Rotation.from_quat(np.asarray(gaussians.quats), scalar_first=True).as_matrix()
    axes = turns * np.asarray(gaussians.scales)[:, None, :]
    return {
        "centers": np.asarray(gaussians.means),
        "covariances": axes @ axes.transpose(0, 2, 1),
        "rgbs": np.clip(0.5 + C0 * np.asarray(gaussians.sh_dc), 0, 1),
        "opacities": np.asarray(gaussians.opacities)[:, None],
    }


def _place_cameras(server: Any, run: LoadedRun) -> None:
    """Frustums of the training cameras, and the first of them as the view to start from."""
    if not run.folder.cameras.exists():
        return
    for index, (name, camera) in enumerate(run.cameras()):
        view = np.asarray(camera.view, np.float64)
        position = -view[:3, :3].T @ view[:3, 3]
        turn = Rotation.from_matrix(view[:3, :3].T).as_quat(scalar_first=True)
        opening = 2 * np.arctan(camera.height / (2 * float(camera.intrinsics[1])))
        server.scene.add_camera_frustum(
            f"/cameras/{name}",
            fov=opening,
            aspect=camera.width / camera.height,
            scale=0.1,
            wxyz=turn,
            position=position,
        )
        if index == 0:
            server.scene.set_up_direction(tuple(-view[1, :3]))
            server.initial_camera.position = tuple(position)
            server.initial_camera.look_at = tuple(position + view[2, :3])


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["view", *sys.argv[1:]])
