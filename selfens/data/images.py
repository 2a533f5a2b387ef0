"""Image files as RGB bytes of one size."""

import io
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.core import memory
from selfens.data.folders import counts_of_others, kinds
from selfens.data.rows import Array, LazyRows, Rows, take
from selfens.errors import DataError
from selfens.files import check_regular

SIDE: dict[str, Any] = {"at_least": 4, "at_most": 1024}
"""The bounds of the side of images, in pixels."""
DRAFT = 2  # Pillow may decode a JPEG at a reduced size, at least this many times the target size
SUFFIXES = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".webp"}
OTHER_SUFFIXES = {
    ".heic",
    ".heif",
    ".avif",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".dng",
    ".raf",
    ".orf",
    ".rw2",
    ".pef",
    ".psd",
    ".jxl",
    ".jp2",
    ".svg",
    ".nrw",
    ".srw",
    ".sr2",
    ".rwl",
    ".x3f",
    ".3fr",
    ".erf",
    ".kdc",
    ".mrw",
    ".iiq",
}
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")  # Pillow runs another program for some others
AT_ONCE = 128  # images decoded between two updates of the progress bar

Pixels = NDArray[np.uint8]


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def notes_on_others(folder: Path) -> tuple[str, ...]:
    """Return notes on the files of a folder that are not read: photos in other formats, and anything else in its folders."""
    found = counts_of_others(folder, is_image)
    photos = {kind: count for kind, count in found.items() if kind in OTHER_SUFFIXES}
    others = {
        kind: count for (kind, count) in counts_of_others(folder, is_image, below=True).items() if kind not in photos
    }
    reasons = {
        "whose formats cannot be read; convert them to JPEG or PNG": photos,
        "which are not images": others,
    }
    return tuple(f"left out {kinds(counts)} files, {why}." for why, counts in reasons.items() if counts)


class ImageFiles(LazyRows):
    """Image files as [rows, 3, size, size]. Images are decoded on access; unreadable ones are blank."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        self.paths, self.parts, self.rows = paths, (), None
        self.shape, self.dtype = (len(paths), 3, size, size), np.dtype(np.uint8)
        self.failures: dict[int, str] = {}
        """Why rows could not be decoded, among those read so far."""

    def _read(self, rows: Rows) -> Pixels:
        def attempt(out: Pixels, row: int) -> None:
            try:
                out[...] = decode(self.paths[row], self.shape[2])
            except Exception as error:  # Pillow's decoders raise anything for damaged files
                self.failures[row] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"

        found = np.zeros((len(rows), *self.shape[1:]), np.uint8)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(attempt, found, rows.tolist()))
        return found


def decode_all(
    paths: Sequence[Path], size: int, source: str | Path, progress: bool = False
) -> tuple[Array, Rows, list[str]]:
    """Decode every image of `source`. Return the readable ones, their positions in `paths`, and why the others failed.

    Images stay in memory if they fit into half of it; otherwise they are decoded on every access. Raises a DataError if
    most files are damaged. Paths that are not regular files, such as pipes and broken links, do not count.
    """
    images = ImageFiles(paths, size)
    keep = images.nbytes <= memory.available() // 2
    pixels = np.empty(images.shape if keep else (0,), np.uint8)
    for start in track(range(0, len(paths), AT_ONCE), "reading images", progress):
        part = images[start : start + AT_ONCE]
        if keep:
            pixels[start : start + len(part)] = part
    failed = sorted(images.failures)
    failures = [f"{paths[row]}: {images.failures[row]}" for row in failed]
    damaged, num_readable = sum(os.path.isfile(paths[row]) for row in failed), len(paths) - len(failed)
    if failed and (not num_readable or damaged > num_readable):
        first = f"the first: {failures[0]}"
        raise DataError(f"{len(failed)} of {len(paths)} images in {source} cannot be read ({first}); are they images?")
    readable = np.delete(np.arange(len(paths)), failed)
    return take(pixels if keep else images, readable), readable, failures


def track(steps: range, words: str, show: bool) -> Any:
    """Iterate with a progress bar, if `show` and there is a terminal to show it on."""
    from rich.console import Console
    from rich.progress import track as tracked

    if not show or not sys.stderr.isatty():
        return steps
    return tracked(steps, words, console=Console(stderr=True), transient=True)


def suggested_size(paths: Sequence[Path]) -> int:
    """Return the median side of about fifty of the images, but at least 8 and at most 32 pixels."""
    sides = []
    for path in paths[:: max(1, len(paths) // 50)]:
        with suppress(Exception), _opened(path) as image:  # unreadable files are reported when they are decoded
            sides.append(min(image.size))
    return int(np.clip(np.median(sides), 8, 32)) if sides else 32


def _opened(path: Path) -> Any:
    from PIL import Image

    check_regular(path)
    return Image.open(path, formats=FORMATS)


def decode(path: Path, size: int) -> Pixels:
    """Return the central square of an image as [3, size, size] bytes."""
    return _square(_read(path, size), size)


def thumbnail(path: Path, size: int) -> bytes:
    """Return a whole image as a JPEG of at most this many pixels a side."""
    image = _read(path, size)
    image.thumbnail((size, size))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return file.getvalue()


def _read(path: Path, size: int) -> Any:
    """Return an image in RGB, rotated by its EXIF tag, on white if transparent. A JPEG may be reduced, but not below `size`."""
    from PIL import Image, ImageOps

    with _opened(path) as opened:
        opened.draft(None, (DRAFT * size, DRAFT * size))
        image: Any = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16") or (image.mode == "I" and opened.format in ("PNG", "PPM")):  # 16 bits
            image = Image.fromarray(np.rint(np.asarray(image) / 257).clip(0, 255).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise ValueError("32 bits a pixel; expected 8 or 16")
        return _in_color(image)


def resize(images: NDArray[Any], size: int) -> Pixels:
    """Resize images [rows, channels, height, width], bytes or floats in 0..1, to bytes [rows, 3, size, size]."""
    from PIL import Image

    if images.dtype == np.uint8 and images.shape[1:] == (3, size, size):
        return images
    whole = images if images.dtype == np.uint8 else np.rint(images * 255).astype(np.uint8)

    def resized(pixels: Pixels) -> Pixels:
        last = pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
        return _square(_in_color(Image.fromarray(last)), size)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.stack([*pool.map(resized, whole)])


def _in_color(image: Any) -> Any:
    from PIL import Image

    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def _square(image: Any, size: int) -> Pixels:
    from PIL import Image, ImageOps

    square = ImageOps.fit(image, (size, size), method=Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))
