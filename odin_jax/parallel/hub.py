"""Where the processes of a run meet: a small process of its own beside process 0.

It hosts JAX's coordination service and watches every process over one TCP connection each. Whichever process
dies, process 0 included, the service survives and the hub says to all others in one line who was lost. (Were the
service a part of process 0, its death would abort the others from within C++ with a stack trace that names
nobody.) The hub ends when all connections are closed, so it never outlives a run.

The kernel closes the connection of a process that dies, and its probes find a host that is gone. A process that is
merely busy or stopped is not lost, for nothing depends on how soon it answers.

Messages are JSON objects, one a line. From a process: {"hello": rank, "of": P, "host": …, "pid": …, "machine": …},
{"step": n}, {"failed": reason, "code": c, "sure": bool}, {"done": true}. To it: {"go": port of the service, "hosts":
[machine of each rank]}, {"end": line, "rank": whose fault, "code": exit code}, {"all_done": true}, to rank 0 also
{"missing": [ranks that have not come], "left_s": seconds until the verdict}, {"alone": true}.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TICK_S = 0.2  # between looks at the clock
WORD_S = 5.0  # until rank 0 hears who has not come yet
AGAIN_S = 60.0  # until it hears of them again
UNSURE_S = 4.0  # a failure that may be another's fault waits so long for a better reason
LINGER_S = 60.0  # after a verdict: for the others to end
RESUME = "the last checkpoint is whole and the same command resumes"
UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
LOST_CODE = 1  # exit code of those who lost a process


def listen(port: int) -> socket.socket:
    """A server socket on all addresses of this host, port 0: any. Raises OSError when the port is taken."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def probe(connection: socket.socket, silence_s: float) -> None:
    """Let the kernel end the connection when the other host does not answer for ``silence_s``."""
    for option, value in ((socket.TCP_KEEPIDLE, silence_s / 3), (socket.TCP_KEEPINTVL, silence_s / 6),
                          (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, max(1, round(value)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * silence_s))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


@dataclass
class Member:
    """One connection and what is known of the process behind it."""

    connection: socket.socket
    buffer: bytes = b""
    rank: int = -1  # -1: it has not said hello
    host: str = ""
    pid: int = 0
    machine: str = ""
    step: int | None = None
    done: bool = False

    @property
    def name(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"

    @property
    def at_step(self) -> str:
        return "before its first step" if self.step is None else f"at about step {self.step}"


@dataclass
class Hub:
    """The watch over ``processes`` processes; ``serve`` runs until all are gone."""

    server: socket.socket
    processes: int
    address: str  # as the user named it, for messages
    start_s: float  # all must have said hello within this time
    silence_s: float  # a host that does not answer for so long is gone
    start_service: Callable[[], int]  # starts JAX's service, returns its port
    members: list[Member] = field(default_factory=list)
    ended: dict[str, Any] | None = None  # the verdict, once there is one
    unsure: tuple[float, dict[str, Any]] | None = None  # (when it counts, verdict that may be another's fault)
    went: bool = False
    finished: set[int] = field(default_factory=set)
    released: bool = False
    told_at: float | None = None  # when rank 0 last heard of those who have not come

    def serve(self) -> None:
        """Accept, listen and judge until nobody is left."""
        begin, ended_at = time.monotonic(), None
        with selectors.DefaultSelector() as selector:
            selector.register(self.server, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(TICK_S):
                    self._accept(selector) if key.fileobj is self.server else self._read(selector, key.data)
                now = time.monotonic()
                self._judge_clock(now, begin)
                ended_at = ended_at or (now if self.ended else None)
                left = not any(member.rank >= 0 for member in self.members)
                if (left and (self.went or self.ended)) or (ended_at and now - ended_at > LINGER_S):
                    return

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self.server.accept()
        connection.settimeout(2.0)
        probe(connection, self.silence_s)
        member = Member(connection)
        self.members.append(member)
        selector.register(connection, selectors.EVENT_READ, member)

    def _read(self, selector: selectors.BaseSelector, member: Member) -> None:
        why = "killed or crashed"
        try:
            data = member.connection.recv(65536)
        except OSError as error:
            data = b""
            if error.errno in UNREACHABLE:
                why = f"its host does not answer ({error.strerror})"
        *lines, member.buffer = (member.buffer + data).split(b"\n")
        for line in lines:
            try:
                self._take(member, json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):  # not one of ours, a port scanner perhaps
                data = b""
        if not data:
            selector.unregister(member.connection)
            member.connection.close()
            self.members.remove(member)
            if member.rank >= 0 and not member.done:
                self._verdict(member, f"{member.name} was lost {member.at_step}, {why}; {RESUME}")
            if self.released and {other.rank for other in self.members if other.rank >= 0} == {0}:
                self._tell({"alone": True})

    def _take(self, member: Member, message: dict[str, Any]) -> None:
        if "hello" in message:
            self._welcome(member, message)
        elif member.rank < 0:
            raise ValueError("no hello")
        elif "step" in message:
            member.step = message["step"]
        elif "failed" in message:
            self._failed(member, message)
        elif "done" in message:
            member.done = True
            self.finished.add(member.rank)
            self._release()

    def _welcome(self, member: Member, message: dict[str, Any]) -> None:
        rank = message["hello"]
        if self.went and not self.ended:
            self._send(member, {"end": f"{self.address} already serves a training that runs; choose another port",
                                "rank": rank, "code": LOST_CODE})
            raise ValueError("too late")
        twin = next((other for other in self.members if other.rank == rank), None)
        member.rank, member.host, member.pid = rank, message["host"], message["pid"]
        member.machine = message["machine"]
        if self.ended:
            self._send(member, self.ended)
        elif twin:
            self._verdict(member, f"{member.name} and {twin.name} have the same process id; give each its own")
        elif message["of"] != self.processes:
            self._verdict(member, f"{member.name} was started for {message['of']} processes, rank 0 for "
                                  f"{self.processes}; start all with the same number")
        elif {other.rank for other in self.members} >= set(range(self.processes)):
            self._go()

    def _go(self) -> None:
        """All are there."""
        self.went = True
        ranks = sorted((member for member in self.members if member.rank >= 0), key=lambda member: member.rank)
        try:
            port = self.start_service()
        except (ImportError, AttributeError, TypeError, RuntimeError) as error:
            self._end({"end": f"JAX's coordination service does not start at {self.address} ({error}); install a "
                              "version of JAX that this program was tested with", "rank": -1, "code": LOST_CODE})
            return
        self._tell({"go": port, "hosts": [member.machine for member in ranks]})

    def _failed(self, member: Member, message: dict[str, Any]) -> None:
        line = f"{member.name} stopped {member.at_step}: {message['failed']}"
        verdict = {"end": line, "rank": member.rank, "code": message["code"]}
        if message["sure"]:
            self._end(verdict)
        elif self.unsure is None:
            self.unsure = (time.monotonic() + UNSURE_S, verdict)

    def _judge_clock(self, now: float, begin: float) -> None:
        if self.unsure and now >= self.unsure[0]:
            self._end(self.unsure[1])
        if self.went or self.ended:
            return
        here = {member.rank for member in self.members}
        missing = [rank for rank in range(self.processes) if rank not in here]
        if 0 in here and now >= (begin + WORD_S if self.told_at is None else self.told_at + AGAIN_S):
            self.told_at = now
            self._tell({"missing": missing, "left_s": round(begin + self.start_s - now)}, to=0)
        if now - begin > self.start_s:
            self._end({"end": f"rank {', '.join(map(str, missing))} of {self.processes} did not come to {self.address} "
                              f"within {self.start_s:g} s; start all, and check the address and the firewall",
                       "rank": -1, "code": 2})

    def _release(self) -> None:
        """When all are done, all may leave."""
        if not self.released and self.finished == set(range(self.processes)):
            self.released = True
            self._tell({"all_done": True})

    def _verdict(self, member: Member, line: str) -> None:
        self._end({"end": line, "rank": member.rank, "code": LOST_CODE})

    def _end(self, verdict: dict[str, Any]) -> None:
        if self.ended is None and not self.released:
            self.ended = verdict
            self._tell(verdict)

    def _tell(self, message: dict[str, Any], to: int | None = None) -> None:
        """Send it to all, or to one rank."""
        for member in self.members:
            if member.rank >= 0 and to in (None, member.rank):
                self._send(member, message)

    @staticmethod
    def _send(member: Member, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a broken connection is found by reading from it
            member.connection.sendall(json.dumps(message).encode() + b"\n")


class JaxService:
    """JAX's coordination service on a free port; it never judges a process by itself, the hub does."""

    NEVER_S = 10 * 365 * 86400  # its own heartbeat timeout

    def __init__(self, processes: int, start_s: float):
        self._processes, self._start_s = processes, start_s
        self._service: Any = None  # held, or it would stop

    def start(self) -> int:
        """The port it listens on. Not public, see ``odin_jax.parallel.join``; raises what a changed name raises."""
        from jaxlib import _jax  # type: ignore[attr-defined]

        with listen(0) as probe:
            port = probe.getsockname()[1]
        self._service = _jax.get_distributed_runtime_service(
            f"[::]:{port}", self._processes, heartbeat_timeout=self.NEVER_S, shutdown_timeout=10,
            cluster_register_timeout=int(self._start_s) + 1)
        return port


def main(argv: list[str]) -> int:
    """``python -m odin_jax.parallel.hub PORT PROCESSES ADDRESS START_S SILENCE_S``.

    The first line on stdout is ``ok`` or why it cannot listen.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the run's processes decide when it ends
        signal.signal(number, signal.SIG_IGN)
    port, processes, start_s, silence_s = int(argv[0]), int(argv[1]), float(argv[3]), float(argv[4])
    try:
        server = listen(port)
    except OSError as error:
        print(error.strerror or error, flush=True)
        return 1
    print("ok", flush=True)
    with server:
        Hub(server, processes, argv[2], start_s, silence_s, JaxService(processes, start_s).start).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
