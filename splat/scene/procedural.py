"""A small world made by code, photographed and written as a COLMAP capture. numpy only.

A tiled court inside a brick wall with boxes, pillars and balls that hide one another, seen from two camera
paths: an orbit and a higher spiral. SfM points lie on the surfaces; an observation is kept only where a ray
proves that the camera sees the point.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from splat.errors import UserError
from splat.io.files import atomic_write
from splat.scene.raycast import Box, Floor, Pillar, Shape, Sphere, Wall, cast, pixel_rays, render_view
from splat.scene.textures import Texture, make_texture

_WALL_RADIUS, _WALL_HEIGHT = 6.5, 3.6  # world units
_FIELD_OF_VIEW = np.deg2rad(62.0)  # horizontal
_CANDIDATES = 100  # surface points tried per view
_SEEN_SHARE = 0.7  # of the true observations that feature matching is taken to find
_POINT_ERROR = 0.002  # world units, largest error of a point per axis
_PIXEL_ERROR = 0.3  # pixels, largest error of an observation per axis
_MIN_TRACK = 3  # views a point needs


@dataclass(frozen=True, eq=False)
class World:
    """The shapes and the cameras of one seed."""

    shapes: tuple[Shape, ...]
    names: tuple[str, ...]  # of the photos
    views: np.ndarray  # [V, 4, 4] world → camera, OpenCV axes
    intrinsics: np.ndarray  # [4] fx, fy, cx, cy pixels
    width: int  # pixels
    height: int  # pixels


@dataclass(frozen=True, eq=False)
class SfmPoints:
    """What structure from motion would have found."""

    points: np.ndarray  # [P, 3] world units
    colours: np.ndarray  # [P, 3] uint8
    view: np.ndarray  # [n] view of an observation, sorted
    point: np.ndarray  # [n] row of points
    pixel: np.ndarray  # [n, 2] where it was observed


def write_scene(out_dir: str | Path, *, seed: int = 0, views: int = 48, width: int = 400, height: int = 300
                ) -> Path:
    """Photograph the world of ``seed``; write ``images/*.png`` and a COLMAP text model in ``sparse/0``.

    Args:
        out_dir: folder of the capture; existing files of the same names are replaced.
        seed: everything follows from it, bit for bit.
        views: photos over both paths, at least 8.
        width: pixels.
        height: pixels.

    Returns:
        ``out_dir`` as a Path.

    Raises:
        UserError: too few views, too small photos, or a folder that cannot be written to.
    """
    if views < 8 or min(width, height) < 32:
        raise UserError(f"a procedural scene of {views} views at {width}x{height} is too small; use at least "
                        "8 views of 32x32")
    out = Path(out_dir)
    world = make_world(seed, views, width, height)
    photos = []
    for name, view in zip(world.names, world.views, strict=True):
        photo, _ = render_view(world.shapes, view, world.intrinsics, width, height)
        photos.append(photo)
        with atomic_write(out / "images" / name) as file:
            Image.fromarray(photo).save(file, format="PNG", compress_level=3)
    _write_model(out / "sparse" / "0", world, find_points(world, photos, seed))
    return out


def make_world(seed: int, views: int, width: int, height: int) -> World:
    """The shapes of ``seed`` and cameras on an orbit (about 60 % of the views) and a rising spiral."""
    orbit = round(0.6 * views)
    low = _path(orbit, radius=(4.3, 4.3), height=(1.5, 1.9), turns=1.0, sways=3)
    high = _path(views - orbit, radius=(3.9, 2.4), height=(2.6, 4.0), turns=1.5, sways=0)
    names = [f"orbit_{i:03d}.png" for i in range(len(low))]
    names += [f"spiral_{i:03d}.png" for i in range(len(high))]
    poses = [_look_at(place, np.asarray([0, 0, 0.55])) for place in low]
    poses += [_look_at(place, np.asarray([0, 0, 0.3])) for place in high]
    focal = 0.5 * width / np.tan(0.5 * _FIELD_OF_VIEW)
    return World(_shapes(seed), tuple(names), np.stack(poses),
                 np.asarray([focal, focal, width / 2, height / 2]), width, height)


def find_points(world: World, photos: list[np.ndarray], seed: int) -> SfmPoints:
    """SfM points on what the photos show, with tracks checked by a ray from every camera to every point."""
    rng = np.random.default_rng([seed, 2])
    truth, colours = _candidates(world, photos, rng)
    seen, pixels = _visible(world, truth)
    seen &= rng.random(seen.shape) < _SEEN_SHARE
    kept = np.flatnonzero(seen.sum(axis=0) >= _MIN_TRACK)
    view, point = np.nonzero(seen[:, kept])
    noise = rng.uniform(-_PIXEL_ERROR, _PIXEL_ERROR, (len(view), 2))
    points = truth[kept] + rng.uniform(-_POINT_ERROR, _POINT_ERROR, (len(kept), 3))
    return SfmPoints(points, colours[kept], view, point, pixels[view, kept[point]] + noise)


def _shapes(seed: int) -> tuple[Shape, ...]:
    rng = np.random.default_rng([seed, 1])

    def texture(kind: str, low: tuple[float, ...], high: tuple[float, ...], period: float,
                size: int = 256) -> Texture:
        palette = np.clip(np.asarray([low, high]) + rng.uniform(-0.06, 0.06, (2, 3)), 0, 1)
        return make_texture(kind, int(rng.integers(1 << 31)), size, period, palette)

    floor = Floor(texture("tiles", (0.55, 0.50, 0.42), (0.88, 0.84, 0.74), 14.0, 1024))
    wall = Wall(texture("bricks", (0.52, 0.25, 0.18), (0.78, 0.46, 0.33), 2 * np.pi * _WALL_RADIUS / 12, 512),
                _WALL_RADIUS, _WALL_HEIGHT)
    turn = rng.uniform(0, 2 * np.pi)

    def spot(angle: float, radius: float, height: float) -> np.ndarray:
        across = radius * np.asarray([np.cos(turn + angle), np.sin(turn + angle)])
        return np.append(across + rng.uniform(-0.12, 0.12, 2), height)

    def box(kind: str, low: tuple[float, ...], high: tuple[float, ...], place: tuple[float, float],
            half: tuple[float, float, float]) -> Box:
        colours = texture(kind, low, high, 1.2)
        return Box(colours, spot(*place, half[2]), np.asarray(half), rng.uniform(0, np.pi))

    plinth = box("checks", (0.16, 0.22, 0.40), (0.88, 0.86, 0.78), (0.0, 0.0), (0.62, 0.62, 0.35))
    on_top = plinth.centre + np.asarray([0, 0, 0.35 + 0.5])
    ball = Sphere(texture("marble", (0.85, 0.20, 0.18), (0.98, 0.80, 0.55), 1.6), on_top, 0.5)
    return (
        floor, wall, plinth, ball,
        box("stripes", (0.12, 0.45, 0.42), (0.94, 0.90, 0.62), (0.3, 1.7), (0.35, 0.45, 0.7)),
        box("bricks", (0.30, 0.42, 0.62), (0.62, 0.72, 0.86), (1.55, 2.1), (0.5, 0.28, 0.42)),
        box("rings", (0.42, 0.26, 0.13), (0.80, 0.58, 0.34), (3.0, 1.5), (0.32, 0.32, 0.32)),
        box("marble", (0.20, 0.36, 0.20), (0.80, 0.88, 0.62), (4.6, 2.6), (0.30, 0.70, 0.55)),
        Sphere(texture("checks", (0.95, 0.72, 0.15), (0.30, 0.16, 0.42), 0.9), spot(2.35, 1.6, 0.42), 0.42),
        Sphere(texture("stripes", (0.15, 0.30, 0.70), (0.92, 0.94, 0.96), 1.1), spot(5.4, 1.45, 0.34), 0.34),
        Sphere(texture("rings", (0.75, 0.32, 0.45), (0.98, 0.86, 0.84), 0.8), spot(0.95, 2.8, 0.3), 0.3),
        Pillar(texture("stripes", (0.86, 0.84, 0.8), (0.7, 0.22, 0.16), 0.9), spot(3.75, 2.2, 0), 0.26, 1.35),
        Pillar(texture("bricks", (0.62, 0.56, 0.46), (0.86, 0.80, 0.68), 1), spot(4.05, 1.2, 0), 0.22, 0.85),
        Pillar(texture("marble", (0.24, 0.24, 0.30), (0.72, 0.74, 0.82), 1), spot(5.8, 2.7, 0), 0.32, 1.0),
    )


def _path(count: int, *, radius: tuple[float, float], height: tuple[float, float], turns: float, sways: int
          ) -> np.ndarray:
    """[count, 3] camera places around the z axis from the first radius and height to the second.

    With ``sways`` the height goes up and down that often instead.
    """
    share = np.arange(count) / count
    angle = 2 * np.pi * turns * share
    distance = radius[0] + (radius[1] - radius[0]) * share
    rise = 0.5 - 0.5 * np.cos(2 * np.pi * sways * share) if sways else share
    level = height[0] + (height[1] - height[0]) * rise
    return np.stack([distance * np.cos(angle), distance * np.sin(angle), level], axis=1)


def _look_at(place: np.ndarray, target: np.ndarray) -> np.ndarray:
    forward = (target - place) / np.linalg.norm(target - place)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = rotation, -rotation @ place
    return view


def _candidates(world: World, photos: list[np.ndarray], rng: np.random.Generator
                ) -> tuple[np.ndarray, np.ndarray]:
    """Surface points under random pixels of every view, and the colours there."""
    points, colours = [], []
    for view, photo in zip(world.views, photos, strict=True):
        pixel = rng.uniform(0, 1, (_CANDIDATES, 2)) * [world.width, world.height]
        centre, direction = pixel_rays(view, world.intrinsics, pixel)
        distance, _ = cast(world.shapes, centre, direction)
        hit = np.isfinite(distance)
        points.append(centre + distance[hit, None] * direction[hit])
        column, row = pixel[hit].astype(int).T
        colours.append(photo[row, column])
    return np.concatenate(points), np.concatenate(colours)


def _visible(world: World, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([V, P] whether a view sees a point unoccluded and inside its frame, [V, P, 2] pixel positions)."""
    seen, pixels = [], []
    margin = 1.0  # pixels, so that an observation with its error stays inside
    for view in world.views:
        local = points @ view[:3, :3].T + view[:3, 3]
        deep = np.maximum(local[:, 2], 1e-6)
        pixel = world.intrinsics[:2] * local[:, :2] / deep[:, None] + world.intrinsics[2:]
        inside = (local[:, 2] > 0.1) & (pixel > margin).all(axis=1)
        inside &= (pixel < np.asarray([world.width, world.height]) - margin).all(axis=1)
        centre = -view[:3, :3].T @ view[:3, 3]
        ray = points - centre
        far = np.linalg.norm(ray, axis=1)
        distance, _ = cast(world.shapes, centre, ray / far[:, None])
        seen.append(inside & (np.abs(distance - far) < 1e-6 * far))
        pixels.append(pixel)
    return np.stack(seen), np.stack(pixels)


def _write_model(folder: Path, world: World, sfm: SfmPoints) -> None:
    """COLMAP's text format: cameras.txt, images.txt, points3D.txt (colmap.github.io/format.html)."""
    camera = " ".join(repr(float(value)) for value in world.intrinsics)
    _write_text(folder / "cameras.txt", [f"1 PINHOLE {world.width} {world.height} {camera}"])
    slot = np.arange(len(sfm.view)) - np.searchsorted(sfm.view, sfm.view)  # place of each within its photo
    images = []
    for index, (name, view) in enumerate(zip(world.names, world.views, strict=True)):
        pose = " ".join(repr(float(value)) for value in (*_quaternion(view[:3, :3]), *view[:3, 3]))
        images.append(f"{index + 1} {pose} 1 {name}")
        rows = np.flatnonzero(sfm.view == index)
        images.append(" ".join(f"{sfm.pixel[row, 0]:.4f} {sfm.pixel[row, 1]:.4f} {sfm.point[row] + 1}"
                               for row in rows))
    _write_text(folder / "images.txt", images)
    order = np.argsort(sfm.point, kind="stable")
    starts = np.searchsorted(sfm.point[order], np.arange(len(sfm.points) + 1))
    points = []
    for row, (point, colour) in enumerate(zip(sfm.points, sfm.colours, strict=True)):
        track = " ".join(f"{sfm.view[at] + 1} {slot[at]}" for at in order[starts[row]:starts[row + 1]])
        place = " ".join(repr(float(value)) for value in point)
        points.append(f"{row + 1} {place} {colour[0]} {colour[1]} {colour[2]} {_PIXEL_ERROR} {track}")
    _write_text(folder / "points3D.txt", points)


def _write_text(path: Path, lines: list[str]) -> None:
    with atomic_write(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def _quaternion(rotation: np.ndarray) -> np.ndarray:
    """(w, x, y, z) of a rotation matrix: the eigenvector of Bar-Itzhack's symmetric matrix."""
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    matrix = np.asarray([[xx + yy + zz, zy - yz, xz - zx, yx - xy], [zy - yz, xx - yy - zz, yx + xy, xz + zx],
                         [xz - zx, yx + xy, yy - xx - zz, zy + yz],
                         [yx - xy, xz + zx, zy + yz, zz - xx - yy]])
    quaternion = np.linalg.eigh(matrix)[1][:, -1]
    return quaternion * (1 if quaternion[0] >= 0 else -1)
