"""Which engine runs a training: one device alone, or data parallelism over all ranks."""

from __future__ import annotations

from typing import Any

from odin_jax import placement, scope
from odin_jax.account import Account
from odin_jax.alone import Alone
from odin_jax.engine import Engine
from odin_jax.parallel.dp import DataParallel
from odin_jax.parallel.mesh import Ranks
from odin_jax.planning import plan_of
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position
from splat.errors import UserError
from splat.scene.types import Scene

ROW_HOOKS = ("observe", "step_inputs", "rows", "with_rows", "step_rows", *scope.HOOKS)


def engine_of(config: TrainConfig, scene: Scene, pipeline: Any, position: Position, account: Account) -> Engine:
    """The engine for a run; several ranks, or one with an explicit path, plan or ablation, train by a plan.

    Raises UserError when the batch cannot be shared by the ranks or the pipeline cannot train on several.
    """
    ranks = Ranks()
    if ranks.count == 1 and config.path is None and config.plan is None and not config.ablate:
        position.state = placement.summed(pipeline, position.state, position.parts)
        position.parts = None
        return Alone(config, scene, pipeline, position.state, position.rooms)
    if config.batch % ranks.count:
        raise UserError(f"--batch {config.batch} cannot be shared by {ranks.count} ranks: give a multiple of "
                        f"{ranks.count}, or fewer processes or devices")
    missing = [name for name in ROW_HOOKS if not callable(getattr(pipeline, name, None))]
    if missing:
        raise UserError(f"pipeline {pipeline.name} trains on one device only: it has no {missing[0]}() "
                        "(docs/bring-your-own-pipeline.md)")
    return DataParallel(config, scene, pipeline, plan_of(config, scene), ranks, position, account.window)
