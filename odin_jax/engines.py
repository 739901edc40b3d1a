"""Which engine runs a training: one device alone, or data or mixed parallelism over all ranks."""

from __future__ import annotations

from typing import Any

from odin_jax import placement, scope
from odin_jax.account import Account
from odin_jax.alone import Alone
from odin_jax.engine import Engine
from odin_jax.parallel.dp import DataParallel
from odin_jax.parallel.mesh import Ranks
from odin_jax.parallel.mp import MixedParallel
from odin_jax.planning import plan_of
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position
from splat.errors import UserError
from splat.scene.types import Scene

MIXED_HOOKS = ("screen", "strip_loss")
ROW_HOOKS = ("observe", "step_inputs", "rows", "with_rows", "step_rows", *scope.HOOKS)


def engine_of(config: TrainConfig, scene: Scene, pipeline: Any, position: Position, account: Account) -> Engine:
    """The engine for a run; several ranks, or one with an explicit path, plan or ablation, train by a plan.

    Raises UserError when the batch cannot be shared by the ranks or the pipeline cannot train on several.
    """
    ranks = Ranks()
    mixed = config.parallel == "mp"
    if ranks.count == 1 and config.path is None and config.plan is None and not config.ablate and not mixed:
        position.state = placement.summed(pipeline, position.state, position.parts)
        position.parts = None
        return Alone(config, scene, pipeline, position.state, position.rooms)
    if config.batch % ranks.count and not mixed:
        raise UserError(f"--batch {config.batch} cannot be shared by {ranks.count} ranks: give a multiple of "
                        f"{ranks.count}, or fewer processes or devices")
    hooks = (*ROW_HOOKS, *MIXED_HOOKS) if mixed else ROW_HOOKS
    missing = [name for name in hooks if not callable(getattr(pipeline, name, None))]
    if missing:
        how = "without --parallel mp" if mixed and missing[0] in MIXED_HOOKS else "on one device"
        raise UserError(f"pipeline {pipeline.name} trains {how} only: it has no {missing[0]}() "
                        "(docs/bring-your-own-pipeline.md)")
    engine = MixedParallel if mixed else DataParallel
    return engine(config, scene, pipeline, plan_of(config, scene), ranks, position, account.window)
