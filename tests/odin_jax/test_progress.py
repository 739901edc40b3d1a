"""TensorBoard's files: what is written can be read, and what cannot be written never stops the training."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from odin_jax.progress import Progress, Scalars, StepNumbers

NUMBERS = StepNumbers(step=7, loss=0.5, mse=0.01, gaussians=3, pairs=9, samples=1)


def events(folder: Path) -> list[Event]:
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_scalars_and_images_are_on_disk_before_the_file_is_closed(tmp_path):
    scalars = Scalars(tmp_path / "new" / "tensorboard", first_step=5)
    progress = Progress(5, 10)
    progress.step(NUMBERS)
    scalars.step(NUMBERS, progress)
    scalars.image("view", np.zeros((4, 6, 3), np.uint8), 7)
    version, start, *rest = events(tmp_path / "new" / "tensorboard")
    assert version.file_version == "brain.Event:2"
    assert start.step == 5 and start.session_log.status == start.session_log.START
    values = {value.tag: value for event in rest for value in event.summary.value}
    assert {event.step for event in rest} == {7}
    assert values["train/loss"].simple_value == 0.5 and values["state/gaussians"].simple_value == 3
    assert (values["view"].image.width, values["view"].image.height) == (6, 4)
    scalars.close()


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_a_file_that_cannot_be_written_is_told_once_and_nothing_stops(tmp_path, capsys, when):
    if when == "at the start":
        (tmp_path / "tensorboard").write_text("mine")
    scalars = Scalars(tmp_path / "tensorboard", first_step=1)
    if when == "later" and scalars._file is not None:
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        scalars._file._py_recordio_writer._writer = full
    for step in range(1, 40):  # more than any queue of a writer's thread holds
        scalars.scalar("loss", 0.5, step)
        scalars.image("view", np.zeros((4, 6, 3), np.uint8), step)
    scalars.close()
    assert capsys.readouterr().out.count("TensorBoard files cannot be written") == 1


def test_the_estimate_leaves_out_the_first_step_which_compiles(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    progress = Progress(1, 10)
    first, second = (NUMBERS.__class__(step, 0.5, 0.1, 3, 7, 1) for step in (1, 2))
    now[0] = 60.0
    progress.step(first)
    assert progress.numbers().keys() == {"train_psnr", "train_loss"}
    now[0] = 61.0
    progress.step(second)
    assert progress.line(second).endswith("1.00 samples/s  left 0:08")
