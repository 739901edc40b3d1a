"""Photo files: headers without decoding, decoding to uint8 at training size, alpha channels and masks."""

from __future__ import annotations

import functools
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from splat.errors import UserError
from splat.io.files import check_file

if TYPE_CHECKING:
    from splat.scene.types import Photo

# A complete JPEG or PNG holds its end marker this near to its end; vendors append previews behind it.
_TAIL_BYTES = 1 << 16
_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image file say."""

    width: int  # pixels
    height: int  # pixels
    has_alpha: bool


def read_header(path: Path) -> Header:
    """Size and alpha of an image file from its header; a file that looks cut off is decoded to be sure.

    Raises:
        UserError: missing, empty, Git LFS pointer, not an image, or truncated.
    """
    check_file(path, "photo")
    try:
        with Image.open(path) as image:
            header = Header(image.width, image.height, _alpha_of(image))
            marker = _END_MARKERS.get(image.format or "")
            if marker is not None and not _ends_with(path, marker):
                image.load()
    except (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise _broken(f"photo {path}", error) from error
    return header


def decode(photo: Photo, alpha: str, background: tuple[float, float, float]
           ) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels of ``photo`` at training size: [H, W, 3] uint8 and [H, W] uint8 loss weights or None.

    Order: decode, composite (``alpha="background"``), undistort, resize (PIL bicubic, as the reference does).

    Raises:
        UserError: the photo or its mask is missing, truncated, a Git LFS pointer or of the wrong size.
    """
    image = _open(photo.path, photo.entry, "photo")
    rgb, weights = _split_alpha(image, alpha, background)
    mask = _read_mask(photo, image.size)
    if mask is not None:
        weights = mask if weights is None else (weights.astype(np.uint16) * mask // 255).astype(np.uint8)
    if photo.distortion is not None:
        from splat.scene.colmap import undistort

        rgb = undistort(rgb, photo.distortion)
        weights = None if weights is None else undistort(weights, photo.distortion)
    size = (photo.width, photo.height)
    return _resized(rgb, size), None if weights is None else _resized(weights, size)


def training_size(width: int, height: int, downscale: float, name: str) -> tuple[int, int]:
    """(width, height) in pixels of a photo whose sides are divided by ``downscale``.

    Raises:
        UserError: nothing of a side would be left.
    """
    size = (round(width / downscale), round(height / downscale))
    if min(size) < 1:
        raise UserError(f"--downscale {downscale:g} leaves nothing of photo {name}, which is {width}x{height}; "
                        "use a smaller number")
    return size


def encoded_bytes(photo: Photo) -> bytes:
    """The photo's file as it is, for storing it elsewhere."""
    if photo.entry is not None:
        return _archive_entry(photo.path, photo.entry)
    check_file(photo.path, "photo")
    return photo.path.read_bytes()


def _open(path: Path, entry: str | None, what: str) -> Image.Image:
    if entry is not None:
        return _load(io.BytesIO(_archive_entry(path, entry)), f"{what} {path} entry {entry}")
    check_file(path, what)
    return _load(path, f"{what} {path}")


def _load(source: Path | BinaryIO, where: str) -> Image.Image:
    try:
        with Image.open(source) as image:
            image.load()
            if image.mode.startswith("I"):
                return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
            return image.convert("RGBA" if _alpha_of(image) else image.mode)
    except (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise _broken(where, error) from error


def _split_alpha(image: Image.Image, alpha: str, background: tuple[float, float, float]
                 ) -> tuple[np.ndarray, np.ndarray | None]:
    if image.mode != "RGBA":
        return np.asarray(image.convert("RGB")), None
    pixels = np.asarray(image)
    rgb, opacity = pixels[..., :3], pixels[..., 3]
    if alpha == "mask":
        return rgb, opacity
    share = opacity[..., None].astype(np.float32) / 255
    mixed = rgb * share + 255 * np.asarray(background, np.float32) * (1 - share)
    return np.rint(mixed).astype(np.uint8), None


def _read_mask(photo: Photo, size: tuple[int, int]) -> np.ndarray | None:
    if photo.mask_path is None and photo.mask_entry is None:
        return None
    path = photo.mask_path or photo.path
    mask = np.asarray(_open(path, photo.mask_entry, "mask").convert("L"))
    if mask.shape != (size[1], size[0]):
        raise UserError(f"mask {path} is {mask.shape[1]}x{mask.shape[0]}, its photo is {size[0]}x{size[1]}; "
                        "make the mask at the photo's size")
    return mask


def _resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if (pixels.shape[1], pixels.shape[0]) == size:
        return np.ascontiguousarray(pixels)
    return np.asarray(Image.fromarray(pixels).resize(size))


def _alpha_of(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _ends_with(path: Path, marker: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return marker in file.read()


@functools.lru_cache(maxsize=4)
def _archive(path: Path, changed: int, size: int) -> zipfile.ZipFile:
    """The open archive; a file that was replaced since is another one."""
    return zipfile.ZipFile(path)


def _archive_entry(path: Path, entry: str) -> bytes:
    """Bytes of a uint8 vector stored in an .npz; reads from several threads are safe."""
    try:
        state = path.stat()
        with _archive(path, state.st_mtime_ns, state.st_size).open(f"{entry}.npy") as file:
            return np.lib.format.read_array(file, allow_pickle=False).tobytes()
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} entry {entry} cannot be read ({error}); save the scene again") from error


def _broken(where: str, error: BaseException) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{where} is truncated or not an image ({reason}); copy it again or remove it")
