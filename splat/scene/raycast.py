"""A small ray caster over balls, boxes, pillars, a floor and a round wall: z up, world units. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from splat.scene.textures import Texture

_EPSILON = 1e-4  # world units, by which something must be nearer to the light to cast a shadow
_LIGHT = np.asarray([3.0, -2.0, 6.5])  # point light, world units
_AMBIENT, _DIFFUSE = 0.42, 0.75  # share of the texture's colour
_SUBSAMPLES = 2  # per side, for pixels on an outline or a shadow's edge


class Shape(Protocol):
    """One surface."""

    @property
    def texture(self) -> Texture:
        """Its colours."""
        ...

    @property
    def gloss(self) -> float:
        """Weight of the highlight."""
        ...

    @property
    def bound(self) -> tuple[np.ndarray, float] | None:
        """Centre [3] and radius of a ball around it; None where it surrounds the scene."""
        ...

    def distance(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """[n] distance along unit directions [n, 3] from one origin [3]; inf where there is no hit."""
        ...

    def surface(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """([n, 3] unit normals, [n, 2] surface coordinates in world units) at points on the surface."""
        ...


@dataclass(frozen=True, eq=False)
class Floor:
    """The plane z = 0."""

    texture: Texture
    gloss: float = 0.0  # weight of the highlight

    @property
    def bound(self) -> None:
        return None

    def distance(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            t = -origin[2] / direction[:, 2]
        return np.where((t > 0) & np.isfinite(t), t, np.inf)

    def surface(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.broadcast_to([0.0, 0.0, 1.0], point.shape), point[:, :2]


@dataclass(frozen=True, eq=False)
class Wall:
    """The inside of a vertical cylinder around the z axis, standing on the floor."""

    texture: Texture
    radius: float
    height: float
    gloss: float = 0.0

    @property
    def bound(self) -> None:
        return None

    def distance(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        _, t = _circle(origin[:2], direction[:, :2], self.radius)
        z = origin[2] + np.where(np.isfinite(t), t, 0) * direction[:, 2]
        return np.where((t > 0) & (z >= 0) & (z <= self.height), t, np.inf)

    def surface(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        normal = np.concatenate([-point[:, :2] / self.radius, np.zeros((len(point), 1))], axis=1)
        around = self.radius * np.arctan2(point[:, 1], point[:, 0])
        return normal, np.stack([around, -point[:, 2]], axis=1)


@dataclass(frozen=True, eq=False)
class Sphere:
    """A ball."""

    texture: Texture
    centre: np.ndarray  # [3]
    radius: float
    gloss: float = 0.35

    @property
    def bound(self) -> tuple[np.ndarray, float]:
        return self.centre, self.radius

    def distance(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        offset = origin - self.centre
        b = direction @ offset
        under = b * b - offset @ offset + self.radius**2
        root = np.sqrt(np.maximum(under, 0))
        t = np.where(-b - root > 0, -b - root, -b + root)
        return np.where((under > 0) & (t > 0), t, np.inf)

    def surface(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        normal = (point - self.centre) / self.radius
        around = np.arctan2(normal[:, 1], normal[:, 0])
        up = np.arcsin(np.clip(normal[:, 2], -1, 1))
        return normal, self.radius * np.stack([around, -up], axis=1)


@dataclass(frozen=True, eq=False)
class Box:
    """A box standing upright, turned about its vertical axis."""

    texture: Texture
    centre: np.ndarray  # [3]
    half: np.ndarray  # [3] half sides
    yaw: float  # radians
    gloss: float = 0.0

    @property
    def bound(self) -> tuple[np.ndarray, float]:
        return self.centre, float(np.linalg.norm(self.half))

    def _axes(self) -> np.ndarray:
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.asarray([[c, s, 0], [-s, c, 0], [0, 0, 1]])  # rows: the box's axes in the world

    def distance(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        o, d = self._axes() @ (origin - self.centre), direction @ self._axes().T
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = (-self.half - o) / d, (self.half - o) / d
        enter, leave = np.minimum(a, b).max(axis=1), np.maximum(a, b).min(axis=1)
        return np.where((leave >= enter) & (enter > 0), enter, np.inf)

    def surface(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        local = (point - self.centre) @ self._axes().T
        side = np.argmax(np.abs(local) / self.half, axis=1)
        rows = np.arange(len(point))
        normal = np.sign(local[rows, side])[:, None] * self._axes()[side]
        across = np.asarray([1, 0, 0])[side]
        up = np.asarray([2, 2, 1])[side]
        uv = np.stack([local[rows, across] + 0.37 * side, -local[rows, up] + 0.61 * side], axis=1)
        return normal, uv


@dataclass(frozen=True, eq=False)
class Pillar:
    """A closed vertical cylinder."""

    texture: Texture
    base: np.ndarray  # [3] middle of its foot
    radius: float
    height: float
    gloss: float = 0.2

    @property
    def bound(self) -> tuple[np.ndarray, float]:
        middle = self.base + np.asarray([0, 0, 0.5 * self.height])
        return middle, float(np.hypot(self.radius, 0.5 * self.height))

    def distance(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        o = origin - self.base
        near, _ = _circle(o[:2], direction[:, :2], self.radius)
        z = o[2] + np.where(np.isfinite(near), near, 0) * direction[:, 2]
        side = np.where((near > 0) & (z >= 0) & (z <= self.height), near, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (self.height - o[2]) / direction[:, 2]
        t = np.where(np.isfinite(t) & (t > 0), t, np.inf)
        at = o[:2] + np.where(np.isfinite(t), t, 0)[:, None] * direction[:, :2]
        cap = np.where(np.einsum("ij,ij->i", at, at) <= self.radius**2, t, np.inf)
        return np.minimum(side, cap)

    def surface(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        local = point - self.base
        top = local[:, 2] >= self.height - 1e-6
        side = np.concatenate([local[:, :2] / self.radius, np.zeros((len(point), 1))], axis=1)
        normal = np.where(top[:, None], [0.0, 0.0, 1.0], side)
        around = self.radius * np.arctan2(local[:, 1], local[:, 0])
        return normal, np.where(top[:, None], local[:, :2], np.stack([around, -local[:, 2]], axis=1))


def _circle(origin: np.ndarray, direction: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Near and far crossing of rays from [2] along [n, 2] with a circle about 0; inf where there is none."""
    a = np.maximum(np.einsum("ij,ij->i", direction, direction), 1e-18)
    b = direction @ origin
    under = b * b - a * (origin @ origin - radius**2)
    root = np.sqrt(np.maximum(under, 0))
    hit = under > 0
    return np.where(hit, (-b - root) / a, np.inf), np.where(hit, (-b + root) / a, np.inf)


def cast(shapes: tuple[Shape, ...], origin: np.ndarray, direction: np.ndarray
         ) -> tuple[np.ndarray, np.ndarray]:
    """First surface on unit directions [n, 3] from origin [3]: ([n] distance or inf, [n] number or −1)."""
    nearest, which = np.full(len(direction), np.inf), np.full(len(direction), -1)
    for number, shape in enumerate(shapes):
        if shape.bound is None:
            t = shape.distance(origin, direction)
            closer = t < nearest
            nearest[closer], which[closer] = t[closer], number
            continue
        rows = _towards(*shape.bound, origin, direction)
        t = shape.distance(origin, direction[rows])
        closer = t < nearest[rows]
        nearest[rows[closer]], which[rows[closer]] = t[closer], number
    return nearest, which


def _towards(centre: np.ndarray, radius: float, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Numbers of the rays that meet a bounding ball (all of them from inside it)."""
    offset = centre - origin
    return np.flatnonzero(direction @ offset >= np.sqrt(max(offset @ offset - radius**2, 0.0)))


def shade(shapes: tuple[Shape, ...], origin: np.ndarray, direction: np.ndarray, pixel: float
          ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Colour along rays.

    Args:
        shapes: the world.
        origin: [3] camera centre.
        direction: [n, 3] unit.
        pixel: side of a pixel at distance 1, world units.

    Returns:
        ([n, 3] colour 0..1, [n] distance or inf, [n] label: surface and whether in shadow, −1 sky).
    """
    distance, which = cast(shapes, origin, direction)
    height = np.clip(direction[:, 2:3], 0, 1)
    colour = np.asarray([0.78, 0.84, 0.90]) * (1 - height) + np.asarray([0.42, 0.60, 0.86]) * height
    label = np.full(len(direction), -1)
    for number in np.unique(which[which >= 0]):
        rows = np.flatnonzero(which == number)
        point = origin + distance[rows, None] * direction[rows]
        normal, uv = shapes[number].surface(point)
        facing = np.abs(np.einsum("ij,ij->i", normal, direction[rows]))
        footprint = distance[rows] * pixel / np.sqrt(np.maximum(facing, 0.05))
        albedo = shapes[number].texture.look_up(uv, footprint)
        light, shine, dark = _light(shapes, point, normal, direction[rows])
        colour[rows] = np.clip(albedo * light[:, None] + shapes[number].gloss * shine[:, None], 0, 1)
        label[rows] = 2 * number + dark
    return colour, distance, label


def _light(shapes: tuple[Shape, ...], point: np.ndarray, normal: np.ndarray, direction: np.ndarray
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([n] share of the albedo, [n] highlight, [n] whether in shadow): Lambert and Phong, a point light."""
    to_light = _LIGHT - point
    far = np.linalg.norm(to_light, axis=1)
    to_light = to_light / far[:, None]
    cosine = np.einsum("ij,ij->i", normal, to_light)
    lit = np.flatnonzero(cosine > 0)
    reached, _ = cast(shapes, _LIGHT, -to_light[lit])
    dark = np.ones(len(point), bool)
    dark[lit] = reached < far[lit] - _EPSILON
    strength = np.where(dark, 0, np.maximum(cosine, 0))
    mirrored = direction - 2 * np.einsum("ij,ij->i", direction, normal)[:, None] * normal
    shine = np.where(dark, 0, np.maximum(np.einsum("ij,ij->i", mirrored, to_light), 0) ** 24)
    return _AMBIENT * (0.8 + 0.2 * normal[:, 2]) + _DIFFUSE * strength, shine, dark


def pixel_rays(view: np.ndarray, intrinsics: np.ndarray, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([3] camera centre, [n, 3] unit world directions) through pixel positions [n, 2] (centres at +0.5)."""
    fx, fy, cx, cy = intrinsics
    local = np.stack([(pixels[:, 0] - cx) / fx, (pixels[:, 1] - cy) / fy, np.ones(len(pixels))], axis=1)
    direction = local @ view[:3, :3]
    return -view[:3, :3].T @ view[:3, 3], direction / np.linalg.norm(direction, axis=1, keepdims=True)


def render_view(shapes: tuple[Shape, ...], view: np.ndarray, intrinsics: np.ndarray, width: int, height: int
                ) -> tuple[np.ndarray, np.ndarray]:
    """([H, W, 3] uint8 photo, [H, W] camera depth of the pixel centres, inf where there is sky).

    One ray a pixel; pixels at an outline or a shadow's edge are cast again with 2×2.
    """
    grid = np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), axis=-1).reshape(-1, 2)
    centre, direction = pixel_rays(view, intrinsics, grid)
    colour, distance, label = shade(shapes, centre, direction, 1 / intrinsics[0])
    edge = np.flatnonzero(_edges(label.reshape(height, width)))
    steps = (np.arange(_SUBSAMPLES) + 0.5) / _SUBSAMPLES - 0.5
    offsets = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    fine = (grid[edge, None] + offsets).reshape(-1, 2)
    again, _, _ = shade(shapes, centre, pixel_rays(view, intrinsics, fine)[1], 1 / intrinsics[0])
    colour[edge] = again.reshape(len(edge), -1, 3).mean(axis=1)
    depth = distance * (direction @ view[2, :3])
    return np.rint(255 * colour).astype(np.uint8).reshape(height, width, 3), depth.reshape(height, width)


def _edges(label: np.ndarray) -> np.ndarray:
    mask = np.zeros(label.shape, bool)
    across, down = label[:, 1:] != label[:, :-1], label[1:] != label[:-1]
    mask[:, 1:] |= across
    mask[:, :-1] |= across
    mask[1:] |= down
    mask[:-1] |= down
    return mask
