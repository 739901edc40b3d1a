"""How XLA, NCCL and the allocator are told to overlap exchanges with computation (docs/gpu.md).

Everything here is a default: what the user's environment says already stays as it is. XLA reads its flags when a
backend starts, so this has to come first.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

# flag: (value, why)
XLA = {
    "xla_gpu_enable_latency_hiding_scheduler": (
        "true", "moves the start of a collective up and its end down, around the loops of the next unit"),
    "xla_gpu_all_reduce_combine_threshold_bytes": (
        "1", "the parts of a publication are needed at different times: joined, all would wait for the last"),
    "xla_gpu_all_gather_combine_threshold_bytes": ("1", "the same for the ordered exchange"),
    "xla_gpu_reduce_scatter_combine_threshold_bytes": ("1", "the same, should XLA make one of an all-reduce"),
}
NCCL = {
    "NCCL_IGNORE_DISABLED_P2P": ("1", "hosts whose GPUs cannot reach each other over PCIe exchange through memory"),
}
MEMORY = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": ("0.9", "share of the card that XLA may use; the rest is for CUDA and NCCL"),
}
SHARE = float(MEMORY["XLA_PYTHON_CLIENT_MEM_FRACTION"][0])


def xla_flags(given: str, more: dict[str, str] | None = None) -> str:
    """``given``, the user's XLA_FLAGS, with our defaults (and ``more``) for flags that it does not name."""
    named = {word.lstrip("-").split("=")[0] for word in given.split()}
    wanted = {name: value for name, (value, _) in XLA.items()} | (more or {})
    ours = [f"--{name}={value}" for name, value in wanted.items() if name not in named]
    return " ".join([*given.split(), *ours])


def set_for_this_machine(environ: MutableMapping[str, str]) -> None:
    """Put the defaults into the environment of a process that will train on the GPUs of this machine, if it has any."""
    on_cpu = environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu"
    if not on_cpu and any(Path("/dev").glob("nvidia[0-9]*")):
        set_defaults(environ)


def set_defaults(environ: MutableMapping[str, str]) -> None:
    """Put the defaults into an environment, before any backend has started in its process."""
    environ["XLA_FLAGS"] = xla_flags(environ.get("XLA_FLAGS", ""))
    for name, (value, _) in (NCCL | MEMORY).items():
        environ.setdefault(name, value)
