import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splat.errors import UserError
from splat.scene.assemble import build_tracks
from splat.scene.load import load_scene
from splat.scene.split import scene_extent, split_by_name
from tests.splat.tiny_capture import write_capture, write_model


@given(st.integers(2, 200), st.integers(2, 20))
def test_every_nth_name_is_a_test_view_and_the_rest_train(count, every):
    train, test = split_by_name(count, every)
    assert test == tuple(i for i in range(count) if i % every == 0)
    assert sorted((*train, *test)) == list(range(count))


def test_no_rule_or_one_photo_leaves_no_test_view():
    assert split_by_name(5, 0) == ((0, 1, 2, 3, 4), ())
    assert split_by_name(1, 8) == ((0,), ())
    with pytest.raises(UserError):
        split_by_name(5, 1)


def test_the_extent_is_by_the_training_cameras_alone(tmp_path):
    names = [f"{i}.png" for i in range(10)]
    scene = load_scene(write_capture(tmp_path, names), test_every=3)
    centres = np.stack([scene.photos[i].centre for i in scene.train])
    spread = np.linalg.norm(centres - centres.mean(axis=0), axis=1)
    np.testing.assert_allclose(scene.extent, 1.1 * spread.max(), rtol=1e-12)
    assert scene.extent != pytest.approx(scene_extent(np.stack([photo.centre for photo in scene.photos])))
    np.testing.assert_allclose(scene_extent(np.asarray([[0, 0, 0], [4.0, 0, 0]])), 2.2)


def test_a_single_camera_still_has_an_extent(tmp_path):
    root = write_capture(tmp_path, ("a.png",))
    write_model(root / "sparse" / "0", ("a.png",))
    scene = load_scene(root)
    assert scene.extent > 0 and "share one centre" in scene.warnings[0]


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 9)), max_size=60))
def test_tracks_are_the_set_of_valid_pairs_in_order(pairs):
    array = np.asarray(pairs, np.int64).reshape(-1, 2)
    tracks = build_tracks(array[:, 0], array[:, 1], 6)
    expected = {(v, p) for v, p in pairs if v >= 0 and p >= 0}
    assert tracks.view_ptr[0] == 0 and tracks.view_ptr[-1] == len(tracks.point_ids) == len(expected)
    for view in range(6):
        assert list(tracks.of(view)) == sorted(p for v, p in expected if v == view)
    assert tracks.view_ptr.dtype == np.int64 and tracks.point_ids.dtype == np.int32
