"""Runs from the command line to the record, with a pipeline from elsewhere that compiles in a moment."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import toy
from PIL import Image
from processes import same_bits, start, wait_for_checkpoint

from odin_jax import checkpoint, session
from odin_jax.checkpoint import steps_in
from odin_jax.health import Diverged
from odin_jax.train_config import TrainConfig
from scripts import eval as eval_script
from scripts import export, import_, render
from splat.errors import UserError
from splat.io.ply import read_ply

HERE = Path(__file__).parent
TOY = {"--pipeline": "toy:factory", "--iterations": "60", "--checkpoint-every": "10", "--seed": "3"}


def config(capture, out, cache_dir, **changes) -> TrainConfig:
    values = {
        "scene": capture,
        "out": out,
        "pipeline": "toy:factory",
        "iterations": 60,
        "checkpoint_every": 10,
        "seed": 3,
        "cache_dir": cache_dir,
        "tensorboard": False,
        "lpips": False,
    }
    return TrainConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def finished(capture, cache_dir, tmp_path_factory):
    """An uninterrupted run with TensorBoard."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert session.train(config(capture, out, cache_dir, tensorboard=True, log_every=20, image_every=30)) == 0
    return out


def test_a_run_leaves_everything_it_promises(finished):
    record = json.loads((finished / "record.json").read_text())
    for name in (
        "psnr",
        "ssim",
        "n_primitives",
        "iterations",
        "samples_per_s",
        "wall_s",
        "cpu_s",
        "peak_rss_mb",
        "seed",
        "versions",
        "views",
    ):
        assert record[name] is not None, name
    assert record["iterations"] == 60
    assert record["wall_s"] > 0
    assert record["cpu_s"] > 0
    assert record["samples_per_s"] > 0
    assert record["versions"]["jax"]
    assert [view["name"] for view in record["views"]] == ["000.png", "008.png"]
    assert np.isclose(record["psnr"], np.mean([view["psnr"] for view in record["views"]]))
    assert read_ply(finished / "point_cloud.ply").count == record["n_primitives"] == 43
    assert len(json.loads((finished / "cameras.json").read_text())) == 12
    assert json.loads((finished / "config.json").read_text())["seed"] == 3
    assert steps_in(finished / "checkpoints") == [40, 50, 60]
    assert any((finished / "tensorboard").iterdir())


def test_renders_lie_beside_photos(finished, capture):
    both = np.asarray(Image.open(finished / "renders" / "008.png"))
    assert both.shape == (32, 2 * 48 + 4, 3)
    assert np.array_equal(both[:, :48], np.asarray(Image.open(capture / "images" / "008.png")))


def test_psnr_is_that_of_the_8_bit_images_on_disk(finished):
    both = np.asarray(Image.open(finished / "renders" / "008.png")).astype(float)
    mse = np.mean((both[:, :48] - both[:, 52:]) ** 2) / 255**2
    record = json.loads((finished / "record.json").read_text())
    assert record["views"][1]["psnr"] == pytest.approx(-10 * np.log10(mse), abs=1e-9)


def test_a_complete_run_is_left_alone(finished, capture, cache_dir, capsys):
    before = (finished / "record.json").read_bytes()
    assert session.train(config(capture, finished, cache_dir)) == 0
    assert "is complete" in capsys.readouterr().out
    assert (finished / "record.json").read_bytes() == before


def test_killed_at_any_moment_it_ends_with_the_same_bits(finished, capture, cache_dir, tmp_path):
    out, moments = tmp_path / "run", random.Random(1)
    for kills in range(2):
        process = start(capture, out, cache_dir, **TOY)
        done = len(steps_in(out / "checkpoints"))
        wait_for_checkpoint(process, out, min(done + 1, 2))
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert kills or not (out / "record.json").exists()
    process = start(capture, out, cache_dir, **TOY)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert same_bits(out, finished, 60)
    assert (out / "point_cloud.ply").read_bytes() == (finished / "point_cloud.ply").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so(capture, cache_dir, tmp_path, number):
    out = tmp_path / "run"
    process = start(capture, out, cache_dir, **{**TOY, "--iterations": "100000", "--checkpoint-every": "100"})
    wait_for_checkpoint(process, out)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, text
    assert "saved; the same command continues" in text
    assert f"stopped at step {steps_in(out / 'checkpoints')[-1]} of" in text
    assert "Traceback" not in text


def test_another_configuration_does_not_touch_the_run(finished, capture, cache_dir):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="seed: 3 → 4"):
        session.train(config(capture, finished, cache_dir, seed=4))
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_number_that_is_not_finite_stops_with_field_row_and_step(capture, cache_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "POISON_STEP", 17)
    with pytest.raises(Diverged, match=r"step 17: gradient of sh_dc, row 3 .*checkpoint of step 10 is kept"):
        session.train(config(capture, tmp_path / "run", cache_dir))
    assert steps_in(tmp_path / "run" / "checkpoints") == [10]
    arrays, _ = checkpoint.read(tmp_path / "run" / "checkpoints", 10)
    assert all(np.isfinite(leaf).all() for leaf in arrays.values())


def test_an_overflow_is_redone_with_more_room(finished, capture, cache_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "PAIRS_STEP", 23)
    assert session.train(config(capture, tmp_path / "run", cache_dir)) == 0
    assert same_bits(tmp_path / "run", finished, 60)
    _, meta = checkpoint.read(tmp_path / "run" / "checkpoints", 60)
    assert meta["rooms"][0][2] >= 1_000_000


def test_batches_random_backgrounds_and_no_test_views(capture, cache_dir, tmp_path):
    out = tmp_path / "run"
    assert session.train(config(capture, out, cache_dir, batch=3, background="random", test_every=0)) == 0
    record = json.loads((out / "record.json").read_text())
    assert record["psnr"] is None
    assert record["test_views"] == 0
    assert len(list((out / "renders").iterdir())) == 4


def test_an_unknown_pipeline_is_one_line(capture, cache_dir, tmp_path):
    for name, part in (("4dgs", "known are 3dgs"), ("nowhere:factory", "cannot be imported")):
        with pytest.raises(UserError, match=part):
            session.train(config(capture, tmp_path / name[:4], cache_dir, pipeline=name))


def test_eval_repeats_the_numbers_of_the_training(finished, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    before = json.loads((finished / "record.json").read_text())
    eval_script.main(eval_script.EvalConfig(finished, lpips=False))
    after = json.loads((finished / "record.json").read_text())
    assert after["views"] == before["views"]
    assert after["wall_s"] == before["wall_s"]
    assert "008.png: psnr" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["test", "orbit", "path"])
def test_renders_as_png_and_video(finished, tmp_path, what):
    render.main(render.RenderConfig(finished, what, format="png", out=tmp_path / "png", frames=3))
    assert len(list((tmp_path / "png").glob("*.png"))) == (2 if what == "test" else 3)
    render.main(render.RenderConfig(finished, what, out=tmp_path / "film.mp4", frames=3))
    assert b"ftyp" in (tmp_path / "film.mp4").read_bytes()[:64]


def test_export_and_import_round_trip(finished, tmp_path):
    export.main(export.ExportConfig(finished, tmp_path / "a.ply"))
    import_.main(import_.ImportConfig(tmp_path / "a.ply", tmp_path / "again"))
    assert (tmp_path / "again" / "point_cloud.ply").read_bytes() == (
        finished / "point_cloud.ply"
    ).read_bytes()
    export.main(export.ExportConfig(finished, tmp_path / "a.splat"))
    import_.main(import_.ImportConfig(tmp_path / "a.splat", tmp_path / "small"))
    assert read_ply(tmp_path / "small" / "point_cloud.ply").count == 43
    with pytest.raises(UserError, match=r"must be \.ply or \.splat"):
        export.main(export.ExportConfig(finished, tmp_path / "a.obj"))
    with pytest.raises(UserError, match="already holds"):
        import_.main(import_.ImportConfig(tmp_path / "a.ply", finished))
