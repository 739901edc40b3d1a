"""SIGINT and SIGTERM end a run between two steps, so that it can save itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

AGAIN_S = 0.05  # until a signal that was swallowed is sent once more
SHOW_CURSOR = "\x1b[?25h"
TOLD = "\nstopping after this step, once its program is compiled; once more to stop at once, without saving"


def never_swallow() -> None:
    """From now on a KeyboardInterrupt that comes up inside a callback, where Python drops it, comes again.

    JAX has a callback at every garbage collection: a Ctrl-C during one would be lost.
    """
    if getattr(sys.unraisablehook, "func", None) is not _sent_again:
        sys.unraisablehook = partial(_sent_again, sys.unraisablehook)


def _sent_again(shown: Callable[[Any], Any], unraisable: Any) -> None:
    if unraisable.exc_type is not KeyboardInterrupt:
        shown(unraisable)
        return
    again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    again.daemon = True
    again.start()


class Interrupt:
    """Context manager that turns the first SIGINT or SIGTERM into a flag; a second one ends the process at once.

    Python runs handlers between two of its own instructions, and a compilation can keep them waiting for half a minute.
    So the signal's number also comes through a pipe to a thread, which answers at any time.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, quiet: bool = False) -> None:
        """``quiet``: another process tells the user that the run is stopping."""
        self.signal: int | None = None
        self._quiet = quiet
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        threading.Thread(target=self._answer, args=(reading,), name="signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._writing)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = self.signal or number

    def _answer(self, reading: int) -> None:
        """Tell of the first signal and obey the second, until the other end of the pipe is closed."""
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            seen = 0
            while byte := pipe.read(1):
                if byte[0] not in self.SIGNALS:
                    continue
                seen += 1
                if seen == 1 and not self._quiet:
                    print(TOLD, file=sys.stderr)
                if seen == 2:
                    print(SHOW_CURSOR if sys.stdout.isatty() else "", end="", flush=True)
                    os._exit(128 + byte[0])
