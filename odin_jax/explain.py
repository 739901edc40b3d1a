"""Why a run took the time it took: its windows read back, wait accounting and comparisons (design §10)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odin_jax.runs import RunFolder, read_json
from sched.hazards import Action
from splat.errors import UserError

ACTIONS = tuple(action.value for action in Action)
ROWS = ("active", "read", "urgent", "delayed", "alive")
PARTS = ("compute_s", "comm_s", "waits_s", "sent_bytes")  # values by name
SAME_FIELDS = ("scene", "batch", "pipeline")  # of record.json: what a run and its baseline have in common


@dataclass(frozen=True)
class Windows:
    """The windows of a run in the order of their steps; n windows, R ranks."""

    step: np.ndarray  # [n] the unit A before the window
    action: np.ndarray  # [n] one of ACTIONS
    reason: np.ndarray  # [n] text
    rows: dict[str, np.ndarray]  # ROWS → [n] counts
    wall: np.ndarray  # [n] seconds since the window before
    seconds: np.ndarray  # [n, R] seconds of each rank's forward and backward
    compute: dict[str, np.ndarray]  # name → [n] seconds of the first process's compute lane
    comm: dict[str, np.ndarray]  # name → [n] seconds of its communication lane
    waits: dict[str, np.ndarray]  # name → [n] seconds its compute lane stood still
    sent: dict[str, np.ndarray]  # name → [n] bytes that each rank sent

    @property
    def exposed(self) -> np.ndarray:
        """[n] seconds of all waits."""
        return _sum(self.waits, len(self.step))

    @property
    def residual(self) -> np.ndarray:
        """[n] seconds that the compute lane neither computed nor waited for a part: feeding, structural events, …"""
        return np.maximum(self.wall - _sum(self.compute, len(self.step)) - self.exposed, 0)

    @property
    def hidden(self) -> np.ndarray:
        """[n] seconds of communication that no wait showed, part by part."""
        spare = {name: self.comm[name] - self.waits.get(name, 0.0) for name in self.comm}
        return np.maximum(_sum(spare, len(self.step)), 0)

    @property
    def geometry(self) -> np.ndarray:
        """[n] |R⁺(B)| / rows alive, the rows that the next unit may read; nan where no unit followed."""
        share = self.rows["read"] / np.maximum(self.rows["alive"], 1)
        return np.where(self.rows["read"] > 0, share, np.nan)

    @property
    def computational(self) -> np.ndarray:
        """[n] |C_A| / rows alive, the rows that unit A really updated."""
        return self.rows["active"] / np.maximum(self.rows["alive"], 1)

    @property
    def skew(self) -> np.ndarray:
        """[R] share of all time that each rank, done with its views, needed less than the slowest one."""
        slowest = self.seconds.max(axis=1, keepdims=True)
        return (slowest - self.seconds).sum(axis=0) / max(self.wall.sum(), 1e-9)

    @property
    def idle(self) -> np.ndarray:
        """[R] share of all time that each rank spent outside forward and backward."""
        return 1 - self.seconds.sum(axis=0) / max(self.wall.sum(), 1e-9)

    def samples_per_s(self, batch: int) -> float:
        """Views per second over these windows; nan where there is none."""
        return batch * len(self.step) / self.wall.sum() if len(self.step) else float("nan")


@dataclass(frozen=True)
class Explained:
    """A run's folder, read."""

    path: Path
    record: dict[str, Any]
    windows: Windows | None  # None: the run had one device and waited for nobody

    @property
    def name(self) -> str:
        """Short name, for tables and figures."""
        return self.path.resolve().name


@dataclass(frozen=True)
class Compared:
    """A run against a synchronised one."""

    hidden_share: float  # 1 − exposed(run) / exposed(baseline), per window; nan where the baseline never waited
    speed_up: float  # samples/s of the run / of the baseline


def read_run(path: Path, from_step: int = 1) -> Explained:
    """The record and the windows of a run, from ``from_step`` on.

    Raises UserError with file, line and field when something is missing or damaged.
    """
    record = read_json(RunFolder(path).record)
    return Explained(path, record, _read_windows(path / "windows.jsonl", from_step))


def compare(run: Explained, baseline: Explained) -> Compared:
    """What a run hides of the waits of its synchronised ``baseline`` (paper Fig. 19; design §10), per window.

    Raises UserError when one of them has no windows, when they differ in what they trained, or when the baseline
    overlapped something.
    """
    for one in (run, baseline):
        if one.windows is None:
            raise UserError(f"{one.path} has no windows.jsonl: a run on one device waits for nobody; compare runs on "
                            "several ranks")
    ours, theirs = run.windows, baseline.windows
    assert ours is not None and theirs is not None
    named = [(name, run.record.get(name), baseline.record.get(name)) for name in SAME_FIELDS]
    named.append(("ranks", ours.seconds.shape[1], theirs.seconds.shape[1]))
    unlike = [f"{name} {here} against {there}" for name, here, there in named if here != there]
    if unlike:
        raise UserError(f"--baseline {baseline.path} trained something else than {run.path} ({'; '.join(unlike)}); "
                        "train it alike with --path sync")
    loose = int((theirs.action != Action.BARRIER.value).sum())
    if loose:
        raise UserError(f"--baseline {baseline.path} overlapped {loose} of {len(theirs.step)} windows; give a run "
                        "trained with --path sync")
    waited = float(theirs.exposed.mean())
    hidden = 1 - float(ours.exposed.mean()) / waited if waited > 0 else float("nan")
    return Compared(hidden, float(theirs.wall.mean() / ours.wall.mean()))


def decisions(windows: Windows) -> list[tuple[str, str, int]]:
    """(action, reason, windows), the most frequent first."""
    pairs, counts = np.unique(np.stack([windows.action, windows.reason]), axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(str(pairs[0, at]), str(pairs[1, at]), int(counts[at])) for at in order]


def _sum(parts: dict[str, np.ndarray], length: int) -> np.ndarray:
    return sum(parts.values(), start=np.zeros(length))


def _read_windows(path: Path, from_step: int) -> Windows | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it or train again") from error
    lines = [_checked(line, f"{path}, line {at}") for at, line in enumerate(text.splitlines(), 1)]
    kept = [line for line in lines if line["step"] >= from_step]
    if not kept:
        last = max((line["step"] for line in lines), default=0)
        raise UserError(f"{path} has no window from step {from_step} on, the last is of step {last}, and "
                        "steps on one device have none; give a smaller --from-step or train on")
    ranks = [len(line["seconds"]) for line in kept]
    if len(set(ranks)) > 1:
        since = next(line for line in reversed(kept) if len(line["seconds"]) != ranks[-1])["step"] + 1
        raise UserError(f"{path}: seconds are of different numbers of ranks, the run was continued on others; give "
                        f"--from-step {since} to see it on {ranks[-1]}")
    columns = {name: np.array([line[name] for line in kept]) for name in
               ("step", "action", "reason", "wall_s", "seconds", *ROWS)}
    parts = (_by_name([line[part] for line in kept]) for part in PARTS)
    return Windows(columns["step"], columns["action"], columns["reason"], {name: columns[name] for name in ROWS},
                   columns["wall_s"], columns["seconds"], *parts)


def _by_name(values: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """name → [n], zero where a window has no such value; in the order of their first appearance."""
    names = dict.fromkeys(name for each in values for name in each)
    return {name: np.array([float(each.get(name, 0)) for each in values]) for name in names}


def _checked(line: str, where: str) -> dict[str, Any]:
    """A window as it was written. Raises UserError with the field that does not fit."""
    remedy = "restore the file or train again"
    try:
        window = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON; {remedy}") from error
    if not isinstance(window, dict):
        raise UserError(f"{where}: not a window; {remedy}")
    fits = {
        **{name: _is_number(window.get(name)) for name in ("step", "wall_s", *ROWS)},
        **{name: isinstance(window.get(name), dict) and all(map(_is_number, window[name].values())) for name in PARTS},
        "action": window.get("action") in ACTIONS,
        "reason": isinstance(window.get("reason"), str),
        "seconds": isinstance(window.get("seconds"), list) and len(window["seconds"]) > 0
        and all(map(_is_number, window["seconds"])),
    }
    wrong = [name for name, good in fits.items() if not good]
    if wrong:
        raise UserError(f"{where}: {wrong[0]} is missing or of another kind; {remedy}")
    return window


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
