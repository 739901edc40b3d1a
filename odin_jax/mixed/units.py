"""From the views of a unit and a cut to what the ranks are given."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from odin_jax.mixed.cut import Cut
from odin_jax.mixed.programs import MixedUnit
from odin_jax.parallel.mesh import Ranks
from splat.pipelines.protocol import View
from splat.strips import HALO, cut_out


def cut_unit(ranks: Ranks, step: int, views: Sequence[View], found: Cut) -> MixedUnit:
    """Unit ``step`` of views that are alike in shape, NumPy arrays; each process keeps the strips of its ranks."""
    cameras = ranks.same(jax.tree.map(lambda *leaves: np.stack(leaves), *(view.camera for view in views)))
    parts = [tuple(cut_out(views[piece.view], piece.first, piece.count, found.rows) for piece in found.pieces[rank])
             for rank in ranks.local]
    size = views[0].camera.width, found.rows + 2 * HALO
    return MixedUnit(step, cameras, ranks.same(found.table()), ranks.own(parts), size)
