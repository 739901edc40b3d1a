"""Tile lists against brute force: a tile lists a row iff its response can reach 1/255 at the tile's pixel centres."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splat import tiles
from splat.projection import LOG2_E, MIN_ALPHA, Projected
from tests.splat.render_cases import QUICK

WIDTH, HEIGHT, ROWS, ROOM = 83, 53, 24, 2048


def footprints(seed: int, dtype, *, size: float, opaque: float) -> Projected:
    """Random ellipses of about ``size`` pixels, in and around the image, some thin, some not valid, depths tied."""
    rng = np.random.default_rng(seed)
    sigma = size * np.exp(rng.standard_normal((ROWS, 2))) + 0.55
    angle = rng.uniform(0, np.pi, ROWS)
    c, s = np.cos(angle), np.sin(angle)
    xx, yy = (c * sigma[:, 0])**2 + (s * sigma[:, 1])**2, (s * sigma[:, 0])**2 + (c * sigma[:, 1])**2
    xy = c * s * (sigma[:, 0]**2 - sigma[:, 1]**2)
    det = xx * yy - xy * xy
    opacity = np.minimum(1, np.exp(-rng.exponential(opaque, ROWS)))
    valid = (rng.random(ROWS) < 0.9) & (opacity >= MIN_ALPHA)
    centre = rng.uniform([-30, -30], [WIDTH + 30, HEIGHT + 30], (ROWS, 2))
    geometry = np.column_stack([centre, yy / det, -xy / det, xx / det, np.log(opacity) * LOG2_E])
    depth = rng.choice([0.5, 1.0, 2.0, 7.5], ROWS)
    features = np.column_stack([rng.random((ROWS, 3)), depth])

    def to(array: np.ndarray) -> jax.Array:
        return jnp.asarray(array, dtype)

    return Projected(to(geometry * valid[:, None]), to(features * valid[:, None]), (to(xx), to(xy), to(yy)),
                     to(opacity), jnp.asarray(valid))


def forms_at_pixels(proj: Projected, grid: tiles.Grid) -> np.ndarray:
    """[rows, tiles] smallest dᵀ·conic·d over each tile's pixel centres."""
    mx, my, a, b, c = np.asarray(proj.geometry, np.float64).T[:5, :, None, None]
    dy, dx = np.mgrid[0:HEIGHT, 0:WIDTH][:, None] + 0.5 - np.stack([my, mx])
    form = np.full((ROWS, grid.side * grid.rows, grid.side * grid.columns), np.inf)
    form[:, :HEIGHT, :WIDTH] = a * dx * dx + 2 * b * dx * dy + c * dy * dy
    return form.reshape(ROWS, grid.rows, grid.side, grid.columns, grid.side).min((2, 4)).reshape(ROWS, -1)


def forms_in_rectangles(proj: Projected, grid: tiles.Grid, grow: float) -> np.ndarray:
    """[rows, tiles] smallest form over the rectangle of each tile's pixel centres, ``grow`` pixels wider all round."""
    mx, my, a, b, c = np.asarray(proj.geometry, np.float64).T[:5, :, None]
    (row, column), side = np.divmod(np.arange(grid.count), grid.columns), grid.side
    x0, x1 = side * column + 0.5 - grow - mx, np.minimum(side * column + side, WIDTH) - 0.5 + grow - mx
    y0, y1 = side * row + 0.5 - grow - my, np.minimum(side * row + side, HEIGHT) - 0.5 + grow - my
    with np.errstate(invalid="ignore", divide="ignore"):  # rows that are not valid have no conic
        edges = [(x, np.clip(-b * x / c, y0, y1)) for x in (x0, x1)]
        edges += [(np.clip(-b * y / a, x0, x1), y) for y in (y0, y1)]
    least = np.min([a * x * x + 2 * b * x * y + c * y * y for x, y in edges], 0)
    return np.where((x0 <= 0) & (x1 >= 0) & (y0 <= 0) & (y1 >= 0), 0, least)


@functools.cache
def builder(room: int, side: int = 16):
    return jax.jit(lambda proj: tiles.build(proj, WIDTH, HEIGHT, room, side), compiler_options=QUICK)


@functools.cache
def counter(side: int = 16):
    return jax.jit(lambda proj: tiles.count(proj, WIDTH, HEIGHT, side), compiler_options=QUICK)


def listed(lists: tiles.TileLists) -> list[list[int]]:
    starts, rows = np.asarray(lists.starts), np.asarray(lists.rows)
    return [rows[starts[t]:starts[t + 1]].tolist() for t in range(lists.grid.count)]


def check(proj: Projected, side: int, margin: float) -> None:
    """``margin``: by how much the smallest form may miss the level before the verdict must agree."""
    lists = builder(ROOM, side)(proj)
    grid = tiles.grid_of(WIDTH, HEIGHT, side)
    assert lists.grid == grid
    assert not bool(lists.overflow)
    per_tile = listed(lists)
    valid, depth = np.asarray(proj.valid), np.asarray(proj.features[:, 3], np.float32)
    level = 2 * np.log(np.maximum(np.asarray(proj.opacity, np.float64), 1e-30) / MIN_ALPHA)
    member = np.zeros((ROWS, grid.count), bool)
    for tile, rows in enumerate(per_tile):
        assert rows == sorted(rows, key=lambda row: (depth[row], row)), "nearest first, ties in row order"
        assert len(set(rows)) == len(rows)
        member[rows, tile] = True
    assert not member[~valid].any()
    reached = (forms_at_pixels(proj, grid) <= level[:, None] - margin) & valid[:, None]
    assert not (reached & ~member).any(), "a pixel that a row reaches is in a tile that does not list it"
    reachable = forms_in_rectangles(proj, grid, 3 * tiles.SLACK) <= level[:, None] + margin
    assert not (member & ~reachable).any(), "a tile lists a row that reaches nothing in it"
    touched, pairs = counter(side)(proj)
    slots = int(lists.starts[-1])
    assert slots == sum(map(len, per_tile))
    assert int(pairs) == int(lists.pairs) >= slots
    assert {row for rows in per_tile for row in rows} <= set(np.flatnonzero(np.asarray(touched)).tolist())


SHAPES = {"side": st.sampled_from([8, 16]), "seed": st.integers(0, 10**6),
          "size": st.sampled_from([0.3, 3.0, 20.0, 80.0]), "opaque": st.sampled_from([0.3, 4.0])}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(**SHAPES)
def test_lists_equal_brute_force(side, seed, size, opaque):
    with jax.enable_x64(True):
        check(footprints(seed, jnp.float64, size=size, opaque=opaque), side, 1e-9)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(**SHAPES)
def test_lists_in_float32_differ_only_at_the_threshold(side, seed, size, opaque):
    """A margin of 0.01 in the exponent is half a percent of 1/255, that is 2e-5 of a response."""
    check(footprints(seed, jnp.float32, size=size, opaque=opaque), side, 0.01)


def test_overflow_is_flagged_and_room_enough_is_not():
    proj = footprints(3, jnp.float32, size=20.0, opaque=0.3)
    _, pairs = counter()(proj)
    assert int(pairs) > 64
    assert bool(builder(int(pairs) - 1)(proj).overflow)
    exact = builder(int(pairs))(proj)
    assert not bool(exact.overflow)
    assert listed(exact) == listed(builder(ROOM)(proj))


def test_asking_again_with_what_an_overflow_reports_ends():
    """The count after an overflow may be too small, since some strips had no room, but it grows until it suffices."""
    proj, room, tries = footprints(4, jnp.float32, size=80.0, opaque=0.3), 8, 0
    while bool((lists := builder(room)(proj)).overflow):
        assert int(lists.pairs) > room
        room, tries = int(lists.pairs), tries + 1
    assert 1 <= tries <= 2
    assert int(lists.pairs) == int(counter()(proj)[1])


def test_unused_slots_name_no_row():
    lists = builder(ROOM)(footprints(5, jnp.float32, size=3.0, opaque=0.3))
    assert np.all(np.asarray(lists.rows)[int(lists.starts[-1]):] == ROWS)


@pytest.mark.parametrize(("n", "n_tiles"), [(50_000, 3_000), (300_000, 60_000)])
def test_sorting_pairs_with_keys_of_one_word_and_of_two(n, n_tiles):
    assert ((n_tiles + 1) * n < 2**32) == (n == 50_000)
    rng = np.random.default_rng(0)
    rank = np.sort(rng.integers(0, n, 20_000)).astype(np.int32)
    tile = rng.choice([0, 1, 7, n_tiles // 2, n_tiles - 1, n_tiles], 20_000).astype(np.int32)
    found_tile, found_rank = tiles._sort(jnp.asarray(tile), jnp.asarray(rank), n, n_tiles)
    order = np.lexsort((rank, tile))
    np.testing.assert_array_equal(found_tile, tile[order])
    np.testing.assert_array_equal(found_rank, rank[order])


@pytest.mark.parametrize(("n", "key_bits"), [(1, 31), (2, 31), (1000, 31), (70_000, 31), (70_000, 5), (300, 32)])
def test_stable_order(n, key_bits):
    rng = np.random.default_rng(n)
    keys = rng.integers(0, 2**key_bits, n).astype(np.uint32)
    keys[n // 2:] = keys[:n - n // 2]
    found = tiles.stable_order(jnp.asarray(keys), key_bits)
    np.testing.assert_array_equal(found, np.argsort(keys, kind="stable"))


def test_depth_order_is_that_of_float32():
    """Depths that differ in float64 alone tie and keep row order; rows that are not shown come last."""
    with jax.enable_x64(True):
        depths = jnp.asarray([2.0 + 1e-12, 2.0, 0.25, 1e6, 0.2000001, 3.0])
        shown = jnp.asarray([True, True, True, True, True, False])
        assert tiles._by_depth(depths, shown).tolist() == [4, 2, 0, 1, 3, 5]
