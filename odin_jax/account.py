"""Wait accounting (design §10): what every window decided, sent and waited for, and a timeline for Perfetto."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from odin_jax.executor import COMM, COMPUTE, Span
from odin_jax.figures import PICTURES
from odin_jax.runs import RunFolder, StepLines, forget, write_json
from odin_jax.window import Window

TIMELINE = "trace.json"
TRACED = 300  # newest windows that the timeline shows


class Account:
    """Sums over the windows of this process; the first process also writes them down one by one."""

    def __init__(self, run: RunFolder | None, step: int, trains: bool = True):
        """``run`` None: another process writes. Windows after ``step``, of an earlier try, leave the file.

        ``trains``: there are steps to come, which the timeline and the pictures of an earlier try do not show.
        """
        self._run = run
        self._lines = None if run is None else StepLines(run.path / "windows.jsonl", step)
        if run is not None and trains:
            forget(run.path / TIMELINE, *(run.path / "report" / name for name in PICTURES))
        self._spans: deque[list[Span]] = deque(maxlen=TRACED)
        self._decisions: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._comm: Counter[str] = Counter()
        self._windows = self._ranks = 0
        self._since: float | None = None  # end of the window before; None before the first
        self._clock = time.time() - time.perf_counter()  # spans of processes of one host on one clock
        self._compute = self._wall = 0.0

    def window(self, window: Window) -> None:
        """Add a window."""
        times, decision = window.times, window.decision
        compute, comm = (_busy(times.spans, lane) for lane in (COMPUTE, COMM))
        wall = self._lap(times.spans)
        self._windows, self._ranks = self._windows + 1, len(window.seconds)
        self._decisions[f"{decision.action.value}: {decision.reason}"] += 1
        self._waits.update(times.waits)
        self._sent.update(times.sent)
        self._rows.update({name: getattr(window, name) for name in ("active", "read", "urgent", "delayed", "alive")})
        self._comm.update(comm)
        self._compute += sum(compute.values())
        self._wall += wall
        self._spans.append(times.spans)
        if self._lines is not None:
            busy = {"wall_s": wall, "compute_s": compute, "comm_s": comm, "waits_s": times.waits}
            self._lines.add(_line(window, busy))

    def close(self, gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
        """What the record keeps, and the timeline written. ``gather`` gives the values of all processes."""
        own = {"wall_s": self._wall, "compute_s": self._compute, "waits_s": dict(self._waits),
               "spans": [[span.lane, span.unit, span.name, span.start + self._clock, span.end + self._clock]
                         for spans in self._spans for span in spans]}
        processes = gather(own)
        if not self._windows:
            return {}
        if self._run is not None:
            write_json(self._run.path / TIMELINE, _trace([process["spans"] for process in processes], self._ranks))
        mean = {f"mean_{name}": count / self._windows for name, count in self._rows.items()}
        ranks = [{**{name: process[name] for name in ("wall_s", "compute_s", "waits_s")},
                  "idle_share": 1 - process["compute_s"] / max(process["wall_s"], 1e-9)} for process in processes]
        return {"windows": self._windows, "decisions": dict(self._decisions), "waits_s": dict(self._waits),
                "exposed_s": sum(self._waits.values()), "compute_s": self._compute,
                "comm_s": dict(self._comm), "sent_bytes": dict(self._sent),
                **mean, "processes": ranks}

    def _lap(self, spans: list[Span]) -> float:
        """Seconds since the window before; since the first bar where there was none."""
        now = time.perf_counter()
        since = self._since if self._since is not None else min((span.start for span in spans), default=now)
        self._since = now
        return now - since


def _busy(spans: list[Span], lane: str) -> dict[str, float]:
    """Seconds of a lane's bars by name."""
    seconds: dict[str, float] = {}
    for span in spans:
        if span.lane == lane:
            seconds[span.name] = seconds.get(span.name, 0.0) + span.end - span.start
    return seconds


def _line(window: Window, busy: dict[str, Any]) -> dict[str, Any]:
    """One window as JSON values; ``busy``: its seconds, whole or by name."""
    rounded = {name: {part: round(value, 6) for part, value in seconds.items()} if isinstance(seconds, dict)
               else round(seconds, 6) for name, seconds in busy.items()}
    return {"step": window.step, "action": window.decision.action.value, "reason": window.decision.reason,
            "active": window.active, "read": window.read, "urgent": window.urgent, "delayed": window.delayed,
            "alive": window.alive, "loss": window.loss, "seconds": [round(float(s), 6) for s in window.seconds],
            **rounded, "sent_bytes": window.times.sent}


def _trace(processes: list[list[list[Any]]], ranks: int) -> dict[str, Any]:
    """Spans of all processes as a Chrome trace: a thread per lane, µs. The ``ranks`` of one process share its lanes."""
    events: list[dict[str, Any]] = []
    first = min((span[3] for spans in processes for span in spans), default=0.0)
    for process, spans in enumerate(processes):
        each = ranks // len(processes)
        mine = ", ".join(str(rank) for rank in range(process * each, (process + 1) * each))
        events.append({"ph": "M", "pid": process, "tid": 0, "name": "process_name",
                       "args": {"name": f"process {process}: rank {mine}"}})
        for lane, name in enumerate((COMPUTE, COMM)):
            events.append({"ph": "M", "pid": process, "tid": lane, "name": "thread_name", "args": {"name": name}})
        events += [{"ph": "X", "pid": process, "tid": int(lane == COMM), "name": f"{name} {unit}", "cat": name,
                    "ts": (start - first) * 1e6, "dur": (end - start) * 1e6, "args": {"unit": unit}}
                   for lane, unit, name, start, end in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
