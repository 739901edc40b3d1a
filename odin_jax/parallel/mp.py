"""Mixed parallelism: every rank has some of the rows and some of the pixels; the engine behind ``--parallel mp``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from odin_jax import placement
from odin_jax.engine import COUNTED, growth
from odin_jax.feed import camera_of
from odin_jax.mixed import homes as at_home
from odin_jax.mixed import layout
from odin_jax.mixed.cut import SIDE, Cut, cut, given_to, tile_rows
from odin_jax.mixed.lanes import MixedLanes
from odin_jax.mixed.programs import MixedPrograms
from odin_jax.mixed.shares import Shares
from odin_jax.mixed.units import cut_unit
from odin_jax.parallel.alike import Shape, alike, has_masks
from odin_jax.parallel.mesh import Ranks
from odin_jax.parallel.planned import Planned
from odin_jax.train_config import TrainConfig
from odin_jax.trainer import Position
from odin_jax.window import Assigned, Window
from sched.plan import Plan
from splat.errors import UserError
from splat.scene.types import Photo, Scene
from splat.strips import HALO, part_of

LOOKED_AT = 256  # most training views by whose rows the placement "access" goes


class MixedParallel(Planned):
    """Engine of ranks among which rows and pixels are divided."""

    def __init__(self, config: TrainConfig, scene: Scene, pipeline: Any, plan: Plan, ranks: Ranks, position: Position,
                 on_window: Callable[[Window], None] | None = None):
        """Go on from ``position``; ``on_window`` is told of each window.

        Raises UserError when a rank would have no row.
        """
        super().__init__(config, scene, pipeline, plan, ranks, position, on_window)
        if config.executor == "fused":
            raise UserError("--executor fused does not go with --parallel mp, which has two lanes; leave it out")
        self._masked = has_masks(scene)
        state = placement.summed(pipeline, position.state, position.parts)
        self._shares = Shares(ranks.count, config.exchange == "psum", position.mixed)
        self._units: dict[int, tuple[list[int], Cut]] = {}  # training views and cut of the units under way
        self._programs = MixedPrograms(ranks, pipeline, config.exchange, state)
        self._alive, kept = np.asarray(state.alive), position.mixed.get("homes")
        self._homes = at_home.from_text(kept) if kept and position.mixed["ranks"] == ranks.count else self._fresh(state)
        executor = MixedLanes(self._programs, position.rooms, self._screened)
        self._ready(self._programs, executor, self._laid_out(state))

    def saved(self) -> tuple[Any, dict[str, Any]]:
        self._runtime.admission.forget()
        return self._settled, {"mixed": {**self._shares.to_json(), "homes": at_home.to_text(self._homes)}}

    def _placed(self, state: Any) -> Any:
        alive = np.asarray(state.alive)
        self._homes = at_home.newborn(self._homes, self._alive, alive, np.asarray(state.gaussians.means))
        self._alive = alive
        if at_home.uneven(self._homes, alive, self._ranks.count):
            self._homes = self._fresh(state)
        return self._laid_out(state)

    def _gathered(self) -> Any:
        return _on_host(layout.gather(self._ranks, self._runtime.now.state, self._programs.layout))

    def _laid_out(self, state: Any) -> Any:
        self._programs.divide(layout.layout_of(self._homes, self._alive, self._ranks.count))
        return layout.place(self._ranks, state, self._programs.layout)

    def _fresh(self, state: Any) -> np.ndarray:
        """[N] ranks of the rows by ``--placement``."""
        ranks, alive = self._ranks.count, np.asarray(state.alive)
        if self._config.placement == "random":
            return at_home.at_random(alive, ranks, self._config.seed, int(state.structural_version))
        spatial = at_home.along_curve(np.asarray(state.gaussians.means), alive, ranks)
        if self._config.placement == "spatial" or ranks == 1:
            return spatial
        views = len(self._scene.train)
        looked = np.unique(np.linspace(0, views - 1, min(views, LOOKED_AT)).astype(int))
        place = {int(view): at for at, view in enumerate(looked)}
        photos = self._feed.train_photos(self._step + 1)
        host = _on_host(state)
        touched = np.stack([np.asarray(self._pipeline.scope(host, camera_of(photos[view]))[0]) for view in looked])
        units = [[place[view] for view in unit if view in place] for unit in self._plan.units]
        found = at_home.by_access(touched, [unit for unit in units if unit], spatial, alive, ranks)
        self._shares.forget_homes()
        return found

    def _assigned(self, step: int, views: list[int]) -> Assigned:
        photos = [self._feed.photo(step, self._scene.train[view]) for view in views]
        shape = alike(photos, self._masked)
        found = self._cut(views, shape)
        loaded = [shape.shaped(view) for view in self._feed.views(
            step, [(place, self._scene.train[view]) for place, view in enumerate(views)])]
        unit = cut_unit(self._ranks, step, loaded, found)
        self._units[step] = views, found
        return Assigned(unit, np.array(views)[None])  # type: ignore[arg-type]

    def _cut(self, views: Sequence[int], shape: Shape) -> Cut:
        shares, whole = self._shares, self._config.pixels == "images"
        portions = shares.portions()
        if self._config.placement != "access":
            return cut(shares.costs(views, shape), shape.height, portions, whole)
        order = shares.order(views)
        found = cut(shares.costs([views[at] for at in order], shape), shape.height, portions, whole)
        pieces = tuple(tuple(piece._replace(view=order[piece.view]) for piece in of_rank) for of_rank in found.pieces)
        return given_to(Cut(pieces, found.rows, found.place), shares.ranks_of(pieces, views))

    def _screened(self, step: int, costs: np.ndarray, counts: np.ndarray) -> None:
        views, found = self._units.pop(step)
        self._shares.learn(views, found, costs, counts)

    def _observe(self, window: Window) -> None:
        self._shares.observe(window.seconds)

    def _open_rooms(self, step: int) -> None:
        """Rooms for strips of every photo's size, by the pairs of strips of some photos."""
        photos = self._feed.train_photos(step)
        for size in sorted({(photo.width, photo.height) for photo in photos}):
            alike = [photo for photo in photos if (photo.width, photo.height) == size]
            rows = tile_rows(size[1])
            for most in (rows, -(-rows // 2)):
                self._open_room(alike[:: max(1, len(alike) // COUNTED)], min(most * SIDE, size[1]))

    def _open_room(self, photos: Sequence[Photo], rows: int) -> None:
        size = photos[0].width, rows + 2 * HALO
        if size in self._rooms.rooms:
            return
        tops = range(-HALO, photos[0].height - HALO, rows)
        pairs = [int(self._pipeline.scope(self._settled, part_of(camera_of(photo), top, size[1]))[1])
                 for photo in photos for top in tops]
        self._rooms.open(size, max(pairs), growth(self._settled))


def _on_host(state: Any) -> Any:
    """A state on the host's own device, where it may be larger than an accelerator holds."""
    return jax.device_put(state, jax.local_devices(backend="cpu")[0])

