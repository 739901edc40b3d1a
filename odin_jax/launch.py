"""Start several processes of one command on this host, show what they say, and end them together.

Nothing of JAX here: the children find each other through the variables ODIN_* (see ``odin_jax.parallel.hosts``).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from odin_jax.parallel.hosts import COORDINATOR, PROCESS, PROCESSES
from splat.errors import UserError

ODIN = (sys.executable, "-P", "-m", "odin_jax.cli")  # -P: no package of the working folder comes before ours
POLL_S = 0.05  # between looks at the children
REASON_S = 8.0  # after the first failure: for the others to say why they end, before they are told to
SAVE_S = 60.0  # after a signal was forwarded because of a failure: to end, before they are killed
BLAMES = re.compile(r"odin: rank (\d+) \(host ")  # begin of the line of a process that ends because of another
REASON = re.compile(r"odin: (?:rank \d+ \(host \S+, pid \d+\) stopped [^:]*: )?(.*)")  # in last words
NOISE = re.compile(rb"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.")  # of a library, on stdout


@dataclass(frozen=True)
class LaunchConfig:
    """Start several processes of an odin command on this host: odin launch [options] -- COMMAND [its options]."""

    processes: int  # number of processes
    devices_per_process: int | None = None  # simulated CPU devices in each; None: GPUs are shared, else one CPU
    cores_per_process: int | None = None  # pin each process to so many cores of its own; None: not pinned


@dataclass
class Child:
    """One process and the last line it said on stderr."""

    rank: int
    process: subprocess.Popen[bytes]
    pumps: list[threading.Thread]
    last_error: list[str] = field(default_factory=list)  # the newest line of stderr, at most one

    @property
    def code(self) -> int:
        """Exit code as a shell gives it: 128 + signal for a killed one."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    @property
    def how(self) -> str:
        """``exit code 1: last line`` or ``killed by SIGKILL``; the program's own last words have been shown."""
        code = self.process.returncode
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        told = not self.last_error or REASON.match(self.last_error[0])
        return f"exit code {code}" + ("" if told else f": {self.last_error[0]}")


class Heard:
    """The last words that were shown, so that those of several processes for one reason are shown once."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._lock = threading.Lock()

    def again(self, line: str) -> bool:
        """Whether ``line`` is some process's last words for a reason that was heard before."""
        match = REASON.match(line)
        if match is None:
            return False
        with self._lock:
            before = match[1] in self._reasons
            self._reasons.add(match[1])
        return before


def launch(config: LaunchConfig, argv: Sequence[str]) -> int:
    """Run ``odin argv`` in so many processes; the exit code: 0, or that of the process that failed first.

    Raises UserError when the options cannot work.
    """
    if not argv:
        raise UserError("launch: which command? Write it behind two dashes: odin launch --processes 2 -- train …")
    environments = environments_of(config, os.environ, free_port())
    cores = shares_of_cores(config, sorted(os.sched_getaffinity(0)))
    return supervise([*ODIN, *argv], environments, cores)


def environments_of(config: LaunchConfig, environ: Mapping[str, str], port: int) -> list[dict[str, str]]:
    """The environment of each process. Raises UserError for a number that cannot work."""
    for name in ("processes", "devices_per_process", "cores_per_process"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    shared = {**environ, COORDINATOR: f"127.0.0.1:{port}", PROCESSES: str(config.processes),
              "PYTHONUNBUFFERED": "1"}
    if config.devices_per_process is not None:
        shared |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(config.devices_per_process)}
    if config.cores_per_process is not None:
        shared["NPROC"] = str(max(2, config.cores_per_process))  # XLA:CPU waits in a collective with one thread
    return [{**shared, PROCESS: str(rank)} for rank in range(config.processes)]


def shares_of_cores(config: LaunchConfig, cores: Sequence[int]) -> list[set[int]] | None:
    """The cores of each process, or None when they are not pinned. Raises UserError when there are too few."""
    each = config.cores_per_process
    if each is None:
        return None
    if each * config.processes > len(cores):
        raise UserError(f"--processes {config.processes} with --cores-per-process {each} need "
                        f"{each * config.processes} cores, this host gives {len(cores)}; ask for fewer")
    return [set(cores[rank * each:(rank + 1) * each]) for rank in range(config.processes)]


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def supervise(argv: Sequence[str], environments: Sequence[Mapping[str, str]],
              cores: Sequence[set[int]] | None = None, reason_s: float = REASON_S, save_s: float = SAVE_S) -> int:
    """Run ``argv`` once per environment and prefix all output with ``[rank]``; the exit code of the first failure.

    A reason for which several processes end is shown once.

    When one fails, the others have ``reason_s`` to end by themselves; then they get SIGTERM, and after ``save_s``
    SIGKILL. SIGINT and SIGTERM of this process are forwarded once, so that the children can save; from the end of the
    first on, the others have ``save_s``. The second signal kills them.
    """
    signals: list[int] = []
    heard = Heard()
    with _noting(signals):
        children = [_start(argv, rank, environment, cores[rank] if cores else None, heard)
                    for rank, environment in enumerate(environments)]
        try:
            return _watch(children, signals, reason_s, save_s)
        finally:
            _send(children, signal.SIGKILL)
            for child in children:
                child.process.wait()


@contextlib.contextmanager
def _noting(signals: list[int]) -> Iterator[None]:
    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(argv: Sequence[str], rank: int, environment: Mapping[str, str], cores: set[int] | None,
           heard: Heard) -> Child:
    with _pinned(cores):  # a child inherits the cores of the thread that starts it
        process = subprocess.Popen(argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
    child = Child(rank, process, [])
    for pipe, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
        assert pipe is not None
        last = child.last_error if pipe is process.stderr else None
        child.pumps.append(threading.Thread(target=_pump, args=(rank, pipe, out, last, heard), daemon=True))
        child.pumps[-1].start()
    return child


@contextlib.contextmanager
def _pinned(cores: set[int] | None) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _pump(rank: int, pipe: IO[bytes], out: IO[str], last: list[str] | None, heard: Heard) -> None:
    """Copy a child's lines to ``out``; a line that was redrawn with carriage returns is shown as it ended."""
    for raw in pipe:
        if NOISE.match(raw):
            continue
        line = raw.rstrip(b"\r\n").rsplit(b"\r", 1)[-1].decode(errors="replace")
        if last is not None and line.strip():
            last[:] = [line.strip()]
            if heard.again(line):
                continue
        with contextlib.suppress(BrokenPipeError, ValueError):
            out.write(f"[{rank}] {line}\n")
            out.flush()


def _watch(children: list[Child], signals: list[int], reason_s: float, save_s: float) -> int:
    first: Child | None = None
    forwarded, term_at, kill_at = 0, None, None
    while any(child.process.poll() is None for child in children):
        time.sleep(POLL_S)
        now = time.monotonic()
        failed = [child for child in children if child.process.poll() not in (None, 0)]
        if failed and first is None:
            first = _first_to_blame(failed)
            term_at = now + reason_s
        if len(signals) > forwarded:
            _send(children, signals[-1] if forwarded == 0 else signal.SIGKILL)
            forwarded, term_at = len(signals), None
        if forwarded and term_at is None and any(child.process.poll() is not None for child in children):
            term_at = now + save_s  # they end together, once all have saved
        if term_at is not None and now >= term_at and kill_at is None:
            _send(children, signal.SIGTERM)
            kill_at = now + save_s
        if kill_at is not None and now >= kill_at:
            _send(children, signal.SIGKILL)
    for pump in (pump for child in children for pump in child.pumps):
        pump.join(1.0)
    first = _named_by(first or _first_to_blame([child for child in children if child.code != 0]), children)
    if first is None:
        return 0
    if not signals:
        print(f"odin launch: rank {first.rank} (pid {first.process.pid}) failed, {first.how}", file=sys.stderr)
    return first.code


def _first_to_blame(failed: list[Child]) -> Child | None:
    """Of those found failed at once, one that was killed comes before those that say so."""
    return min(failed, key=lambda child: (child.process.returncode > 0, child.rank), default=None)


def _named_by(child: Child | None, children: list[Child]) -> Child | None:
    """The failed process that ``child`` names as the cause of its own end, else ``child``."""
    match = BLAMES.match(child.last_error[0]) if child and child.last_error else None
    named = int(match[1]) if match else -1
    return children[named] if 0 <= named < len(children) and children[named].code != 0 else child


def _send(children: list[Child], number: int) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(number)
