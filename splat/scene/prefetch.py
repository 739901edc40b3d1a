"""Decoded photos on the host within a byte budget, read ahead of time by background threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np

from splat.scene.types import Scene, load_photo

Pixels = tuple[np.ndarray, np.ndarray | None]


class PhotoCache:
    """Least-recently-used cache of decoded photos; ``budget`` bounds what is held and what is being decoded.

    Safe to use from several threads. Use it as a context manager, or call ``close`` when done.
    """

    def __init__(self, scene: Scene, *, budget: int = 2 << 30, threads: int = 2) -> None:
        """
        Args:
            scene: whose photos are read.
            budget: bytes of decoded pixels (and loss weights) held at most.
            threads: background decoders.
        """
        self.scene = scene
        self.budget = budget
        self._held: OrderedDict[int, Future[Pixels]] = OrderedDict()  # least recently used first
        self._used = 0  # bytes of _held, those still being decoded included
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="photo")

    @property
    def held_bytes(self) -> int:
        """Bytes of the photos held or being decoded; never above the budget."""
        return self._used

    def get(self, index: int) -> Pixels:
        """``(rgb, mask)`` of photo ``index``: [H, W, 3] uint8 and [H, W] uint8 or None, at training size.

        The arrays are shared with the cache and read-only.

        Raises:
            UserError: the photo cannot be decoded.
        """
        future = self._request(index)
        return _decoded(self.scene, index) if future is None else future.result()

    def prefetch(self, indices: Iterable[int]) -> None:
        """Start decoding these photos as far as the budget has room; later ones are left out."""
        for index in indices:
            if self._request(index) is None:
                return

    def iterate(self, order: Iterable[int], *, ahead: int = 8) -> Iterator[tuple[int, Pixels]]:
        """Yield ``(index, (rgb, mask))`` in the given order while the next ``ahead`` photos are decoded."""
        window: list[int] = []
        for index in order:
            window.append(index)
            if len(window) > ahead:
                yield self._next(window)
        while window:
            yield self._next(window)

    def close(self) -> None:
        """Stop the threads and forget the photos."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._held.clear()
            self._used = 0

    def __enter__(self) -> PhotoCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, window: list[int]) -> tuple[int, Pixels]:
        index = window.pop(0)
        pixels = self._request(index)
        self.prefetch(self._fitting([index, *window])[1:])
        return index, _decoded(self.scene, index) if pixels is None else pixels.result()

    def _fitting(self, indices: list[int]) -> list[int]:
        """The leading indices that fit the budget together, so that reading ahead never evicts itself."""
        total = np.cumsum([self._size(index) for index in indices])
        return indices[:int(np.searchsorted(total, self.budget, side="right"))]

    def _request(self, index: int) -> Future[Pixels] | None:
        """The photo's future, newly submitted if needed; None where the budget has no room for it now."""
        with self._lock:
            future = self._held.get(index)
            if future is not None:
                self._held.move_to_end(index)
                return future
            size = self._size(index)
            if not self._make_room(size):
                return None
            future = self._pool.submit(_decoded, self.scene, index)
            self._held[index] = future
            self._used += size
            return future

    def _make_room(self, size: int) -> bool:
        if size > self.budget:
            return False
        for index in [index for index, future in self._held.items() if future.done()]:
            if self._used + size <= self.budget:
                break
            del self._held[index]
            self._used -= self._size(index)
        return self._used + size <= self.budget

    def _size(self, index: int) -> int:
        """Bytes of the decoded photo, known from its header; a mask counts where there may be one."""
        photo = self.scene.photos[index]
        masked = photo.mask_path is not None or photo.mask_entry is not None or (
            photo.has_alpha and self.scene.alpha == "mask")
        return photo.width * photo.height * (4 if masked else 3)


def _decoded(scene: Scene, index: int) -> Pixels:
    rgb, mask = load_photo(scene, index)
    rgb.flags.writeable = False
    if mask is not None:
        mask.flags.writeable = False
    return rgb, mask
