"""From what a source lists to a Scene: photos found and measured, cameras exact, tracks and split built."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from splat.errors import UserError
from splat.scene.photos import Header, read_header, training_size
from splat.scene.source import Lens, SourceScene, SourceView, two_focal
from splat.scene.split import scene_extent, split_by_name, split_by_roles
from splat.scene.types import AlphaMode, Distortion, Photo, Scene, Tracks

_RANDOM_POINTS = 100_000  # spec §0.1
_RANDOM_EXTENTS = 3.0  # half side of the random cube in units of the camera spread, as gsplat draws it
_SIZE_SLACK = 1.0  # pixels by which rounding may bend the aspect ratio of a resized photo
_WIDE = 1600  # pixels, above which the reference reduces photos by default (spec §0)
_SHOWN = 3  # names listed in a warning


@dataclass(frozen=True)
class LoadOptions:
    """How a source becomes a Scene."""

    downscale: float  # photo side over training side
    test_every: int  # every n-th photo by name is a test view; 0: none
    seed: int  # of the random start
    background: tuple[float, float, float]  # 0..1
    alpha: AlphaMode  # what an alpha channel means


def assemble(source: SourceScene, path: Path, options: LoadOptions) -> Scene:
    """The Scene of ``source``; photos are measured by their headers, none is decoded.

    Raises:
        UserError: no photo is there, a photo is broken, sizes disagree, a pose or a lens is unusable.
    """
    found, warnings = _present(source.views, path)
    kept = [view for view, _ in found]
    photos = tuple(_photo(view, header, source.masks_folder, options) for view, header in found)
    train, test = _split(kept, options.test_every)
    centres = np.stack([photos[index].centre for index in train])
    extent, extent_warnings = _extent(centres, source.points)
    points, colours, rows, point_warnings = _points(source, centres, extent, options)
    order = {id(view): index for index, view in enumerate(kept)}
    new_index = np.asarray([order.get(id(view), -1) for view in source.views], np.int64)
    tracks = build_tracks(new_index[source.seen_by], rows[source.seen_point], len(photos))
    return Scene(
        name=path.stem if path.is_file() else path.name, photos=photos, points=points, colours=colours,
        tracks=tracks, train=train, test=test, extent=extent, source=path, alpha=options.alpha,
        background=options.background,
        warnings=(*source.warnings, *warnings, *_large(photos), *extent_warnings, *point_warnings))


def build_tracks(views: np.ndarray, points: np.ndarray, view_count: int) -> Tracks:
    """CSR tracks from pairs; those with a negative view or point are left out, repeats count once."""
    keep = (views >= 0) & (points >= 0)
    span = int(points.max(initial=0)) + 1
    pairs = np.unique(views[keep] * span + points[keep])  # one integer a pair sorts far faster than rows do
    counts = np.bincount(pairs // span, minlength=view_count)
    return Tracks(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), (pairs % span).astype(np.int32))


def keep_points(scene: Scene, count: int, seed: int) -> Scene:
    """The scene with at most ``count`` points, a seeded choice in their order, and their tracks."""
    if len(scene.points) <= count:
        return scene
    keep = np.sort(np.random.default_rng(seed).choice(len(scene.points), count, replace=False))
    rows = np.full(len(scene.points), -1, np.int64)
    rows[keep] = np.arange(count)
    views = np.repeat(np.arange(len(scene.photos)), np.diff(scene.tracks.view_ptr))
    tracks = build_tracks(views, rows[scene.tracks.point_ids], len(scene.photos))
    return replace(scene, points=scene.points[keep], colours=scene.colours[keep], tracks=tracks)


def _present(views: list[SourceView], path: Path) -> tuple[list[tuple[SourceView, Header]], list[str]]:
    """Listed views whose photo exists, sorted by name, with headers; and a warning about the missing ones."""
    if not views:
        raise UserError(f"{path} lists no photo with a pose; run the structure-from-motion step again")
    ordered = sorted(views, key=lambda view: view.name)
    for first, second in itertools.pairwise(ordered):
        if first.name == second.name:
            raise UserError(f"{path} lists photo {first.name} twice; remove one of the two entries")
    for view in ordered:
        if not np.isfinite(view.view).all():
            raise UserError(f"pose of photo {view.name} in {path} is not finite; remove it from the model "
                            "or solve it again")
    missing = [view for view in ordered if not view.path.exists()]
    if len(missing) == len(ordered):
        raise UserError(f"none of the {len(ordered)} listed photos exists, e.g. {ordered[0].path}; "
                        f"put the photos there or name their folder inside the scene with --images")
    gone = {id(view) for view in missing}
    found = [(view, read_header(view.path)) for view in ordered if id(view) not in gone]
    if not missing:
        return found, []
    shown = ", ".join(str(view.path) for view in missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
    return found, [f"{len(missing)} of {len(ordered)} listed photos are missing and were skipped: {shown}"]


def _photo(view: SourceView, header: Header, masks_folder: Path | None, options: LoadOptions) -> Photo:
    lens = _at_file_size(two_focal(view.lens, view.name), header, view)
    intrinsics, width, height, distortion = _pinhole(lens)
    size = training_size(width, height, options.downscale, view.name)
    scale = np.asarray([size[0] / width, size[1] / height] * 2)
    mask = view.mask_path if view.mask_path is not None else _find_mask(masks_folder, view.name)
    return Photo(name=view.name, path=view.path, width=size[0], height=size[1], view=view.view,
                 intrinsics=intrinsics * scale, mask_path=mask, has_alpha=header.has_alpha,
                 distortion=distortion)


def _at_file_size(lens: Lens, header: Header, view: SourceView) -> Lens:
    """The lens over the photo's own pixels; the model may have been made on copies of another size."""
    width, height = lens.width or header.width, lens.height or header.height
    bent = min(abs(header.width - width * header.height / height),
               abs(header.height - height * header.width / width))
    if (width, height) != (header.width, header.height) and bent > _SIZE_SLACK:
        raise UserError(f"photo {view.path} is {header.width}x{header.height} but its camera in the model is "
                        f"{width}x{height}, another shape; use the photos the model was made from")
    sx, sy = header.width / width, header.height / height
    fx, fy, cx, cy = lens.params[:4]
    params = (fx * sx, fy * sy, cx * sx, cy * sy, *lens.params[4:])
    return Lens(lens.model, params, header.width, header.height)


def _pinhole(lens: Lens) -> tuple[np.ndarray, int, int, Distortion | None]:
    """([fx, fy, cx, cy], width, height, what the decoder must take out) of a lens at its file's size."""
    assert lens.width is not None and lens.height is not None
    if not any(lens.params[4:]):
        return np.asarray(lens.params[:4], np.float64), lens.width, lens.height, None
    from splat.scene.colmap import undistorted_camera

    distortion = Distortion(lens.model, tuple(lens.params), lens.width, lens.height)
    intrinsics, width, height = undistorted_camera(distortion)
    return intrinsics, width, height, distortion


def _large(photos: tuple[Photo, ...]) -> list[str]:
    """A warning where the reference would have reduced the photos by itself (spec §0)."""
    widest = max(photo.width for photo in photos)
    if widest <= _WIDE:
        return []
    return [f"photos are up to {widest} pixels wide at training size; downscale 2, 4 or 8 trains faster"]


def _find_mask(folder: Path | None, name: str) -> Path | None:
    """``masks/NAME`` with .png in place of or behind the photo's suffix."""
    if folder is None:
        return None
    candidates = (folder / Path(name).with_suffix(".png"), folder / (name + ".png"))
    return next((path for path in candidates if path.is_file()), None)


def _split(views: list[SourceView], test_every: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    roles = [view.role for view in views]
    train, test = split_by_roles(roles) if any(roles) else split_by_name(len(views), test_every)
    if not train:
        raise UserError("no training view is left; check the split files or --test-every")
    return train, test


def _extent(centres: np.ndarray, points: np.ndarray) -> tuple[float, list[str]]:
    extent = scene_extent(centres)
    if extent > 0:
        return extent, []
    far = float(np.median(np.linalg.norm(points - centres[0], axis=1))) if len(points) else 1.0
    return far, [f"all training cameras share one centre; the extent is the points' distance {far:.4g}"]


def _points(source: SourceScene, centres: np.ndarray, extent: float, options: LoadOptions
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """(points, colours, new row of each source point or −1, warnings)."""
    if not len(source.points):
        rng = np.random.default_rng(options.seed)
        half, middle = source.random_half_side, np.zeros(3)
        if half is None:
            half, middle = _RANDOM_EXTENTS * extent / 1.1, centres.mean(axis=0)
        points = middle + rng.uniform(-half, half, (_RANDOM_POINTS, 3))
        colours = 0.5 + 0.28209479177387814 * rng.uniform(0, 1, (_RANDOM_POINTS, 3)) / 255
        return (points.astype(np.float32), (255 * colours).astype(np.uint8), np.zeros(0, np.int64),
                [f"the source has no points; {_RANDOM_POINTS} random ones were drawn"])
    finite = np.isfinite(source.points).all(axis=1)
    keep = np.flatnonzero(finite)
    warnings = [] if finite.all() else [f"{(~finite).sum()} points that are not finite were dropped"]
    rows = np.full(len(source.points), -1, np.int64)
    rows[keep] = np.arange(len(keep))
    return source.points[keep].astype(np.float32), source.colours[keep].astype(np.uint8), rows, warnings
