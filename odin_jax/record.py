"""What a run cost and reached: the numbers of ``record.json``."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import psutil

PACKAGES = ("odin-jax", "jax", "jaxlib", "numpy", "optax", "flax", "orbax-checkpoint", "pycolmap")


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def peak_rss_mb() -> float:
    """Most memory this process ever held, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass
class Clock:
    """Wall and CPU seconds of a run over all its processes; starts when it is made."""

    wall_before: float = 0.0  # seconds of the processes before this one
    cpu_before: float = 0.0  # seconds, all threads
    _wall_start: float = field(default_factory=time.perf_counter)
    _cpu_start: float = field(default_factory=time.process_time)

    @staticmethod
    def of_process() -> Clock:
        """A clock that started with this process, so that imports count."""
        age = time.time() - psutil.Process().create_time()
        return Clock(_wall_start=time.perf_counter() - age, _cpu_start=0.0)

    def wall_s(self) -> float:
        return self.wall_before + time.perf_counter() - self._wall_start

    def cpu_s(self) -> float:
        return self.cpu_before + time.process_time() - self._cpu_start


def summary(per_view: list[dict[str, Any]]) -> dict[str, float | None]:
    """Means over the test views of each metric; None where there is no test view."""
    metrics = ("psnr", "ssim", "lpips")
    names = [name for name in metrics if per_view and all(name in view for view in per_view)]
    means: dict[str, float | None] = dict.fromkeys(metrics)
    means.update({name: float(np.mean([view[name] for view in per_view])) for name in names})
    return means


def devices() -> list[str]:
    """The devices that computed, e.g. ``cpu: cpu``."""
    return [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
