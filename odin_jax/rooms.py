"""How much room for tile-row pairs each image size gets: few static sizes, so that programs compile rarely.

A larger room costs a little sorting; a new room costs a compilation of seconds. So a room has generous
headroom, and changes only after an overflow or when the programs are rebuilt anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from splat.render import pair_bucket

HEADROOM = 1.25  # room wanted over the most pairs seen
WIDER = 1.4  # room wanted over the pairs that did not fit

Size = tuple[int, int]  # width, height in pixels


@dataclass
class PairRooms:
    """The current room and the most pairs seen lately, per image size; part of every checkpoint."""

    rooms: dict[Size, int] = field(default_factory=dict)
    seen: dict[Size, int] = field(default_factory=dict)

    def observe(self, size: Size, pairs: int) -> None:
        """Note the pairs of one rendered view; old peaks fade by 1 % per view."""
        self.seen[size] = max(pairs, int(self.seen.get(size, 0) * 0.99))

    def open(self, size: Size, pairs: int, growth: float = 1.0) -> None:
        """First room for an image size whose views list up to ``pairs`` pairs, which may grow by that factor."""
        self.seen[size] = pairs
        self.rooms[size] = pair_bucket(int(pairs * HEADROOM * growth))

    def widen(self, size: Size, pairs: int) -> None:
        """A larger room after an overflow in which ``pairs`` pairs were wanted."""
        self.seen[size] = max(pairs, self.seen.get(size, 0))
        self.rooms[size] = pair_bucket(max(int(pairs * WIDER), self.rooms[size] + 1))

    def rebuild(self, growth: float) -> None:
        """New rooms while programs are rebuilt anyway; pairs may grow by that factor until the next time."""
        for size, pairs in self.seen.items():
            self.rooms[size] = pair_bucket(int(pairs * HEADROOM * growth))

    def to_json(self) -> list[list[int]]:
        """[width, height, room, seen] per size."""
        return [[*size, room, self.seen[size]] for size, room in sorted(self.rooms.items())]

    @staticmethod
    def from_json(rows: list[list[int]]) -> PairRooms:
        """The inverse of ``to_json``."""
        return PairRooms({(w, h): room for w, h, room, _ in rows}, {(w, h): seen for w, h, _, seen in rows})
