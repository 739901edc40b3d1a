"""Devices of a cluster that is described but not there, to compile for."""

from __future__ import annotations

import importlib.util
import os
import re
from importlib import metadata, resources
from typing import Any

from odin_jax.gpu import flags
from splat.errors import UserError

TARGETS = ("rtx4090", "h200")


def described(name: str) -> str:
    """The description of a device, as text of XLA's ``GpuTargetConfigProto``."""
    return (resources.files("odin_jax.gpu") / "targets" / f"{name}.txtpb").read_text()


def number(name: str, field: str) -> float:
    """A number in the description of a device."""
    found = re.search(rf"\b{field}: ([0-9.]+)", described(name))
    assert found, field
    return float(found[1])


def capability(name: str) -> str:
    """Compute capability of a device, e.g. 8.9."""
    return f"{number(name, 'major'):.0f}.{number(name, 'minor'):.0f}"


def prepare() -> None:
    """Make this process one that compiles for GPUs and runs on the CPU; before jax starts a backend.

    Raises UserError where jax's CUDA wheels are not installed.
    """
    if importlib.util.find_spec("jax_plugins") is None or not any(
            name.startswith("jax-cuda") and name.endswith("pjrt") for name in _installed()):
        version = metadata.version("jax")
        raise UserError("gpu-check compiles with jax's CUDA wheels, which are not installed here: pip install "
                        f"'jax[cuda13]=={version}', best in an environment of its own (docs/gpu.md)")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    flags.set_defaults(os.environ)
    import jax

    jax.config.update("jax_platforms", "cpu")  # jax may have been imported before
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot be read without the devices


def devices(name: str, hosts: int, gpus: int) -> list[Any]:
    """The devices of ``hosts`` hosts with ``gpus`` each, to build a mesh of."""
    from jax.experimental import topologies

    cluster = topologies.get_topology_desc(platform="cuda", topology_name=f"{hosts} hosts of {gpus} {name}",
                                           target_config=described(name), topology=f"1x{hosts}x{gpus}")
    return list(cluster.devices)


def _installed() -> set[str]:
    return {(found.metadata["Name"] or "").lower().replace("_", "-") for found in metadata.distributions()}
