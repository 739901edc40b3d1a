"""Time the renderer on one view: forward, and forward with backward, on one core by default.

The last line printed is one JSON object: rows, pairs, fwd_ms, fwd_bwd_ms, ns_per_pair and the conditions.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odin_jax.options import parse


@dataclass(frozen=True)
class RenderBench:
    """What to render and how often."""

    ply: Path  # Gaussians in the 3DGS PLY layout
    scene: Path  # a capture whose cameras are used
    downscale: int = 1  # factor on the photos' sides
    width: int | None = None  # pixels; overrides the photo's width (height too, then)
    height: int | None = None  # pixels
    view: int = 0  # index of the photo in name order
    repeats: int = 9  # timed runs of each kind, alternating; medians are reported
    cores: int = 1  # CPU cores the process may use; 0: all
    devices: int = 1  # virtual CPU devices; each renders the same view, so rates add up over cores


def main(argv: list[str]) -> int:
    """Run the benchmark; 0 on success."""
    config = parse(RenderBench, argv, "odin bench render")
    if min(config.repeats, config.devices) < 1 or config.cores < 0:
        from splat.errors import UserError

        raise UserError(f"--repeats {config.repeats} --devices {config.devices} --cores {config.cores}: "
                        "at least 1, 1 and 0")
    if config.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:config.cores])
    if config.devices > 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} " \
                                  f"--xla_force_host_platform_device_count={config.devices}"
    print(json.dumps(measure(config)))
    return 0


def measure(config: RenderBench) -> dict[str, Any]:
    """The numbers of the JSON line. Times are medians in milliseconds per image."""
    import jax
    import jax.numpy as jnp
    import psutil

    from splat.cameras import Camera, resized
    from splat.errors import UserError
    from splat.io.ply import read_ply
    from splat.options import RenderOptions
    from splat.render import count_pairs, pair_bucket, render
    from splat.scene.load import load_scene

    gaussians = jax.tree.map(jnp.asarray, read_ply(config.ply))
    photos = load_scene(config.scene, downscale=config.downscale).photos
    if not 0 <= config.view < len(photos):
        raise UserError(f"--view {config.view}: the scene has photos 0 to {len(photos) - 1}")
    photo = photos[config.view]
    camera = Camera(jnp.asarray(photo.view, jnp.float32), jnp.asarray(photo.intrinsics, jnp.float32),
                    photo.width, photo.height)
    if (config.width is None) != (config.height is None) or min(config.width or 1, config.height or 1) < 1:
        raise UserError(f"--width {config.width} --height {config.height}: give both, each at least 1")
    if config.width and config.height:
        camera = resized(camera, config.width, config.height)
    pairs = int(count_pairs(gaussians, camera)[1])
    options = RenderOptions(pair_capacity=pair_bucket(pairs))
    target = jnp.zeros((camera.height, camera.width, 3))

    def image(g):
        return render(g, camera, options=options).image

    def loss(g):
        return jnp.mean(jnp.square(image(g) - target))

    process = psutil.Process()
    baseline = process.memory_info().rss
    forward, both = _replicated(image, config.devices), _replicated(jax.value_and_grad(loss), config.devices)
    fwd, fwd_bwd, peak = _alternating(forward, both, gaussians, config.repeats, process)
    per_image = 1e3 / config.devices
    return {"rows": gaussians.count, "pairs": pairs, "fwd_ms": round(fwd * per_image, 2),
            "fwd_bwd_ms": round(fwd_bwd * per_image, 2),
            "ns_per_pair": round(fwd_bwd * 1e9 / config.devices / max(pairs, 1), 1),
            "width": camera.width, "height": camera.height, "cores": config.cores, "devices": config.devices,
            "backend": jax.default_backend(), "step_mb": round((peak - baseline) / 2**20, 1)}


def _replicated(function: Callable, devices: int) -> Callable:
    import jax

    if devices == 1:
        return jax.jit(function)
    from jax.sharding import Mesh, PartitionSpec
    mesh = Mesh(jax.devices()[:devices], ("ranks",))
    return jax.jit(jax.shard_map(lambda g: jax.tree.map(lambda x: x[None], function(g)), mesh=mesh,
                                 in_specs=PartitionSpec(), out_specs=PartitionSpec("ranks"), check_vma=False))


def _alternating(forward: Callable, both: Callable, gaussians: Any, repeats: int,
                 process: Any) -> tuple[float, float, int]:
    """Median seconds of both programs, run in turn, and the largest resident size seen between runs."""
    import jax
    import numpy as np

    jax.block_until_ready((forward(gaussians), both(gaussians)))
    times, peak = ([], []), 0
    for _ in range(repeats):
        for kept, function in zip(times, (forward, both), strict=True):
            begin = time.perf_counter()
            result = jax.block_until_ready(function(gaussians))
            kept.append(time.perf_counter() - begin)
            peak = max(peak, process.memory_info().rss)
            del result
    return float(np.median(times[0])), float(np.median(times[1])), peak


if __name__ == "__main__":
    import sys
    sys.exit(main(sys.argv[1:]))
