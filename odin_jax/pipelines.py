"""The pipelines by name, and pipelines from elsewhere by ``package.module:factory``."""

from __future__ import annotations

import importlib
from typing import Any

from odin_jax.train_config import TrainConfig, check_pipeline
from splat.errors import UserError
from splat.pipelines.dash import Dash
from splat.pipelines.gs2d import Gs2d
from splat.pipelines.gs3d import Gs3d
from splat.pipelines.protocol import Pipeline
from splat.pipelines.taming import Taming

PIPELINES = {
    "3dgs": lambda config: Gs3d(config.gs3d),
    "2dgs": lambda config: Gs2d(config.gs2d),
    "taming": lambda config: Taming(config.taming),
    "dash": lambda config: Dash(config.dash),
}


def build(config: TrainConfig) -> Pipeline:
    """The pipeline that a resolved configuration names.

    ``package.module:factory`` calls ``factory(config)``, which returns any object that follows
    ``splat.pipelines.protocol.Pipeline``. Raises UserError for an unknown name or a module that
    cannot be imported.
    """
    if ":" in config.pipeline:
        return _elsewhere(config.pipeline)(config)
    check_pipeline(config.pipeline)
    return PIPELINES[config.pipeline](config)


def _elsewhere(name: str) -> Any:
    module_name, _, factory = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), factory)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"--pipeline {name}: cannot be imported ({error}); check the name and PYTHONPATH"
        ) from error
