"""From a loaded scene to what the scheduler plans with."""

from __future__ import annotations

import numpy as np

from odin_jax.train_config import TrainConfig
from sched.build import make_plan
from sched.capture import Cameras, Capture, make_capture
from sched.plan import Plan, PlanOptions
from sched.plan_file import load_plan
from splat.errors import UserError
from splat.scene.types import Scene


def training_capture(scene: Scene) -> Capture:
    """The tracks, cameras and points of the scene's training views, in the order of ``scene.train``."""
    cameras = Cameras(
        np.stack([photo.view for photo in scene.photos]),
        np.stack([photo.intrinsics for photo in scene.photos]),
        np.array([(photo.width, photo.height) for photo in scene.photos]),
    )
    names = tuple(photo.name for photo in scene.photos)
    whole = make_capture(
        scene.tracks.view_ptr, scene.tracks.point_ids, names=names, cameras=cameras, points=scene.points
    )
    return whole.take(np.asarray(scene.train, np.int64))


def plan_of(config: TrainConfig, scene: Scene) -> Plan:
    """The plan of a run: the one of ``--plan``, checked against the scene and the options, or a new one.

    Raises UserError or PlanError when the file does not fit.
    """
    capture = training_capture(scene)
    if config.plan is None:
        return make_plan(capture, PlanOptions(config.batch, config.regions, seed=config.seed, without=config.ablate))
    plan = load_plan(config.plan)
    plan.check(capture)
    if plan.options.batch != config.batch:
        raise UserError(f"--plan {config.plan} is for units of {plan.options.batch} views, this run has --batch "
                        f"{config.batch}; give that batch or make a new plan")
    if set(plan.options.without) != set(config.ablate):
        raise UserError(f"--plan {config.plan} leaves out {', '.join(plan.options.without) or 'nothing'}, this run "
                        f"--ablate {' '.join(config.ablate) or 'nothing'}; make a new plan")
    return plan
