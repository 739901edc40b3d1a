"""Build the embedded scene, train it and show what came out: the first thing to run on a new machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from odin_jax.record import Clock
from odin_jax.runs import RunFolder, read_json
from odin_jax.session import train
from odin_jax.train_config import TrainConfig
from splat.pipelines.gs3d_config import Gs3dConfig
from splat.scene.procedural import write_scene


@dataclass(frozen=True)
class DemoConfig:
    """Build the embedded scene, train it and show what came out. Run again to continue."""

    out: Path = Path("out/demo")  # folder for the scene (SCENE) and the results (RUN)
    iterations: int = 600  # optimizer steps
    cap: int = 12_000  # most Gaussians
    width: int = 384  # pixels
    height: int = 256  # pixels
    views: int = 48  # photos on two camera paths
    seed: int = 0  # of the scene and of the training


def main(config: DemoConfig) -> int:
    """Exit code of the training. The scene is made once and is deterministic from the seed and the size."""
    clock = Clock.of_process()
    scene = config.out / f"scene-{config.seed}-{config.views}-{config.width}x{config.height}"
    if not (scene / "sparse").exists():
        print(f"building the embedded scene in {scene}")
        write_scene(scene, seed=config.seed, views=config.views, width=config.width, height=config.height)
    run = RunFolder(config.out / "run")
    # Room for the cap from the start: nothing is compiled twice, which would take longer than the training.
    pipeline = Gs3dConfig(capacity_growth=max(2.0, config.cap / 1000), densify_from=100, densify_every=50,
                          densify_until=max(101, config.iterations * 2 // 3))
    code = train(TrainConfig(scene=scene, out=run.path, iterations=config.iterations, cap=config.cap,
                             seed=config.seed, checkpoint_every=300, image_every=0, gs3d=pipeline), clock)
    if code == 0:
        record = read_json(run.record)
        print(f"PSNR {record['psnr']:.2f} dB on {record['test_views']} test views")
        print(f"scene      {run.ply}\nimages     {run.renders} (photo | render)\nrecord     {run.record}")
    return code


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["demo", *sys.argv[1:]])
