"""Optional hooks of pipelines: the survey, the scale of photos, views for events, and what structure.jsonl tells."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import staged_toy
from captures import write_capture
from PIL import Image

from odin_jax import growth, hooks, session
from odin_jax.feed import camera_of
from odin_jax.runs import RunFolder
from odin_jax.train_config import TrainConfig, resolved
from splat.errors import UserError
from splat.pipelines.dash_config import DashConfig
from splat.pipelines.gs3d_config import Gs3dConfig
from splat.scene.load import load_scene


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of the staged toy, as its configuration."""
    folder = tmp_path_factory.mktemp("staged")
    config = TrainConfig(
        write_capture(folder / "capture"), folder / "run", pipeline="staged_toy:factory", iterations=60,
        checkpoint_every=20, cache_dir=folder / "xla", tensorboard=False, lpips=False)
    assert session.train(config) == 0
    return config


def events(folder):
    return [json.loads(line) for line in (folder / "structure.jsonl").read_text().splitlines()]


def test_views_have_the_scale_of_their_step_and_events_get_those_they_ask_for(run):
    assert sorted(staged_toy.SIZES) == [(16, 24), (32, 48)]
    told = [(event, step, [view[:2] for view in views]) for event, step, views in staged_toy.LOOKED]
    assert told == [("grow", 20, [(16, 24)] * 2), ("resolution", 20, []), ("grow", 40, [(32, 48)] * 2),
                    ("grow", 60, [(32, 48)] * 2)]
    scene = load_scene(run.scene)
    for at, view in zip((1, 4), staged_toy.LOOKED[2][2], strict=True):
        photo = np.asarray(Image.open(scene.photos[scene.train[at]].path))
        assert view[2] == photo.mean()


def test_a_line_for_every_step_with_events(run):
    assert events(run.out) == [
        {"step": 20, "events": ["grow", "resolution"], "rows": 41, "capacity": 48, "target": 50, "scale": 1},
        {"step": 40, "events": ["grow"], "rows": 42, "capacity": 48, "target": 50, "scale": 1},
        {"step": 60, "events": ["grow"], "rows": 43, "capacity": 48, "target": 50, "scale": 1}]
    paths = growth.draw(run.out / "report", RunFolder(run.out))
    assert [path.name for path in paths] == ["growth.png"] and Image.open(paths[0]).size[0] > 500
    assert growth.read(run.out / "nowhere.jsonl") == []


def test_a_continued_run_keeps_its_survey_and_the_lines_before_it(run):
    parts = run.out.parent / "parts"
    shutil.copytree(run.out, parts)
    shutil.rmtree(parts / "checkpoints" / "60")
    (parts / "record.json").unlink()
    found = json.loads((parts / "survey.json").read_text())
    assert len(staged_toy.SURVEYS) == 1 and found["mean"] > 0
    (parts / "survey.json").write_text(json.dumps({"mean": 7}))
    assert session.train(replace(run, out=parts)) == 0
    assert len(staged_toy.SURVEYS) == 1 and json.loads((parts / "survey.json").read_text()) == {"mean": 7}
    assert events(parts) == events(run.out)


@pytest.mark.parametrize("second", [b'{"step": 4}', b'{"step": Infinity, "rows": 3}', b"\xff\xfe",
                                    b'{"step": 4, "rows": 3, "budget": "x"}', b"[]"])
def test_a_damaged_line_is_named(tmp_path, second):
    (tmp_path / "structure.jsonl").write_bytes(b'{"step": 3, "rows": 2}\n' + second + b"\n")
    with pytest.raises(UserError, match=r"structure\.jsonl line 2"):
        growth.read(tmp_path / "structure.jsonl")


@pytest.mark.parametrize("scale", [1, 2, 3, 7, 40])
def test_a_smaller_photo_shows_the_same_points_at_the_same_share_of_its_sides(run, scale):
    photo = load_scene(run.scene).photos[0]
    small = hooks.scaled(photo, scale)
    assert (small.width, small.height) == (max(48 // scale, 1), max(32 // scale, 1))
    whole, part = camera_of(photo), camera_of(small)
    point = np.array([0.3, -0.2, 2.0])

    def share(camera):
        f, c = camera.intrinsics[:2], camera.intrinsics[2:]
        return (f * point[:2] / point[2] + c) / (camera.width, camera.height)

    np.testing.assert_allclose(share(part), share(whole), rtol=1e-5)


def test_photos_are_averaged_when_they_get_smaller():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (32, 48, 3), np.uint8)
    small = hooks.resampled(noise, 12, 8)
    assert small.shape == (8, 12, 3) and small.dtype == np.uint8
    assert small.std() < 0.4 * noise.std()  # plain bilinear sampling, without antialiasing, keeps half or more
    assert abs(small.mean() - noise.mean()) < 5
    assert hooks.resampled(noise[..., 0], 12, 8).shape == (8, 12)
    assert hooks.resampled(noise, 48, 32) is noise


def test_options_of_another_pipeline_and_those_of_the_run_are_refused(run):
    for changes, words in (
        ({"pipeline": "dash", "gs3d": Gs3dConfig(scale_lr=0.1)}, "--gs3d.* are options of another pipeline than dash"),
        ({"pipeline": "3dgs", "dash": DashConfig(levels=9)}, "--dash.* are options of another pipeline than 3dgs"),
        ({"pipeline": "dash", "dash": DashConfig(cap=9)}, "--dash.cap follows from the run"),
    ):
        with pytest.raises(UserError) as caught:
            resolved(replace(run, **changes))
        assert words in str(caught.value)
    fitted = resolved(replace(run, pipeline="dash", iterations=2000, cap=5000, dash=DashConfig(levels=9)))
    assert (fitted.dash.levels, fitted.dash.densify_until, fitted.dash.cap) == (9, 1800, 5000)
    assert fitted.dash.prune_large_from > 2000 and fitted.gs3d == Gs3dConfig()
    assert Path(fitted.scene).is_absolute()
