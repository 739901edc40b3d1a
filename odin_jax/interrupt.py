"""SIGINT and SIGTERM end a run between two steps, so that it can save itself."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupt:
    """Context manager that turns the first SIGINT or SIGTERM into a flag; a second one acts as usual."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        self._restore()
