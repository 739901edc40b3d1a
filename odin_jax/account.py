"""Wait accounting (design §10): what every window decided, sent and waited for, and a timeline for Perfetto."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from odin_jax.executor import COMM, COMPUTE, Span
from odin_jax.runs import RunFolder, write_json
from odin_jax.window import Window

TRACED = 300  # newest windows that the timeline shows


class Account:
    """Sums over the windows of this process; the first process also writes them down one by one."""

    def __init__(self, run: RunFolder | None, step: int):
        """``run`` None: another process writes. Windows after ``step``, of an earlier try, leave the file."""
        self._run = run
        self._file = None
        self._kept = _kept_lines(run, step) if run is not None else []
        self._spans: deque[list[Span]] = deque(maxlen=TRACED)
        self._decisions: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._windows = 0
        self._since = time.perf_counter()
        self._clock = time.time() - time.perf_counter()  # spans of processes of one host on one clock
        self._compute = 0.0

    def window(self, window: Window) -> None:
        """Add a window."""
        times, decision = window.times, window.decision
        self._windows += 1
        self._decisions[f"{decision.action.value}: {decision.reason}"] += 1
        self._waits.update(times.waits)
        self._sent.update(times.sent)
        self._rows.update({name: getattr(window, name) for name in ("active", "read", "urgent", "delayed", "alive")})
        self._compute += sum(span.end - span.start for span in times.spans if span.lane == COMPUTE)
        self._spans.append(times.spans)
        if self._run is not None:
            self._write(json.dumps(_line(window)))

    def close(self, gather: Callable[[Any], list[Any]]) -> dict[str, Any]:
        """What the record keeps, and the timeline written. ``gather`` gives the values of all processes."""
        if self._file is not None:
            self._file.close()
        wall = time.perf_counter() - self._since
        own = {"wall_s": wall, "compute_s": self._compute, "waits_s": dict(self._waits),
               "spans": [[span.lane, span.unit, span.name, span.start + self._clock, span.end + self._clock]
                         for spans in self._spans for span in spans]}
        processes = gather(own)
        if not self._windows:
            return {}
        if self._run is not None:
            write_json(self._run.path / "trace.json", _trace([process["spans"] for process in processes]))
        mean = {f"mean_{name}": count / self._windows for name, count in self._rows.items()}
        ranks = [{"compute_s": process["compute_s"], "waits_s": process["waits_s"],
                  "idle_share": 1 - process["compute_s"] / max(process["wall_s"], 1e-9)} for process in processes]
        return {"windows": self._windows, "decisions": dict(self._decisions), "waits_s": dict(self._waits),
                "exposed_s": sum(self._waits.values()), "compute_s": self._compute, "sent_bytes": dict(self._sent),
                **mean, "processes": ranks}

    def _write(self, line: str) -> None:
        if self._file is None:
            assert self._run is not None
            self._file = (self._run.path / "windows.jsonl").open("w", buffering=1)
            self._file.writelines(self._kept)
        self._file.write(line + "\n")


def _kept_lines(run: RunFolder, step: int) -> list[str]:
    """Lines of an earlier try whose windows come before ``step``."""
    path = run.path / "windows.jsonl"
    if not path.exists():
        return []
    with path.open() as file:
        return [line for line in file if line.endswith("}\n") and json.loads(line)["step"] <= step]


def _line(window: Window) -> dict[str, Any]:
    """One window as JSON values."""
    return {"step": window.step, "action": window.decision.action.value, "reason": window.decision.reason,
            "active": window.active, "read": window.read, "urgent": window.urgent, "delayed": window.delayed,
            "alive": window.alive, "loss": window.loss, "seconds": [round(float(s), 6) for s in window.seconds],
            "waits_s": {name: round(value, 6) for name, value in window.times.waits.items()},
            "sent_bytes": window.times.sent}


def _trace(processes: list[list[list[Any]]]) -> dict[str, Any]:
    """Spans of all processes as a Chrome trace: a process per rank's process, a thread per lane; µs."""
    events: list[dict[str, Any]] = []
    first = min((span[3] for spans in processes for span in spans), default=0.0)
    for process, spans in enumerate(processes):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"process {process}"}})
        for lane, name in enumerate((COMPUTE, COMM)):
            events.append({"ph": "M", "pid": process, "tid": lane, "name": "thread_name", "args": {"name": name}})
        events += [{"ph": "X", "pid": process, "tid": int(lane == COMM), "name": f"{name} {unit}", "cat": name,
                    "ts": (start - first) * 1e6, "dur": (end - start) * 1e6, "args": {"unit": unit}}
                   for lane, unit, name, start, end in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
