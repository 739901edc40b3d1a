"""A process's connection to the hub of its run: it comes together there, and ends when another one is lost."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from odin_jax.parallel.hosts import Hosts
from odin_jax.parallel.hub import LOST_CODE, RESUME, UNSURE_S, probe
from splat.errors import UserError

TELL_S = 0.25  # between two reports of the step
RETRY_S = 0.25  # between two attempts to reach the hub
SILENT_S = 10.0  # of attempts without a word
NAMED = 8  # ranks that are named where many have not come
ALONE_S = 10.0  # for the other processes to be gone after all are done
PATIENCE_S = 30.0  # for the hub's word, beyond the time in which it judges who did not come
END_S = 15.0  # a failed process that has not ended by itself after so long is ended


@dataclass(frozen=True)
class Timing:
    """How long a run waits for its processes."""

    start_s: float = 300.0  # all must have come together within this time
    silence_s: float = 20.0  # a host that does not answer for so long is gone


@dataclass(frozen=True)
class Meeting:
    """What the hub says when all are there."""

    service_port: int  # of JAX's coordination service, on the coordinator's host
    machines: tuple[str, ...]  # the machine of each rank, equal for ranks that share one


def machine() -> str:
    """A name of this machine that no other one has, the same for all its processes."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return socket.gethostname()


def end_now(line: str, code: int) -> NoReturn:
    """Say ``line`` on stderr and end the process, whatever its other threads wait for."""
    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    flusher = threading.Thread(target=flush, daemon=True)  # another thread may hold the stream for ever
    flusher.start()
    flusher.join(1.0)
    back = "\r\n\x1b[?25h" if os.isatty(2) else ""  # below the live line, with the cursor that it hides
    with contextlib.suppress(OSError):
        os.write(2, f"{back}odin: {line}\n".encode())
    os._exit(code)


class Watch:
    """Tells the hub that this process lives, and ends it when the hub says that another one does not."""

    def __init__(self, hosts: Hosts, timing: Timing):
        self.step: int | None = None  # last step reached, told to the hub
        self._hosts, self._timing = hosts, timing
        self._met, self._released, self._judged = threading.Event(), threading.Event(), threading.Event()
        self._alone = threading.Event()
        self._failed = False
        self._meeting: Meeting | None = None
        self._connection: socket.socket | None = None

    def meet(self) -> Meeting:
        """Come to the hub, which process 0 starts, and wait for all.

        Raises UserError when the hub cannot be started or reached; when others do not come, the process ends.
        """
        if self._hosts.process == 0:
            self._start_hub()
        self._connection = self._connect()
        os.dup(self._connection.fileno())  # never closed: the hub holds JAX's service until this process is gone
        self._send({"hello": self._hosts.process, "of": self._hosts.processes, "host": socket.gethostname(),
                    "pid": os.getpid(), "machine": machine()})
        threading.Thread(target=self._listen, name="odin-watch", daemon=True).start()
        threading.Thread(target=self._tell_step, name="odin-step", daemon=True).start()
        if not self._met.wait(self._timing.start_s + PATIENCE_S):
            raise UserError(self._stranger())
        assert self._meeting is not None
        return self._meeting

    def leave(self) -> None:
        """Wait until every process has come to its end; process 0 goes last.

        Where a container ends with process 0 the hub dies too, and with it the service that the others still hold.
        """
        self._send({"done": True})
        self._released.wait()
        if self._hosts.process == 0:
            self._alone.wait(ALONE_S)

    def fail(self, reason: str, code: int, sure: bool) -> None:
        """Say why this process fails and wait for the verdict; returns when it is indeed this one's fault.

        Not ``sure``: what failed may be the loss of another process, which then ends this one by its own line.
        """
        self._failed = True
        self._send({"step": self.step})
        self._send({"failed": reason, "code": code, "sure": sure})
        self._judged.wait(UNSURE_S + 2.0)
        ender = threading.Timer(END_S, os._exit, (code,))  # threads that hang in a collective do not keep it
        ender.daemon = True
        ender.start()

    def _start_hub(self) -> None:
        port = self._hosts.address[1]
        argv = [sys.executable, "-P", "-m", "odin_jax.parallel.hub", str(port), str(self._hosts.processes),
                self._hosts.coordinator, str(self._timing.start_s), str(self._timing.silence_s)]
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        hub = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "PYTHONPATH": paths}, start_new_session=True, text=True)
        assert hub.stdout is not None
        with hub.stdout:
            line = hub.stdout.readline().strip()
        if line != "ok":
            raise UserError(f"--coordinator {self._hosts.coordinator}: cannot listen on port {port} of "
                            f"{socket.gethostname()} ({line or 'no answer'}); choose another port")

    def _connect(self) -> socket.socket:
        host, port = self._hosts.address
        address = ("localhost" if self._hosts.process == 0 else host, port)
        begin, why, told = time.monotonic(), "", False
        while (waited := time.monotonic() - begin) < self._timing.start_s:
            if waited > SILENT_S and not told:
                told = True
                self._say(f"rank {self._hosts.process} waits for rank 0 at {self._hosts.coordinator}, where nobody "
                          "answers yet", self._timing.start_s - waited)
            try:
                connection = socket.create_connection(address, timeout=min(10.0, self._timing.start_s))
                connection.settimeout(None)
                probe(connection, self._timing.silence_s)
                return connection
            except OSError as error:
                why = error.strerror or str(error)
                time.sleep(RETRY_S)
        raise UserError(f"--coordinator {self._hosts.coordinator}: nobody answers there for {self._timing.start_s:g} "
                        f"s ({why}); start process 0 on that host, and check the address and the firewall")

    @staticmethod
    def _say(line: str, left_s: float) -> None:
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
        print(f"{line}; until {until}, {left_s:.0f} s from now", flush=True)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._connection is not None
        with contextlib.suppress(OSError):  # the listening thread finds a broken connection
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _tell_step(self) -> None:
        told = None
        while True:
            time.sleep(TELL_S)
            if self.step != told:
                told = self.step
                self._send({"step": told})

    def _listen(self) -> None:
        assert self._connection is not None
        lines = self._connection.makefile("rb")
        try:
            for line in lines:
                self._take(json.loads(line))
        except OSError:
            pass
        except (ValueError, KeyError, TypeError):
            end_now(self._stranger(), 2)
        if not self._released.is_set():
            end_now(f"the coordinator at {self._hosts.coordinator}, beside rank 0, was lost: its host went down, "
                    f"all its processes were killed or the network broke; {RESUME}", LOST_CODE)

    def _stranger(self) -> str:
        return (f"--coordinator {self._hosts.coordinator}: what answers there is no coordinator of a training; check "
                "the address")

    def _take(self, message: dict[str, Any]) -> None:
        if "go" in message:
            self._meeting = Meeting(message["go"], tuple(message["hosts"]))
            self._met.set()
        elif "missing" in message:
            missing, all_ = message["missing"], self._hosts.processes
            named = ", ".join(map(str, missing[:NAMED])) + (", …" if len(missing) > NAMED else "")
            self._say(f"{all_ - len(missing)} of {all_} processes have come to {self._hosts.coordinator}, waiting for "
                      f"rank {named}", message["left_s"])
        elif "all_done" in message:
            self._released.set()
        elif "alone" in message:
            self._alone.set()
        elif "end" in message:
            if message["rank"] != self._hosts.process or not self._failed:
                end_now(message["end"], message["code"])
            self._judged.set()
