"""Processes that meet: the hub and its verdicts, coming to it, and what each takes of a machine."""

from __future__ import annotations

import errno
import json
import re
import select
import socket
import subprocess
import sys
import threading

import jax
import pytest

from odin_jax.launch import free_port
from odin_jax.parallel import hub, join, watch
from odin_jax.parallel.hosts import Hosts
from odin_jax.parallel.join import share_of_gpus, visible_gpus
from odin_jax.parallel.watch import Meeting, Timing, Watch
from splat.errors import UserError

# The hub, spoken to by plain sockets


class Peer:
    """A process as the hub sees it."""

    def __init__(self, port: int, rank: int, of: int = 2):
        self.socket = socket.create_connection(("localhost", port))
        self.socket.settimeout(5)
        self.lines = self.socket.makefile("rb")
        self.say({"hello": rank, "of": of, "host": f"h{rank}", "pid": 10 + rank, "machine": "m"})

    def say(self, message: dict) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, key: str) -> dict:
        """The next message with ``key``."""
        return next(message for message in map(json.loads, self.lines) if key in message)

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@pytest.fixture
def start_hub(monkeypatch):
    """Starts a hub in a thread and gives its port; at the end it must have ended by itself."""
    monkeypatch.setattr(hub, "UNSURE_S", 0.5)
    threads, servers = [], []

    def start(start_s: float = 5.0, silence_s: float = 5.0, service=lambda: 77) -> int:
        server = hub.listen(0)
        watched = hub.Hub(server, 2, "here:1", start_s, silence_s, service)
        threads.append(threading.Thread(target=watched.serve, daemon=True))
        threads[-1].start()
        servers.append(server)
        return server.getsockname()[1]

    yield start
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    for server in servers:
        server.close()


def test_all_come_and_none_leaves_before_the_last(start_hub):
    port = start_hub()
    first = Peer(port, 1)
    second = Peer(port, 0)
    assert [peer.hear("go") for peer in (first, second)] == 2 * [{"go": 77, "hosts": ["m", "m"]}]
    first.say({"done": True})
    assert select.select([first.socket], [], [], 0.3)[0] == []
    second.say({"done": True})
    assert first.hear("all_done") and second.hear("all_done")
    first.close()
    assert second.hear("alone")
    second.close()


@pytest.mark.parametrize("lost", [0, 1])
def test_the_lost_one_is_named_with_its_last_step(start_hub, lost):
    port = start_hub()
    peers = [Peer(port, rank) for rank in range(2)]
    peers[lost].hear("go")
    peers[lost].say({"step": 42})
    peers[lost].close()
    verdict = peers[1 - lost].hear("end")
    expected = rf"rank {lost} \(host h{lost}, pid 1{lost}\) was lost at about step 42, killed or crashed; the last ch"
    assert re.match(expected, verdict["end"])
    assert (verdict["rank"], verdict["code"]) == (lost, 1)
    peers[1 - lost].close()


def test_one_whose_host_does_not_answer_is_lost(monkeypatch, start_hub):
    """The kernel's probes end a connection with ETIMEDOUT; a machine that goes dark is not to be had here."""
    class Dark(socket.socket):
        def recv(self, size: int, flags: int = 0) -> bytes:
            data = super().recv(size, flags)
            if data == b"dark":
                assert self.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert self.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
                raise OSError(errno.ETIMEDOUT, "Connection timed out")
            return data

    monkeypatch.setattr(socket, "socket", Dark)
    port = start_hub()
    peers = [Peer(port, rank) for rank in range(2)]
    peers[1].hear("go")
    peers[1].socket.sendall(b"dark")
    line = peers[0].hear("end")["end"]
    assert "rank 1 (host h1, pid 11) was lost before its first step, its host does not answer (Connection timed" in line
    for peer in peers:
        peer.close()


def test_the_reason_of_a_failure_reaches_the_others(start_hub):
    port = start_hub()
    peers = [Peer(port, rank) for rank in range(2)]
    peers[1].say({"step": 3})
    peers[1].say({"failed": "photo 7.png is broken", "code": 2, "sure": True})
    verdict = peers[0].hear("end")
    assert verdict["end"] == "rank 1 (host h1, pid 11) stopped at about step 3: photo 7.png is broken"
    assert (verdict["rank"], verdict["code"]) == (1, 2)
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("dies", [True, False])
def test_a_failure_that_may_be_anothers_fault_waits_for_the_better_reason(start_hub, dies):
    port = start_hub()
    peers = [Peer(port, rank) for rank in range(2)]
    peers[0].say({"failed": "ValueError: connection reset", "code": 1, "sure": False})
    if dies:
        peers[1].close()
    verdict = peers[0].hear("end")
    assert verdict["rank"] == (1 if dies else 0)
    assert ("connection reset" in verdict["end"]) is not dies
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    ("rank", "of", "named"),
    [(0, 2, "rank 0 (host h0, pid 10) and rank 0 (host h0, pid 10) have the same process id"),
     (1, 3, "rank 1 (host h1, pid 11) was started for 3 processes, rank 0 for 2"),
     (None, 2, "rank 1 of 2 did not come to here:1 within 0.6 s")],
)
def test_processes_that_do_not_fit_together_all_hear_why(start_hub, rank, of, named):
    port = start_hub(start_s=0.6 if rank is None else 5.0)
    peers = [Peer(port, 0), *([Peer(port, rank, of)] if rank is not None else [])]
    for peer in peers:
        assert named in peer.hear("end")["end"]
    for peer in peers:
        peer.close()


def test_one_who_comes_while_a_training_runs_is_sent_away_and_nobody_else_hears_of_it(start_hub):
    port = start_hub()
    peers = [Peer(port, rank) for rank in range(2)]
    for peer in peers:
        peer.hear("go")
    for late in (Peer(port, 1), Peer(port, 2, 3)):
        assert "already serves a training" in late.hear("end")["end"]
        late.close()
    peers[0].say({"failed": "no such folder", "code": 2, "sure": True})
    assert "no such folder" in peers[1].hear("end")["end"]
    for peer in peers:
        peer.close()


def test_one_who_comes_after_the_verdict_hears_it_and_strangers_are_sent_away(start_hub):
    port = start_hub()
    with socket.create_connection(("localhost", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        stranger.settimeout(5)
        assert stranger.recv(10) == b""
    early = Peer(port, 1)
    early.say({"failed": "no such folder", "code": 2, "sure": True})
    early.hear("end")
    late = Peer(port, 0)
    assert "no such folder" in late.hear("end")["end"]
    early.close()
    late.close()


def test_the_first_rank_hears_who_has_not_come(start_hub, monkeypatch):
    monkeypatch.setattr(hub, "WORD_S", 0.3)
    port = start_hub(start_s=60.0)
    first = Peer(port, 0)
    word = first.hear("missing")
    assert word["missing"] == [1] and 55 <= word["left_s"] <= 60
    second = Peer(port, 1)
    assert second.hear("go")
    for peer in (first, second):
        peer.close()


def test_a_coordination_service_that_does_not_start_is_told_to_all(start_hub):
    def changed() -> int:
        raise TypeError("unexpected keyword argument")

    port = start_hub(service=changed)
    peers = [Peer(port, rank) for rank in range(2)]
    for peer in peers:
        assert "service does not start at here:1 (unexpected keyword argument)" in peer.hear("end")["end"]
        peer.close()


# Coming to the hub


def test_what_a_rank_waits_for_is_one_line_with_the_time_it_ends(capsys, monkeypatch):
    first = Watch(Hosts("here:1", 20, 0, "options"), Timing())
    first._take({"missing": [3], "left_s": 90})
    first._take({"missing": list(range(1, 11)), "left_s": 30})
    one, many = capsys.readouterr().out.splitlines()
    said = r"19 of 20 processes have come to here:1, waiting for rank 3; until \d\d:\d\d:\d\d, 90 s from now"
    assert re.fullmatch(said, one)
    assert "10 of 20 " in many and "rank 1, 2, 3, 4, 5, 6, 7, 8, …; until" in many
    monkeypatch.setattr(watch, "SILENT_S", 0)
    with pytest.raises(UserError, match="nobody answers"):
        Watch(Hosts(f"127.0.0.1:{free_port()}", 2, 1, "options"), Timing(start_s=0.6)).meet()
    out = capsys.readouterr().out
    assert out.startswith("rank 1 waits for rank 0 at 127.0.0.1:") and out.count("\n") == 1


def test_a_port_in_use_is_named():
    with hub.listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127.0.0.1:{port}: cannot listen on port {port}.*choose another port"):
            Watch(Hosts(f"127.0.0.1:{port}", 2, 0, "options"), Timing()).meet()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_coordinator_that_does_not_answer_is_named(host):
    address = f"{host}:{free_port()}"
    with pytest.raises(UserError, match=rf"--coordinator {address}: nobody answers there for 0.3 s"):
        Watch(Hosts(address, 2, 1, "options"), Timing(start_s=0.3)).meet()


def met_by(answer, prelude: str = "", timing: str = "") -> tuple[str, int]:
    """What a process says that comes to a coordinator which ``answer(connection)`` speaks for, and its exit code."""
    code = (f"import sys; from odin_jax.parallel import watch; {prelude}\n"
            f"watch.Watch(watch.Hosts('127.0.0.1:' + sys.argv[1], 2, 1, 'options'), watch.Timing({timing})).meet()")
    with hub.listen(0) as server:
        argv = [sys.executable, "-c", code, str(server.getsockname()[1])]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            with connection:
                answer(connection)
                said = process.communicate(timeout=30)[1]
    return said, process.returncode


@pytest.mark.parametrize(("banner", "raises"), [(b"SSH-2.0-x\r\n", False), (b'{"go": 1}\n', False), (b"[1]\n", True),
                                                (b"", True)])
def test_something_else_at_the_coordinators_address_is_named(banner, raises):
    """At once where it speaks, by a UserError where nothing of use comes."""
    said, code = met_by(lambda connection: connection.sendall(banner), "watch.PATIENCE_S = 0.2", "start_s=0.3")
    assert re.search(r"--coordinator 127.0.0.1:\d+: what answers there is no coordinator of a training", said)
    assert code == (1 if raises else 2) and ("UserError" in said) == raises


def test_the_loss_of_the_hub_ends_a_process_that_waits():
    def hears_and_goes(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.close()

    said, code = met_by(hears_and_goes)
    assert re.fullmatch(r"odin: the coordinator at 127.0.0.1:\d+, beside rank 0, was lost.*resumes\n", said)
    assert code == 1


def test_a_jax_with_another_distributed_client_is_named(monkeypatch):
    from jax._src.lib import _jax

    def changed(address, rank):
        pytest.fail("called")

    monkeypatch.setattr(_jax, "get_distributed_runtime_client", changed)
    with pytest.raises(UserError, match=r"several processes do not run with JAX .*unexpected keyword.*install jax=="):
        join._connect(Hosts("here:1", 2, 0, "options"), Meeting(1, ("a", "a")))
    assert not jax.distributed.is_initialized()


def test_gpus_of_a_machine_are_shared_by_its_processes():
    shares = [share_of_gpus(8, ("a", "b", "a", "b", "a"), rank) for rank in range(5)]
    assert shares == [[0, 1], [0, 1, 2, 3], [2, 3], [4, 5, 6, 7], [4, 5]]
    assert share_of_gpus(1, ("a", "a"), 1) == []  # bound to one each already
    assert share_of_gpus(4, ("a", "b"), 1) == []  # all are its own
    assert visible_gpus({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0,1"}) == 0
