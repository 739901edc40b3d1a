"""Which rows a densification of TamingGS clones, splits and prunes (spec §3.4). On the host, in float64.

Rows that grow are drawn with probability ∝ score among those whose gradient qualifies, and half of what 3DGS would
prune is spared by chance. Pruning is decided first and growth fills what it leaves, so that the rows afterwards are the
target to the row wherever enough rows qualify; the released code prunes what it has just grown to and lands below.
Newborn rows are never pruned in the densification that makes them, in either order. The scores are those of the rows
as they stand, so that a split moves none of them to another row (spec §9.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splat.density import Choice

GROW, PRUNE = 2, 3  # purposes that set the random numbers of a densification apart from others of the same seed
PRUNED_SHARE = 0.5  # rows are drawn for pruning as many as this share of the candidates
LEAST_SCORE = 1e-6  # added to a score before it is inverted


@dataclass(frozen=True)
class Candidates:
    """What the thresholds of 3DGS say of each row, bool [N]; ``clone`` and ``split`` exclude one another."""

    alive: np.ndarray
    clone: np.ndarray  # gradient qualifies, small
    split: np.ndarray  # gradient qualifies, large
    prune: np.ndarray  # faint or too large


def choose(rows: Candidates, score: np.ndarray, target: int, prunes: bool, seed: int, version: int) -> Choice:
    """Growth towards ``target`` rows and pruning by ``score`` [N] ≥ 0; never more rows than the larger of ``target``
    and those there are.

    ``prunes``: whether this densification prunes at all. Random numbers follow from (seed, structural version) and the
    row alone.
    """
    score = np.nan_to_num(np.asarray(score, np.float64), nan=0.0, posinf=np.finfo(np.float64).max)
    prune = np.zeros_like(rows.alive)
    if prunes:
        candidates = rows.prune & rows.alive
        weights = 1 / (LEAST_SCORE + score)
        drawn = draw(rows.alive, weights, int(PRUNED_SHARE * candidates.sum()), keys(len(score), seed, PRUNE, version))
        prune = candidates & drawn
    clone, split = (wanted & rows.alive & ~prune for wanted in (rows.clone, rows.split))
    room = max(target - int((rows.alive & ~prune).sum()), 0)
    clones, splits = quotas(int(clone.sum()), int(split.sum()), room)
    random = keys(len(score), seed, GROW, version)
    clone, split = draw(clone, score, clones, random), draw(split, score, splits, random)
    after = int((rows.alive & ~prune).sum()) + clones + splits
    return Choice(clone, split, prune, np.int32(after))  # type: ignore[arg-type]


def quotas(clones: int, splits: int, room: int) -> tuple[int, int]:
    """How many of so many clones and splits fit into ``room``: in proportion, with the remainder to the splits."""
    total = clones + splits
    if total <= room:
        return clones, splits
    quota = room * clones // total
    return quota, room - quota


def draw(rows: np.ndarray, weights: np.ndarray, count: int, random: np.ndarray) -> np.ndarray:
    """bool [N]: ``count`` of the marked ``rows`` (or all, if there are fewer), drawn without replacement with
    probability ∝ ``weights`` ≥ 0; rows of weight 0 only after all others.

    Gumbel's trick: the largest log w − log(−log u) are such a draw. ``random`` [N] is uniform in (0, 1).
    """
    marked = np.flatnonzero(rows)
    least = np.finfo(np.float64).tiny
    rank = np.log(np.maximum(weights[marked], least)) - np.log(-np.log(random[marked]))
    chosen = np.zeros(len(rows), bool)
    chosen[marked[np.argsort(-rank, kind="stable")[:count]]] = True
    return chosen


def keys(rows: int, seed: int, purpose: int, version: int) -> np.ndarray:
    """[rows] uniform numbers in (0, 1); that of a row does not depend on how many there are."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, purpose, version])))
    return generator.random(rows) * (1 - 2.0**-52) + 2.0**-54
