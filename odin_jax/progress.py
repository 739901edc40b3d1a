"""What a person sees while a run goes: one live line on a terminal, plain lines elsewhere, TensorBoard."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]  # made at run time

PLAIN_EVERY_S = 10.0  # seconds between lines where there is no terminal
SMOOTHING = 0.95  # share of the old value in the running means of loss and error


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


@dataclass(frozen=True)
class StepNumbers:
    """What one step reports."""

    step: int
    loss: float
    mse: float  # mean squared colour error, 0..1
    gaussians: int
    pairs: int  # tile-row pairs of the largest view
    samples: int  # views in the unit


class Progress:
    """Running means and the line made of them. Use as a context manager."""

    def __init__(self, first_step: int, iterations: int, quiet: bool = False):
        """``quiet``: another process shows the line."""
        self._first, self._iterations = first_step, iterations
        self._start = self._spoken = time.perf_counter()
        self._samples = self._steps = 0
        self.loss = self.mse = math.nan
        self._console = Console(quiet=quiet)
        terminal = self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=4) if terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        if self._first <= self._iterations:
            self.say("compiling the first step; on a CPU that can take a minute")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    @property
    def samples_per_s(self) -> float:
        """Trained views per second after this process's first step, which compiles; 0 before the second one."""
        return self._samples / max(time.perf_counter() - self._start, 1e-9)

    @property
    def psnr(self) -> float:
        """Running mean of the training PSNR, dB."""
        return -10 * math.log10(max(self.mse, 1e-12)) if self.mse == self.mse else math.nan

    def numbers(self) -> dict[str, float]:
        """What the record keeps of this process's steps; empty when there was none."""
        if not self._steps:
            return {}
        speed = {"samples_per_s": self.samples_per_s} if self._samples else {}
        return {**speed, "train_psnr": self.psnr, "train_loss": self.loss}

    def step(self, numbers: StepNumbers) -> None:
        """Take one step's numbers and refresh the line."""
        keep = SMOOTHING if self.loss == self.loss else 0.0
        self.loss = numbers.loss if keep == 0 else keep * self.loss + (1 - keep) * numbers.loss
        self.mse = numbers.mse if keep == 0 else keep * self.mse + (1 - keep) * numbers.mse
        now = time.perf_counter()
        if self._steps == 0:
            self._start = now
        else:
            self._samples += numbers.samples
        self._steps += 1
        last = numbers.step == self._iterations
        if self._live:
            self._live.update(Text(self.line(numbers)), refresh=last)
        elif last or now - self._spoken >= PLAIN_EVERY_S:
            self._spoken = now
            self.say(self.line(numbers))

    def line(self, numbers: StepNumbers) -> str:
        """step, loss, PSNR, Gaussians, samples/s, time left."""
        left = "?"
        if self._steps > 1:
            spent = time.perf_counter() - self._start
            left = duration(spent / (self._steps - 1) * (self._iterations - numbers.step))
        return (
            f"step {numbers.step}/{self._iterations}  loss {self.loss:.4f}  PSNR {self.psnr:.2f} dB  "
            f"Gaussians {numbers.gaussians:,}  {self.samples_per_s:.2f} samples/s  left {left}"
        )

    def say(self, line: str) -> None:
        """Print a line of its own, above the live line where there is one."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Scalars:
    """TensorBoard's files, or nothing when the folder is None.

    Written by the thread that calls: SummaryWriter's own thread dies of a full disk and then blocks the training.
    A file that cannot be written is told once and the training goes on without.
    """

    def __init__(self, folder: Path | None, first_step: int):
        self._file: EventsWriter | None = None
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = EventsWriter(str(folder / "events"))
        except OSError as error:
            self._give_up(error)
        self._write(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))  # hides later steps

    def step(self, numbers: StepNumbers, progress: Progress) -> None:
        """Scalars of one step."""
        values = {
            "train/loss": progress.loss,
            "train/psnr": progress.psnr,
            "train/samples_per_s": progress.samples_per_s,
            "state/gaussians": numbers.gaussians,
            "state/pairs": numbers.pairs,
        }
        for name, value in values.items():
            self.scalar(name, value, numbers.step)

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        """One [H, W, 3] uint8 image."""
        if self._file is not None:
            self._write(Event(step=step, summary=summary.image(name, pixels, dataformats="HWC")))

    def scalar(self, name: str, value: float, step: int) -> None:
        """One number."""
        if self._file is not None:
            self._write(Event(step=step, summary=summary.scalar(name, value)))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def _write(self, event: Any) -> None:
        if self._file is None:
            return
        event.wall_time = time.time()
        try:
            self._file.write_event(event)
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._file = None
        print(f"note: TensorBoard files cannot be written ({error.strerror}); the training goes on without them")
