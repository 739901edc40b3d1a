"""Bring this process into its run before JAX's backend exists, and out of it again.

``with joined(hosts, local_devices) as team:`` holds the whole run. What happens to one process is said to all:
an error of the user ends the others with its reason, the death of one ends the others with its name, and none
leaves before all are done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from odin_jax.parallel.hosts import Hosts
from odin_jax.parallel.watch import Meeting, Timing, Watch
from sched.errors import PlanError
from splat.errors import UserError

USERS_CODE, CRASH_CODE, INTERRUPT_CODE = 2, 1, 130  # exit codes as the console command gives them
KNOWN_JAX = "0.10.2"  # newest version that this was tested with
LEAST_THREADS = 2  # of XLA:CPU: one computes while the other waits in a collective
PATIENCE = {  # seconds; a rank that waits for a slow one is not stuck, and the dead are found by the watch
    "xla_cpu_collective_call_terminate_timeout_seconds": 86400,
    "xla_cpu_collective_timeout_seconds": 86400,
}


@dataclass(frozen=True)
class Team:
    """The processes of this run, seen from one of them."""

    process: int = 0  # this one's rank, from 0
    processes: int = 1
    _watch: Watch | None = field(default=None, repr=False)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone prints and writes files."""
        return self.process == 0

    def reached(self, step: int) -> None:
        """Note the last finished step, so that a loss can be dated; costs nothing."""
        if self._watch is not None:
            self._watch.step = step


@contextlib.contextmanager
def joined(hosts: Hosts | None, local_devices: int | None, timing: Timing | None = None) -> Iterator[Team]:
    """Make this process a member of its run for the time of the block; ``hosts`` None: a run of one process.

    ``local_devices``: simulated CPU devices in this process, None: the devices there are. Must come before any use
    of a JAX backend. Raises UserError when the processes cannot come together, or when devices are asked for after
    JAX has counted them. When another process is lost or fails, this one ends with one line (``os._exit``), even
    while its main thread waits in a collective.
    """
    _prepare(local_devices, hosts is not None)
    if hosts is None:
        yield Team()
        return
    watch = Watch(hosts, timing or Timing())
    meeting = watch.meet()
    try:
        _connect(hosts, meeting)
        yield Team(hosts.process, hosts.processes, watch)
    except BaseException as error:
        _let_go()
        watch.fail(*_blame(error))
        raise
    watch.leave()
    _let_go()


def _prepare(local_devices: int | None, several: bool) -> None:
    """Settings that the backend reads when it is made."""
    if _jax_runs():
        if several or local_devices not in (None, jax.local_device_count()):
            asked = "several processes" if several else f"--devices {local_devices}"
            raise UserError(f"{asked}: JAX already runs in this process with {jax.local_device_count()} devices; "
                            "start the run in a new process")
        return
    if local_devices is not None:
        if local_devices < 1:
            raise UserError(f"--devices {local_devices}: must be at least 1")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", local_devices)
    if len(os.sched_getaffinity(0)) < LEAST_THREADS:
        os.environ.setdefault("NPROC", str(LEAST_THREADS))
    if several or local_devices is not None:
        flags = os.environ.get("XLA_FLAGS", "")
        ours = [f"--{name}={seconds}" for name, seconds in PATIENCE.items() if name not in flags]
        os.environ["XLA_FLAGS"] = " ".join([*filter(None, [flags]), *ours])
    if several:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")


def _jax_runs() -> bool:
    """Whether JAX has made a backend. There is no public name for it; where it has moved, ``jax.config`` objects."""
    try:
        from jax._src.xla_bridge import backends_are_initialized
    except ImportError:
        return False
    return backends_are_initialized()


@contextlib.contextmanager
def _internals() -> Iterator[None]:
    """Around the use of what is no public part of JAX: UserError where another version has changed it.

    The public way, ``jax.distributed.initialize``, starts the coordination service inside process 0 (up to 0.10.2,
    the newest when this was written): it cannot be told to connect to one that runs elsewhere. When process 0 dies, the
    service dies too, and the client ends every other process from within C++ by a stack trace that names nobody; at
    exit it waits for processes that are gone.
    """
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(f"several processes do not run with JAX {jax.__version__}, whose distributed client is another "
                        f"one ({error}); install jax=={KNOWN_JAX} and the jaxlib that belongs to it") from error


def _connect(hosts: Hosts, meeting: Meeting) -> None:
    """What ``jax.distributed.initialize`` does, with the service in the hub and no abort from within C++."""
    with _internals():
        from jax._src.distributed import global_state
        from jax._src.lib import _jax  # type: ignore[attr-defined]

        state: Any = global_state
        host = hosts.address[0]
        shown = "localhost" if hosts.process == 0 else f"[{host}]" if ":" in host else host
        address = f"{shown}:{meeting.service_port}"
        client = _jax.get_distributed_runtime_client(
            address, hosts.process, init_timeout=120, heartbeat_timeout=10 * 365 * 86400, shutdown_on_destruction=False,
            use_compression=True)
        state.coordinator_address, state.client = address, client
        state.process_id, state.num_processes = hosts.process, hosts.processes
    state.client.connect()
    if not jax.distributed.is_initialized():
        raise UserError(f"JAX {jax.__version__} does not see its processes; install jax=={KNOWN_JAX}")
    mine = share_of_gpus(visible_gpus(dict(os.environ)), meeting.machines, hosts.process)
    if mine:
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, mine)))


def _let_go() -> None:
    """Keep JAX from waiting for the others at exit: the hub has seen to that, or they are gone."""
    with contextlib.suppress(ImportError):
        from jax._src.distributed import global_state

        global_state.client = None


def _blame(error: BaseException) -> tuple[str, int, bool]:
    """(reason in one line, exit code, whether it is surely this process's own fault)."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (UserError, PlanError)):
        return line, USERS_CODE, True
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPT_CODE, True
    return f"{type(error).__name__}: {line}"[:400], CRASH_CODE, False


def visible_gpus(environ: dict[str, str]) -> int:
    """Number of NVIDIA GPUs that this process may see; 0 when JAX is told to use the CPU."""
    if environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu" or jax.config.jax_platforms == "cpu":  # type: ignore[attr-defined]
        return 0
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([part for part in named.split(",") if part.strip() not in ("", "-1")])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def share_of_gpus(gpus: int, machines: tuple[str, ...], process: int) -> list[int]:
    """Indices of the GPUs for a rank when several ranks on one machine see the same ones; else empty.

    ``machines``: the machine of each rank. The GPUs are shared evenly; where there are fewer GPUs than ranks, each
    rank sees its own already (as Slurm binds them), and nothing is to be done.
    """
    peers = [rank for rank, machine in enumerate(machines) if machine == machines[process]]
    each = gpus // len(peers)
    if len(peers) == 1 or each == 0:
        return []
    first = peers.index(process) * each
    return list(range(first, first + each))
