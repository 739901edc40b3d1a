import threading
import time

import numpy as np
import pytest

import splat.scene.prefetch as prefetch
from splat.errors import UserError
from splat.scene.load import load_scene
from splat.scene.prefetch import PhotoCache
from splat.scene.types import Scene, load_photo
from tests.splat.tiny_capture import write_capture

NAMES = [f"{i:02d}.png" for i in range(12)]
SIZE = 64 * 48 * 3  # bytes of one decoded photo


@pytest.fixture
def scene(tmp_path) -> Scene:
    return load_scene(write_capture(tmp_path, NAMES))


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """Indices in the order in which they were decoded."""
    calls: list[int] = []

    def counted(scene: Scene, index: int):
        calls.append(index)
        return load_photo(scene, index)

    monkeypatch.setattr(prefetch, "load_photo", counted)
    return calls


def test_photos_come_in_the_given_order_with_the_right_pixels(scene):
    order = [3, 1, 1, 11, 0, 7, 3, 2]
    with PhotoCache(scene, budget=4 * SIZE) as cache:
        seen = list(cache.iterate(order, ahead=3))
    assert [index for index, _ in seen] == order
    for index, (rgb, mask) in seen:
        np.testing.assert_array_equal(rgb, load_photo(scene, index)[0])
        assert mask is None and not rgb.flags.writeable


def test_with_room_for_all_each_photo_is_decoded_once(scene, decoded):
    with PhotoCache(scene, budget=len(NAMES) * SIZE) as cache:
        for _ in range(3):
            list(cache.iterate(range(len(NAMES)), ahead=5))
    assert sorted(decoded) == list(range(len(NAMES)))


@pytest.mark.parametrize("room", [0.5, 1, 2.5, 5])
def test_the_budget_is_never_exceeded_and_reading_ahead_does_not_evict_itself(scene, decoded, room):
    budget = int(room * SIZE)
    with PhotoCache(scene, budget=budget, threads=3) as cache:
        for _, _pixels in cache.iterate(range(len(NAMES)), ahead=8):
            assert cache.held_bytes <= budget
            assert cache.held_bytes <= len(cache._held) * SIZE
    assert sorted(decoded) == list(range(len(NAMES)))


def test_the_least_recently_used_photo_goes_first(scene, decoded):
    with PhotoCache(scene, budget=2 * SIZE) as cache:
        for index in (0, 1, 0, 2, 0):
            cache.get(index)
        assert decoded == [0, 1, 2]
        cache.get(1)
    assert decoded == [0, 1, 2, 1]


def test_the_next_photos_are_decoded_while_one_is_used(scene, decoded):
    with PhotoCache(scene, budget=6 * SIZE) as cache:
        photos = cache.iterate(range(len(NAMES)), ahead=3)
        assert next(photos)[0] == 0
        deadline = time.monotonic() + 20
        while len(decoded) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(decoded) == [0, 1, 2, 3]


def test_masks_count_in_the_budget(tmp_path):
    scene = load_scene(write_capture(tmp_path, NAMES, channels=4))
    with PhotoCache(scene, budget=10 * SIZE) as cache:
        rgb, mask = cache.get(0)
        assert mask is not None and cache.held_bytes == rgb.nbytes + mask.nbytes


def test_a_broken_photo_raises_where_it_is_asked_for(scene):
    scene.photos[2].path.write_bytes(b"gone")
    with PhotoCache(scene, budget=8 * SIZE) as cache:
        cache.prefetch([1, 2, 3])
        cache.get(1), cache.get(3)
        with pytest.raises(UserError, match=r"02\.png"):
            cache.get(2)


def test_many_threads_may_ask_at_once(scene):
    truth = [load_photo(scene, index)[0] for index in range(len(NAMES))]
    wrong: list[int] = []
    with PhotoCache(scene, budget=3 * SIZE, threads=2) as cache:

        def work(seed: int) -> None:
            for index in np.random.default_rng(seed).integers(0, len(NAMES), 40):
                if (
                    not np.array_equal(cache.get(int(index))[0], truth[index])
                    or cache.held_bytes > cache.budget
                ):
                    wrong.append(int(index))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
