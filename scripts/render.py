"""Render a trained scene: its test views, an orbit around it, or a ride along the training cameras."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from imageio_ffmpeg import get_ffmpeg_exe

from odin_jax import paths
from odin_jax.depth_pictures import Drawn, painter_of
from odin_jax.evaluate import png_name, write_png
from odin_jax.loaded import LoadedRun, open_run
from splat.cameras import Camera
from splat.errors import UserError


@dataclass(frozen=True)
class RenderConfig:
    """Render a trained scene: its test views, an orbit around it, or a ride along the training cameras."""

    dir: Annotated[Path, tyro.conf.Positional]  # folder written by `odin train --out`
    what: Literal["test", "orbit", "path"] = "orbit"  # which cameras
    show: Drawn = "colour"  # colours, near (red) to far (blue), or where surfaces face
    format: Literal["mp4", "png"] = "mp4"  # one video, or one PNG per frame
    out: Path | None = None  # file (mp4) or folder (png); None: DIR/WHAT.mp4 or DIR/WHAT
    frames: int = 120  # length of an orbit or path, frames
    fps: int = 30  # frames per second of the video


def main(config: RenderConfig) -> None:
    """Write the video or the PNGs and print where. Raises UserError when there is nothing to render."""
    if config.frames < 1 or config.fps < 1:
        raise UserError(f"--frames {config.frames} --fps {config.fps}: both must be at least 1")
    run = open_run(config.dir)
    cameras = _cameras(run, config)
    painter = painter_of(run, config.show)
    frames = ((name, painter(camera)) for name, camera in cameras)
    if config.format == "png":
        folder = config.out or config.dir / config.what
        for name, pixels in frames:
            write_png(folder / name, pixels)
        print(f"{folder}: {len(cameras)} images")
    else:
        file = config.out or config.dir / f"{config.what}.mp4"
        _write_video(file, frames, config.fps)
        print(f"{file}: {len(cameras)} frames")


def _cameras(run: LoadedRun, config: RenderConfig) -> list[tuple[str, Camera]]:
    if config.what == "test":
        found = run.cameras("test")
        if not found:
            raise UserError(f"{config.dir} has no test views; use --what orbit or path")
        names = [name for name, _ in found]
        return [(png_name(name, names), camera) for name, camera in found]
    along = [camera for _, camera in run.cameras("train")]
    if not along:
        raise UserError(f"{run.folder.cameras} lists no training camera; train again")
    made = (paths.orbit(along, config.frames, np.asarray(run.gaussians.means)) if config.what == "orbit"
            else paths.ride(along, config.frames))
    return [(f"{index:04d}.png", camera) for index, camera in enumerate(made)]


def _write_video(file: Path, frames: Iterator[tuple[str, np.ndarray]], fps: int) -> None:
    """H.264 at the size of the first frame, made even as the codec wants; others are cut or padded.

    ffmpeg is started directly, not through imageio, which forks in a way that JAX's threads may not survive.
    """
    if file.is_dir():
        raise UserError(f"--out {file} is a folder; name a file that ends in .mp4, or give --format png")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write --out {file} ({error.strerror}); choose another folder") from error
    part = file.with_name(f".{file.stem}.tmp.mp4")
    _, first = next(frames)
    height, width = first.shape[0] // 2 * 2, first.shape[1] // 2 * 2
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
               "-s", f"{width}x{height}", "-r", str(fps), "-i", "-", "-c:v", "libx264", "-crf", "18",
               "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(part)]
    try:
        encoder = subprocess.Popen(command, stdin=subprocess.PIPE)
        with suppress(BrokenPipeError), encoder:  # what broke the pipe is told by the exit code
            assert encoder.stdin is not None
            for pixels in chain([first], (pixels for _, pixels in frames)):
                canvas = np.zeros((height, width, 3), np.uint8)
                kept = pixels[:height, :width]
                canvas[:kept.shape[0], :kept.shape[1]] = kept
                encoder.stdin.write(canvas.tobytes())
        if encoder.returncode:
            raise UserError(f"ffmpeg could not write {file}; choose another --out or --format png")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["render", *sys.argv[1:]])
