"""Several isolated hosts on one Linux machine: network namespaces joined by links of a chosen rate (root only).

Each host has a namespace with an address of its own, a veth pair into a common bridge and a token bucket on both ends,
so that it sends and receives at no more than the rate. A process of a host is pinned to one core. Everything is taken
down again when the ``with`` block ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from splat.errors import UserError

SUBNET = "10.77.0"  # of the hosts' addresses
PORT = 29400  # of the first host's coordinator
BURST_KB = 256  # token bucket: what may pass at once
LATENCY_MS = 50  # token bucket: longest queue


@dataclass(frozen=True)
class Host:
    """One isolated host."""

    name: str  # of its network namespace
    address: str
    core: int  # CPU that its processes are pinned to


@dataclass(frozen=True)
class Lab:
    """The hosts of a lab that is up."""

    hosts: tuple[Host, ...]
    mbit: float  # rate of every host's link, Mbit/s each way

    def train(self, args: list[str], logs: Path, timeout_s: float) -> list[str]:
        """Run ``odin ARGS`` as one process per host; the output of each. Raises UserError when one fails."""
        logs.mkdir(parents=True, exist_ok=True)
        started = [self._start(rank, args, logs / f"host{rank}.log") for rank in range(len(self.hosts))]
        try:
            codes = [process.wait(timeout_s) for process in started]
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise
        texts = [(logs / f"host{rank}.log").read_text() for rank in range(len(self.hosts))]
        for rank, code in enumerate(codes):
            if code:
                last = (texts[rank].strip().splitlines() or ["no output"])[-1]
                raise UserError(f"host {rank} of the lab ended with exit code {code}: {last} (all of it: {logs})")
        return texts

    def _start(self, rank: int, args: list[str], log: Path) -> subprocess.Popen[bytes]:
        host = self.hosts[rank]
        env = {**os.environ, "NPROC": "2", "JAX_PLATFORMS": "cpu", "ODIN_PROCESS_ID": str(rank),
               "ODIN_COORDINATOR": f"{self.hosts[0].address}:{PORT}", "ODIN_NUM_PROCESSES": str(len(self.hosts))}
        command = ["ip", "netns", "exec", host.name, "taskset", "-c", str(host.core), sys.executable, "-m",
                   "odin_jax.cli", *args]
        with log.open("wb") as file:
            return subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


@contextlib.contextmanager
def hostlab(hosts: int, mbit: float) -> Iterator[Lab]:
    """A lab of ``hosts`` hosts with links of ``mbit`` Mbit/s. Raises UserError where it cannot be set up."""
    _check(hosts, mbit)
    bridge = f"odin{os.getpid() % 100000}"
    cores = sorted(os.sched_getaffinity(0))
    members = tuple(Host(f"{bridge}h{rank}", f"{SUBNET}.{rank + 1}", cores[rank % len(cores)]) for rank in range(hosts))
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for host in members:
            _join(host, bridge, mbit)
        yield Lab(members, mbit)
    finally:
        for host in members:
            subprocess.run(["ip", "link", "delete", f"{host.name}o"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True, check=False)
            shutil.rmtree(f"/etc/netns/{host.name}", ignore_errors=True)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)


def _check(hosts: int, mbit: float) -> None:
    if hosts < 1 or hosts > 200:
        raise UserError(f"--hosts {hosts}: must lie between 1 and 200")
    if not 0.1 <= mbit <= 100_000:
        raise UserError(f"--mbit {mbit}: must lie between 0.1 and 100000")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UserError("isolated hosts need Linux and root (network namespaces); run it as root")
    missing = [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]
    if missing:
        raise UserError(f"isolated hosts need the command {missing[0]!r}; install iproute2 and util-linux")


def _join(host: Host, bridge: str, mbit: float) -> None:
    """Make a host's namespace and its limited link to the bridge."""
    outer, inner = f"{host.name}o", f"{host.name}i"
    names = Path("/etc/netns") / host.name
    names.mkdir(parents=True, exist_ok=True)
    (names / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {socket.gethostname()}\n")
    _run("ip", "netns", "add", host.name)
    _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
    _run("ip", "link", "set", inner, "netns", host.name)
    _run("ip", "link", "set", outer, "master", bridge)
    _run("ip", "link", "set", outer, "up")
    inside = ("ip", "netns", "exec", host.name)
    _run(*inside, "ip", "link", "set", "lo", "up")
    _run(*inside, "ip", "addr", "add", f"{host.address}/24", "dev", inner)
    _run(*inside, "ip", "link", "set", inner, "up")
    bucket = ("root", "tbf", "rate", f"{int(mbit * 1000)}kbit", "burst", f"{BURST_KB}kb", "latency", f"{LATENCY_MS}ms")
    _run(*inside, "tc", "qdisc", "add", "dev", inner, *bucket)
    _run("tc", "qdisc", "add", "dev", outer, *bucket)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise UserError(f"cannot set up isolated hosts: `{' '.join(command)}`: {error.stderr.strip()}") from error
