import jax.numpy as jnp
import numpy as np
import pytest

from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.splat import read_splat, write_splat


def gaussians(count: int = 50) -> Gaussians:
    rng = np.random.default_rng(1)

    def draw(*shape: int, size: float = 1.0):
        return jnp.asarray(rng.normal(scale=size, size=shape), jnp.float32)

    return Gaussians(
        draw(count, 3, size=5),
        draw(count, 3) - 3,
        draw(count, 4),
        draw(count),
        draw(count, 3, size=0.5),
        draw(count, 15, 3),
    )


def by_place(rows: Gaussians) -> Gaussians:
    return rows.take(jnp.argsort(rows.means[:, 0]))


def test_a_round_trip_keeps_what_the_format_holds(tmp_path):
    rows = by_place(gaussians())
    write_splat(rows, tmp_path / "a.splat")
    assert (tmp_path / "a.splat").stat().st_size == 32 * rows.count
    back = by_place(read_splat(tmp_path / "a.splat"))
    np.testing.assert_array_equal(back.means, rows.means)
    np.testing.assert_allclose(back.log_scales, rows.log_scales, atol=1e-6)
    np.testing.assert_allclose(back.opacities, rows.opacities, atol=0.51 / 255)
    colour = np.clip(0.5 + 0.28209479177387814 * np.asarray(rows.sh_dc), 0, 1)
    np.testing.assert_allclose(0.5 + 0.28209479177387814 * np.asarray(back.sh_dc), colour, atol=0.51 / 255)
    unit = rows.quats / np.linalg.norm(rows.quats, axis=1, keepdims=True)
    np.testing.assert_allclose(back.quats, unit, atol=1.01 / 128)
    assert not np.asarray(back.sh_rest).any()


def test_the_bytes_of_one_row_are_those_of_the_web_viewer(tmp_path):
    row = Gaussians(
        jnp.asarray([[1.0, -2.0, 3.5]]),
        jnp.log(jnp.asarray([[0.5, 0.25, 2.0]])),
        jnp.asarray([[0.0, 2.0, 0.0, -2.0]]),
        jnp.asarray([0.0]),
        jnp.asarray([[0.0, 10.0, -10.0]]),
        jnp.zeros((1, 15, 3)),
    )
    write_splat(row, tmp_path / "a.splat")
    data = (tmp_path / "a.splat").read_bytes()
    np.testing.assert_allclose(np.frombuffer(data[:24], "<f4"), [1, -2, 3.5, 0.5, 0.25, 2], rtol=1e-6)
    half = round(128 * np.sqrt(0.5))
    assert list(data[24:28]) == [128, 255, 0, 128] and list(data[28:]) == [128, 128 + half, 128, 128 - half]


def test_the_most_visible_rows_come_first_and_dead_ones_not_at_all(tmp_path):
    rows = gaussians()
    alive = np.arange(50) % 3 > 0
    write_splat(rows, tmp_path / "a.splat", alive=alive)
    back = read_splat(tmp_path / "a.splat")
    weight = np.exp(np.asarray(rows.log_scales, np.float64).sum(axis=1)) * np.asarray(
        rows.opacities, np.float64
    )
    order = np.flatnonzero(alive)[np.argsort(-weight[alive])]
    np.testing.assert_array_equal(back.means, rows.means[order])


def test_extreme_opacities_stay_finite(tmp_path):
    rows = gaussians(2).replace(opacity_logits=jnp.asarray([-80.0, 80.0]))
    write_splat(rows, tmp_path / "a.splat")
    logits = np.asarray(read_splat(tmp_path / "a.splat").opacity_logits)
    assert np.isfinite(logits).all() and sorted(np.sign(logits)) == [-1, 1]


def test_bad_files_are_refused_by_one_line(tmp_path):
    path = tmp_path / "a.splat"
    with pytest.raises(UserError, match=r"a\.splat does not exist; check the path"):
        read_splat(path)
    write_splat(gaussians(3), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"a\.splat has 95 bytes, no multiple of 32; copy it again"):
        read_splat(path)
    path.write_bytes(whole[:32] + np.float32(np.nan).tobytes() + whole[36:])
    with pytest.raises(UserError, match=r"a\.splat field mean row 1 is not finite .*export the scene again"):
        read_splat(path)


def test_surfels_have_no_place_in_the_format(tmp_path):
    rows = gaussians(3)
    with pytest.raises(UserError, match=r"no surfels; export a \.ply"):
        write_splat(rows.replace(log_scales=rows.log_scales[:, :2]), tmp_path / "a.splat")
