"""Checkpoints: complete or absent, the last few kept, exact, and refused where they do not fit."""

from __future__ import annotations

import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from odin_jax import checkpoint
from odin_jax.checkpoint import Checkpoints, steps_in
from splat.errors import UserError

STATE = {
    "means": jnp.linspace(0, 1, 12).reshape(4, 3),
    "alive": jnp.array([True, False, True, True]),
    "key": jnp.array([3, 7], jnp.uint32),
    "count": jnp.int32(5),
}
META = {"step": 3, "rooms": [[64, 48, 1024, 900]], "wall_s": 1.5}


@pytest.fixture
def folder(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, STATE, META)
    checkpoints.finish()
    return tmp_path / "checkpoints"


def test_the_newest_are_kept_and_exact_whatever_the_template_s_shapes(folder):
    assert steps_in(folder) == [2, 3]
    template = {name: jnp.zeros((1,) * leaf.ndim, leaf.dtype) for name, leaf in STATE.items()}
    state, meta = checkpoint.restore(folder, 3, template)
    assert meta == META
    for name, leaf in STATE.items():
        assert state[name].dtype == leaf.dtype
        assert np.array_equal(state[name], leaf)


def test_a_state_of_another_shape_of_tree_is_refused_by_name(folder):
    with pytest.raises(UserError, match=r"another pipeline or version.*momentum"):
        checkpoint.restore(folder, 3, {**STATE, "momentum": jnp.zeros(1)})


def test_what_was_saved_does_not_change_with_the_state(tmp_path):
    values = np.ones(200_000, np.float32)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, {"a": values}, {})
    values[:] = 2
    checkpoints.finish()
    assert (checkpoint.read(tmp_path / "checkpoints", 1)[0]["a"] == 1).all()


def test_a_half_written_checkpoint_is_not_one(folder):
    (folder / "4.orbax-checkpoint-tmp").mkdir()
    assert steps_in(folder) == [2, 3]
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.save(4, STATE, META)
    checkpoints.finish()
    assert steps_in(folder) == [3, 4]


def test_a_damaged_checkpoint_is_one_line_with_the_remedy(folder):
    for file in (folder / "3").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot read the checkpoint .*delete that folder") as caught:
        checkpoint.read(folder, 3)
    assert "\n" not in str(caught.value)


def test_a_write_that_the_disk_refused_in_the_background_is_one_line(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)

    def full():
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write 9 bytes [os_error_code='28']\nmore")

    monkeypatch.setattr(checkpoints._manager, "wait_until_finished", full)
    with pytest.raises(UserError, match=r"cannot write a checkpoint to .*: No space left on device; free space"):
        checkpoints.finish()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"cannot write a checkpoint to .*checkpoints: .*Not a directory"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)


def test_the_system_s_reason_is_picked_from_a_long_text():
    text = "RESOURCE_EXHAUSTED: Error writing \"a/0\": Failed to write 9 bytes to file 4 [os_error_code='28']"
    assert checkpoint._line(ValueError(text)) == "No space left on device"


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_one_changed_bit_of_an_array_is_noticed(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, {"a": np.random.default_rng(0).normal(size=4000)}, META)
    checkpoints.finish()
    file = largest_file(tmp_path / "checkpoints" / "1")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with pytest.raises(UserError, match="delete that folder"):
        checkpoint.read(tmp_path / "checkpoints", 1)


def test_a_changed_number_of_the_json_part_is_noticed(folder):
    file = folder / "3" / "meta" / "metadata"
    file.write_text(file.read_text().replace("1.5", "2.5"))
    with pytest.raises(UserError, match="checksums"):
        checkpoint.read(folder, 3)


def test_reads_that_outlive_a_damaged_checkpoint_print_nothing(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, {f"a{i}": rng.normal(size=20_000) for i in range(30)}, META)
    checkpoints.finish()
    file = largest_file(tmp_path / "checkpoints" / "1")
    data = file.read_bytes()
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: heard.append(str(unraisable.exc_value)))
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        file.write_bytes(data[: int(share * len(data))])
        with pytest.raises(UserError, match="cannot read the checkpoint"):
            checkpoint.read(tmp_path / "checkpoints", 1)
    time.sleep(0.3)  # the reads that were left behind end in threads of their own
    assert heard == []
