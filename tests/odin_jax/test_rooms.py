"""Rooms for pairs: large enough after a widening, few, and the same after a round trip through JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from odin_jax.rooms import PairRooms

SIZE = (64, 48)


@given(first=st.integers(0, 10**6), wanted=st.integers(1, 10**7))
def test_a_widened_room_holds_what_was_wanted(first, wanted):
    rooms = PairRooms()
    rooms.open(SIZE, first)
    before = rooms.rooms[SIZE]
    rooms.widen(SIZE, wanted)
    assert rooms.rooms[SIZE] >= wanted
    assert rooms.rooms[SIZE] > before


def test_a_scene_that_grows_a_hundredfold_needs_few_rooms():
    rooms, used, pairs = PairRooms(), set(), 5_000.0
    rooms.open(SIZE, 5_000)
    while pairs < 500_000:
        if pairs > rooms.rooms[SIZE]:
            rooms.widen(SIZE, int(pairs))
        rooms.observe(SIZE, int(pairs))
        used.add(rooms.rooms[SIZE])
        pairs *= 1.01
    assert len(used) <= 14


def test_a_rebuild_follows_the_recent_peak_and_the_expected_growth():
    rooms = PairRooms()
    rooms.open(SIZE, 400_000)
    for _ in range(500):
        rooms.observe(SIZE, 50_000)
    rooms.rebuild(1.5)
    assert 75_000 <= rooms.rooms[SIZE] < 150_000


def test_rooms_survive_json():
    rooms = PairRooms()
    rooms.open(SIZE, 12_345)
    rooms.open((32, 32), 77)
    rooms.observe(SIZE, 20_000)
    assert PairRooms.from_json(json.loads(json.dumps(rooms.to_json()))) == rooms
