"""The communication lane: a thread that runs collectives one after the other, in the order in which they were given.

All processes give the same collectives in the same order, so none waits for one that another has not started.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from odin_jax.executor import COMM, Times


class Lane:
    """Runs what it is given beside the calling thread, the compute lane, and notes both in ``times``."""

    def __init__(self, times: Times):
        self._times = times
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="communication")

    def send(self, unit: int, name: str, run: Callable[[], Any]) -> Future[Any]:
        """Start ``run`` after all that was given before; its bar in the timeline has a unit and a name."""
        return self._thread.submit(self._timed, unit, name, run)

    def wait(self, name: str, part: Future[Any]) -> Any:
        """What a part gave; the compute lane stands still until then."""
        start = time.perf_counter()
        result = part.result()
        self._times.wait(name, start)
        return result

    def close(self) -> None:
        """Start no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _timed(self, unit: int, name: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(run())
        self._times.span(COMM, unit, name, start)
        return result
