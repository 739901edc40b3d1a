"""Options from a file: what wins, what is refused, and that the presets are what they say."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import tyro

from odin_jax import cli, config_file, pipelines
from odin_jax.train_config import KINDS, OPTIONS, TrainConfig, resolved
from splat.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
PUBLISHED, SHORT = (sorted(folder.glob("*.toml")) for folder in (CONFIGS, CONFIGS / "short"))
# by pipeline: opacity rate, rate of sh_rest, end of densification, its interval, pruned opacity (spec §5)
TABLE = {"3dgs": (0.025, 1.25e-4, 15_000, 100, 0.005), "2dgs": (0.05, 1.25e-4, 15_000, 100, 0.05),
         "taming-budget": (0.025, 2.5e-4, 15_000, 500, 0.005), "taming-big": (0.025, 2.5e-4, 15_000, 100, 0.005),
         "dash": (0.025, 1.25e-4, 27_000, 100, 0.005), "dash-fast": (0.025, 1.25e-4, 27_000, 100, 0.005)}
CHANGES = {"2dgs": {}, "3dgs": {}, "dash": {"growth_limit": 20_000, "powers_of_two": True},
           "taming": {"mode": "final_count", "budget": 20_000.0, "sh_rest_every": 4}}


def read(tmp_path, text, *argv):
    """The options of a command line with a file of ``text``."""
    (tmp_path / "a.toml").write_text(text)
    argv = ["--config", str(tmp_path / "a.toml"), "--scene", str(tmp_path), "--out", "o", *argv]
    return tyro.cli(TrainConfig, args=argv, default=config_file.defaults(argv))


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path):
    text = 'pipeline = "taming"\niterations = 70\nablate = ["lp"]\n[taming]\nbudget = 3.0\nscore-views = 4\n'
    config = read(tmp_path, text, "--iterations", "90", "--taming.score-views", "5")
    assert (config.pipeline, config.iterations, config.batch, config.ablate) == ("taming", 90, 1, ("lp",))
    assert (config.taming.budget, config.taming.score_views, config.taming.prunes) == (3.0, 5, 27)
    assert config.config == tmp_path / "a.toml"


@pytest.mark.parametrize(
    ("text", "part"),
    [("itertions = 3", "no option itertions; did you mean iterations"), ("[taming]\nzzz = 3", "no option taming.zzz"),
     ("iterations = 'x'", "the value of iterations: 'x' is of the wrong kind"), ("a =", "not valid TOML"),
     ("taming = 3", "taming must be a table"), ("batch = true", "the value of batch: True")],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, text, part):
    with pytest.raises(UserError, match=part):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--config=nowhere.toml", "--scene", "a", "--out", "b"])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and "--config nowhere.toml: cannot be read" in err and err.count("\n") == 1


def trained_by(file, tmp_path):
    """(options of the pipeline that ``file`` resolves to, the whole)"""
    config = resolved(config_file.with_file(TrainConfig(tmp_path, tmp_path), file))
    pipelines.build(config)
    return getattr(config, OPTIONS[config.pipeline]), config


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_published_presets_have_the_published_values(file, tmp_path):
    options, config = trained_by(file, tmp_path)
    assert (options.opacity_lr, options.sh_rest_lr, options.densify_until, options.densify_every,
            options.prune_opacity) == TABLE[file.stem]
    assert (config.iterations, options.sh_every, options.reset_every, options.densify_from) == (30_000, 1000, 3000, 500)
    assert (options.optimizer == "sparse_adam") == (file.stem == "dash-fast") and config.background == "black"
    same = {field.name for field in fields(options) if getattr(options, field.name) == field.default}
    assert {field.name for field in fields(options)} - same <= {"mode", "budget", "densify_every", "optimizer"}


@pytest.mark.parametrize("file", SHORT, ids=lambda file: file.stem)
def test_short_presets_are_the_published_schedule_shortened(file, tmp_path):
    options, config = trained_by(file, tmp_path)
    assert 2000 <= config.iterations <= 3000 and config.downscale == 2
    assert options == KINDS[OPTIONS[config.pipeline]].for_iterations(config.iterations, **CHANGES[file.stem])


def test_there_is_a_preset_for_every_pipeline():
    assert {file.stem for file in SHORT} == set(OPTIONS)
    assert {file.stem.partition("-")[0] for file in PUBLISHED} == set(OPTIONS)
