"""A city made of one trained aerial capture: its tile repeated on the ground plane, written block by block.

Tiles are plain repetitions, moved and not turned or mirrored, so that view-dependent colours stay right. The photos are
renders of one tile alone, the same files for all tiles; where a pixel looks past the tile, its alpha is zero, which
takes it out of the loss: there the city shows neighbours that the photo cannot know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image
from rich.progress import track
from scipy.spatial.transform import Rotation

from odin_jax.evaluate import Drawer, png_name, to_8_bit
from odin_jax.loaded import LoadedRun
from odin_jax.runs import write_json
from splat.cameras import Camera
from splat.errors import UserError
from splat.gaussians import Gaussians
from splat.io.files import atomic_write
from splat.io.ply import write_ply, write_points
from splat.scene.matrixcity import ROWS
from splat.sh import C0

PHOTOS = "photos"  # folder of the images that all blocks share
COVERED = 0.9  # opacity of a pixel from which on nothing behind the tile matters there
SOLID = 0.1  # opacity of a row from which on it says where the ground lies and may become a point
_CLOSE = 0.9  # share of the solid rows, by distance from their median, that span the ground plane
_OPENCV_TO_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


@dataclass(frozen=True)
class Footprint:
    """The rectangle of one tile on the ground plane of a run."""

    centre: np.ndarray  # [3] world units
    axes: np.ndarray  # [3, 3] rows: along the tile's width, its depth, and up
    low: np.ndarray  # [2] world units along the first two axes, from the centre
    high: np.ndarray  # [2] world units

    def inside(self, points: np.ndarray) -> np.ndarray:
        """[P] bool: points [P, 3] above or below the rectangle."""
        flat = (points - self.centre) @ self.axes[:2].T
        return np.all((flat >= self.low) & (flat < self.high), axis=1)

    def shift(self, tile: tuple[int, int], tiles: tuple[int, int]) -> np.ndarray:
        """[3] how far tile (column, row) lies from the capture, which is the middle of the city."""
        steps = np.asarray(tile) - (np.asarray(tiles) - 1) / 2
        return (steps * (self.high - self.low)) @ self.axes[:2]


def find_footprint(rows: Gaussians, cameras: Sequence[Camera], share: float) -> Footprint:
    """The rectangle that holds ``share`` of the solid rows along each side; up is where the cameras are.

    Raises UserError where too few rows are solid to tell.
    """
    means = np.asarray(rows.means, np.float64)[_solid(rows)]
    if len(means) < 4:
        raise UserError(f"only {len(means)} rows have an opacity of at least {SOLID}; train longer before tiling")
    middle = np.median(means, axis=0)
    far = np.linalg.norm(means - middle, axis=1)
    near = means[far <= np.quantile(far, _CLOSE)]
    centre = near.mean(axis=0)
    _, _, axes = np.linalg.svd(near - centre, full_matrices=False)
    centres = np.stack([_centre(camera) for camera in cameras])
    if np.median((centres - centre) @ axes[2]) < 0:
        axes[2] = -axes[2]
    axes[1] = np.cross(axes[2], axes[0])
    flat = (means - centre) @ axes[:2].T
    low, high = np.quantile(flat, [(1 - share) / 2, (1 + share) / 2], axis=0)
    return Footprint(centre, axes, low, high)


def ground_within(footprint: Footprint, camera: Camera, pixels: np.ndarray) -> np.ndarray:
    """[P] bool: whether the rays through pixels [P, 2] (x, y) meet the ground plane within the tile."""
    view = np.asarray(camera.view, np.float64)
    fx, fy, cx, cy = np.asarray(camera.intrinsics, np.float64)
    rays = np.stack([(pixels[:, 0] - cx) / fx, (pixels[:, 1] - cy) / fy, np.ones(len(pixels))], axis=1) @ view[:3, :3]
    sinking = -rays @ footprint.axes[2]
    height = (_centre(camera) - footprint.centre) @ footprint.axes[2]
    meets = (sinking > 1e-6) & (height > 0)
    places = _centre(camera) + rays * (height / np.where(meets, sinking, 1.0))[:, None]
    return meets & footprint.inside(places)


def looks_at(footprint: Footprint, camera: Camera) -> bool:
    """Whether the camera's axis meets the ground plane within the tile."""
    return bool(ground_within(footprint, camera, np.asarray(camera.intrinsics)[None, 2:])[0])


def choose_views(views: Sequence[tuple[str, Camera]], most: int | None) -> list[tuple[str, Camera]]:
    """At most ``most`` of the views, evenly spread over their names."""
    ordered = sorted(views, key=lambda view: view[0])
    if most is None or len(ordered) <= most:
        return ordered
    return [ordered[at] for at in ((np.arange(most) + 0.5) * len(ordered) / most).astype(int)]


def choose_split(train: Sequence[tuple[str, Camera]], test: Sequence[tuple[str, Camera]], most: int | None
                 ) -> tuple[list[tuple[str, Camera]], list[tuple[str, Camera]]]:
    """At most ``most`` views in all, of both splits in their proportion, at least one of each where ``most`` allows."""
    if most is None or not train:
        return choose_views(train, None), choose_views(test, None)
    tests = min(len(test), most - 1, max(1, round(most * len(test) / (len(train) + len(test)))))
    return choose_views(train, most - tests), choose_views(test, tests)


def sized(rows: Gaussians, count: int | None, seed: int) -> Gaussians:
    """``count`` of the rows: a seeded choice where there are more, split ones where there are fewer.

    A row of which k copies are needed is split as densification does: places drawn from it, scales over 0.8 k.
    """
    have = rows.count
    if count is None or count == have:
        return rows
    rng = np.random.default_rng(seed)
    if count < have:
        return take(rows, np.sort(rng.choice(have, count, replace=False)))
    copies = np.full(have, count // have)
    copies[rng.choice(have, count % have, replace=False)] += 1
    parents = np.repeat(np.arange(have), copies)
    more, split = take(rows, parents), copies[parents] > 1
    lengths = np.exp(np.asarray(more.log_scales, np.float64))
    offsets = np.zeros((count, 3))
    offsets[:, :lengths.shape[1]] = lengths * rng.normal(size=lengths.shape)
    moved = np.einsum("nij,nj->ni", _rotations(np.asarray(more.quats, np.float64)), offsets)
    return dataclasses.replace(
        more, means=(more.means + split[:, None] * moved).astype(np.float32),
        log_scales=np.where(split[:, None], more.log_scales - np.log(0.8 * copies[parents])[:, None],
                            more.log_scales).astype(np.float32))


def take(rows: Gaussians, which: np.ndarray | slice) -> Gaussians:
    """The rows ``which`` ([n] integers or [N] bool) as NumPy arrays."""
    return jax.tree.map(lambda field: np.asarray(field)[which], rows)


def write_photo(path: Path, drawer: Drawer, footprint: Footprint, camera: Camera) -> None:
    """Render one view of the tile as RGBA; alpha 255 where the tile's ground or an opaque part of the tile is seen."""
    black, rest = (np.asarray(image) for image in drawer(camera))
    x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    ground = ground_within(footprint, camera, np.stack([x.ravel(), y.ravel()], axis=1)).reshape(x.shape)
    known = ground | (1 - rest.mean(axis=-1) >= COVERED)
    pixels = np.dstack([to_8_bit(black), np.where(known, 255, 0).astype(np.uint8)])
    with atomic_write(path) as file:
        Image.fromarray(pixels).save(file, format="PNG")


def render_photos(run: LoadedRun, rows: Gaussians, footprint: Footprint, views: Sequence[tuple[str, Camera]],
                  folder: Path) -> list[tuple[str, Camera]]:
    """Write the photos of the views with their names of files below ``folder``, shown as they come."""
    def both(gaussians: Gaussians, camera: Camera, background: Any, room: int) -> tuple[jax.Array, ...]:
        black, pairs = run.pipeline.render(gaussians, camera, background, room)
        white, _ = run.pipeline.render(gaussians, camera, background + 1, room)
        return black, white - black, pairs

    drawer = Drawer(both, rows, np.zeros(3, np.float32))
    names = [name for name, _ in views]
    done = []
    for name, camera in track(views, description="photos"):
        file = png_name(name, names)
        write_photo(folder / file, drawer, footprint, camera)
        done.append((file, camera))
    return done


def write_block(folder: Path, rows: Gaussians, points: tuple[np.ndarray, np.ndarray], shift: np.ndarray,
                views: dict[str, list[tuple[str, Camera]]]) -> None:
    """One tile, moved by ``shift`` [3]: points.ply, gaussians.ply and a listing per split that has views.

    Raises UserError when the folder cannot be written to.
    """
    write_points(points[0] + shift, points[1], folder / "points.ply")
    means = (np.asarray(rows.means, np.float64) + shift).astype(np.float32)
    write_ply(dataclasses.replace(rows, means=means), folder / ROWS)  # type: ignore[arg-type]  # NumPy
    for role, listed in views.items():
        if listed:
            frames = [_frame(name, camera, shift) for name, camera in listed]
            write_json(folder / f"transforms_{role}.json", {"frames": frames})


def points_of(rows: Gaussians, count: int | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """([P, 3] float64 places, [P, 3] uint8 colours) of at most ``count`` solid rows, a seeded choice."""
    chosen = np.flatnonzero(_solid(rows))
    if count is not None and count < len(chosen):
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, count, replace=False))
    colours = to_8_bit(0.5 + C0 * np.asarray(rows.sh_dc)[chosen])
    return np.asarray(rows.means, np.float64)[chosen], colours


def _frame(name: str, camera: Camera, shift: np.ndarray) -> dict[str, Any]:
    view = np.asarray(camera.view, np.float64)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = view[:3, :3].T, _centre(camera) + shift
    fx, fy, cx, cy = (float(value) for value in np.asarray(camera.intrinsics))
    return {"file_path": f"../{PHOTOS}/{name}", "transform_matrix": (pose @ _OPENCV_TO_OPENGL).tolist(),
            "fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": camera.width, "h": camera.height}


def _solid(rows: Gaussians) -> np.ndarray:
    return np.asarray(rows.opacity_logits) >= np.log(SOLID / (1 - SOLID))


def _centre(camera: Camera) -> np.ndarray:
    view = np.asarray(camera.view, np.float64)
    return -view[:3, :3].T @ view[:3, 3]


def _rotations(quats: np.ndarray) -> np.ndarray:
    """[N, 3, 3] rotations of quaternions (w, x, y, z)."""
    return Rotation.from_quat(quats, scalar_first=True).as_matrix()
