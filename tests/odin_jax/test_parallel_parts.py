"""Small parts of the runtime: lists in pieces, views to ranks, one shape for all ranks, decisions, state on ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from captures import write_capture
from hypothesis import given
from hypothesis import strategies as st

from odin_jax.admission import BROAD, Admission, Counts
from odin_jax.balance import Balance
from odin_jax.parallel import same_scene
from odin_jax.parallel.alike import alike
from odin_jax.publish import PIECES, pieces, room_for
from sched.hazards import Action
from splat.cameras import Camera
from splat.errors import UserError
from splat.loss import photometric
from splat.pipelines.protocol import View
from splat.scene.load import load_scene
from splat.scene.types import Photo


@given(st.integers(0, 300_000))
def test_pieces_cover_a_list_once_with_few_lengths_and_little_padding(rows):
    found = pieces(rows)
    assert [first for first, _ in found] == list(np.cumsum([0, *(length for _, length in found)])[:-1])
    assert 0 <= sum(length for _, length in found) - rows < min(PIECES)
    assert {length for _, length in found} <= set(PIECES)


@given(st.integers(1, 100_000), st.sampled_from([1, 2, 8]))
def test_a_room_holds_its_list_and_grows_in_few_steps(rows, grain):
    room = room_for(rows, 1 << 20, grain)
    assert rows <= room <= max(256, rows * (1 + 1 / grain) + 1) and room_for(room, 1 << 20, grain) == room
    assert room_for(rows, rows, grain) == rows and room_for(0, rows, grain) == 0


@given(st.integers(1, 8), st.integers(1, 4), st.booleans(), st.randoms())
def test_each_rank_gets_as_many_views_and_every_view_runs_once(ranks, slots, dynamic, random):
    views = np.array(random.sample(range(100), ranks * slots))
    balance = Balance(ranks, dynamic, True, {view: random.randint(1, 1000) for view in range(0, 100, 2)})
    given_ = balance.assign(views)
    assert given_.shape == (ranks, slots) and sorted(given_.ravel()) == sorted(views)


def test_views_go_to_ranks_by_their_pairs():
    balance = Balance(2, True, False, {0: 100, 1: 90, 2: 10, 3: 5})
    assert sorted(map(sorted, balance.assign(np.arange(4)).tolist())) == [[0, 3], [1, 2]]
    assert Balance(2, False, False).assign(np.arange(4)).tolist() == [[0, 1], [2, 3]]


def photo(width: int, height: int) -> Photo:
    return Photo("a", None, width, height, np.eye(4), np.ones(4))  # type: ignore[arg-type]


def test_a_smaller_view_gets_margins_that_weigh_nothing():
    rng = np.random.default_rng(0)
    image, other = rng.uniform(size=(2, 24, 32, 3)).astype(np.float32)
    shape = alike([photo(32, 24), photo(40, 30)], masked=False)
    assert (shape.width, shape.height, shape.masked) == (40, 30, True)
    camera = Camera(np.eye(4), np.ones(4), 32, 24)  # type: ignore[arg-type]
    view = View(camera, (255 * image).astype(np.uint8), None, np.zeros(3))  # type: ignore[arg-type]
    shaped = shape.shaped(view)
    assert shaped.camera == replace(camera, width=40, height=30) and shaped.photo.shape == (30, 40, 3)
    drawn = np.pad(other, ((0, 6), (0, 8), (0, 0)), constant_values=0.7)
    loss = photometric(drawn, shaped.photo / np.float32(255), shaped.mask / np.float32(255))
    assert float(loss) == pytest.approx(float(photometric(other, view.photo / np.float32(255))), rel=1e-5)
    assert alike([photo(32, 24)] * 2, masked=False).shaped(view).mask is None


def test_a_scope_of_nearly_all_rows_waits_for_the_whole_and_plans_are_followed():
    admission = Admission("quality", 0.2)
    counts = Counts(active=50, read=60, waw=10, raw=0, war=0, alive=100)
    assert admission.decide(counts, None, lambda: (0, 0)).action is Action.PARTIAL
    assert admission.decide(replace(counts, waw=0), None, lambda: (0, 0)).action is Action.PROCEED
    broad = replace(counts, read=int(100 * BROAD) + 1)
    decision = admission.decide(broad, None, lambda: (0, 0))
    assert (decision.action, decision.reason) == (Action.BARRIER, "scope too broad")
    assert admission.decide(counts, "memory", lambda: (0, 0)).reason == "memory"


def test_evidence_holds_for_one_structural_version_and_a_view_that_misses_is_not_trusted():
    admission = Admission("throughput", 0.2)
    words = np.packbits(np.arange(64) < 40)[None]
    admission.learn([7], words, 3, None)
    assert np.array_equal(admission.expected(7, 3), words[0])
    assert admission.expected(7, 4) is None and admission.expected(8, 3) is None
    late = np.packbits(np.arange(64) >= 60)
    admission.learn([7], np.packbits(np.arange(64) >= 20)[None], 3, late)
    assert admission.expected(7, 3) is None and admission.late_writes == 4
    admission.forget()
    admission.learn([7], words, 3, None)
    assert admission.expected(7, 3) is not None


def test_only_what_everything_else_admits_asks_for_the_gate():
    asked = []
    admission = Admission("throughput", 0.2)

    def gate() -> tuple[int, int]:
        asked.append(1)
        return 0, 0

    counts = Counts(active=50, read=60, waw=10, raw=5, war=0, alive=100)
    assert admission.decide(counts, None, gate).action is Action.DELAYED and len(asked) == 1
    assert admission.decide(replace(counts, raw=30), None, gate).action is Action.PARTIAL and len(asked) == 1
    assert admission.decide(counts, "memory", gate).action is Action.BARRIER and len(asked) == 1


def test_a_process_with_another_capture_is_told_what_differs(tmp_path, monkeypatch):
    folder = write_capture(tmp_path / "capture", views=6)
    scene = load_scene(folder)
    first, photos = same_scene.described(scene), scene.photos
    smaller = load_scene(folder, downscale=2)
    moved = replace(photos[0], view=photos[0].view + 1)
    assert same_scene.difference(first, same_scene.described(load_scene(folder))) is None
    for other, unlike in (
        (replace(scene, photos=photos[:-1]), "5 photos instead of 6, 005.png is missing"),
        (replace(scene, photos=(*photos, replace(photos[0], name="9.png"))), "7 photos instead of 6, 9.png is one too "
         "many"),
        (smaller, "000.png has 24×16 pixels instead of 48×32"),
        (replace(scene, photos=(moved, *photos[1:])), "other camera poses"),
        (replace(scene, points=scene.points[:-1]), "other points"),
        (replace(scene, colours=scene.colours + 1), "other colours of the points"),
        (replace(scene, train=scene.train[1:]), "other training views"),
    ):
        assert same_scene.difference(first, same_scene.described(other)) == unlike
    same_scene.check_scene(smaller)  # a run of one process
    monkeypatch.setattr(same_scene.jax, "process_count", lambda: 2)
    monkeypatch.setattr(same_scene.jax, "process_index", lambda: 1)
    monkeypatch.setattr(same_scene.share, "from_first", lambda own: first)
    same_scene.check_scene(scene)
    with pytest.raises(UserError, match=r"process 1 has another capture in .* than process 0 \(000.png has 24×16"):
        same_scene.check_scene(smaller)
