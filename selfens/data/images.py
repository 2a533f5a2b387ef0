"""Image files as RGB bytes of one size. Images that cannot be read are left out and listed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.core import memory
from selfens.data.rows import LazyRows, Numbers
from selfens.errors import DataError
from selfens.files import check_regular

USUAL_SIZE, SMALLEST_SIZE = 32, 8
DRAFT = 2  # a JPEG may be decoded at a fraction of its size, this many times ours or more
ENDINGS = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".webp"}
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")  # Pillow reads some others by running another program

AT_ONCE = 128  # images that are read before they are converted

Images = NDArray[np.uint8]
Convert = Callable[[Images], NDArray[Any]]


@dataclass(frozen=True)
class Decoded:
    """The images that could be read with their files, in the order given, and the files that could not, with the reason."""

    images: NDArray[Any]
    """The images themselves, or what they were converted to."""
    files: list[Path]
    failures: list[str]


def is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def decode_all(
    paths: list[Path], size: int, source: str | Path, progress: bool = False, convert: Convert | None = None
) -> Decoded:
    """Every image of `source`, decoded by as many threads as there are cores; refused if most are damaged.

    What is not a regular file, such as a pipe or a link that leads nowhere, is left out too, but does not count as an image.
    """
    found, failed = read_all(len(paths), lambda number: decode(paths[number], size), size, progress, convert)
    failures = [f"{paths[number]}: {reason}" for number, reason in failed.items()]
    num_readable, damaged = len(paths) - len(failed), sum(os.path.isfile(paths[number]) for number in failed)
    if failed and (not num_readable or damaged > num_readable):
        raise DataError(
            f"{len(failures)} of {len(paths)} images in {source} cannot be read (the first: {failures[0]}); "
            "are they images?"
        )
    readable = [path for number, path in enumerate(paths) if number not in failed]
    return Decoded(np.delete(found, list(failed), axis=0) if failed else found, readable, failures)


def read_all(
    count: int, read: Callable[[int], Images], size: int, progress: bool = False, convert: Convert | None = None
) -> tuple[NDArray[Any], dict[int, str]]:
    """So many images by their numbers, and why some could not be read, which are blank.

    convert  makes an array of each part, with as many rows: then the images themselves need not fit into memory
    """
    from rich.console import Console
    from rich.progress import track

    found: list[NDArray[Any]] = []

    def attempt(place: tuple[Images, int]) -> str | None:
        image, number = place
        try:
            image[...] = read(number)
        except Exception as error:  # Pillow's decoders raise anything for damaged files
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        return None

    def attempts() -> Iterator[str | None]:
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            part = np.zeros((len(numbers), 3, size, size), dtype=np.uint8)
            failures = list(pool.map(attempt, zip(part, numbers, strict=True)))
            made = part if convert is None else convert(part)
            if not found:
                what = f"{count:,} images of {size} x {size} pixels"
                memory.check(count * made[0].nbytes, what, "choose a smaller size")
                found.append(np.empty((count, *made.shape[1:]), made.dtype))
            found[0][start : start + len(made)] = made
            yield from failures

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = attempts()
        if progress and sys.stderr.isatty():
            words, screen = "reading images" if convert is None else "computing features", Console(stderr=True)
            results = iter(track(results, words, count, console=screen, transient=True))
        failed = {number: failure for number, failure in enumerate(results) if failure}
    return found[0], failed


class ImageFiles(LazyRows):
    """The images of files, decoded when they are asked for; blank if they cannot be read."""

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self.paths, self.parts, self.rows = paths, (), None
        self.shape, self.dtype = (len(paths), 3, size, size), np.dtype(np.uint8)

    def _read(self, rows: Numbers) -> NDArray[Any]:
        found = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        for place, row in zip(found, rows, strict=True):
            with suppress(Exception):  # of a file that was there when its features were computed
                place[...] = decode(Path(self.paths[row]), self.shape[2])
        return found


def suggested_size(paths: list[Path]) -> int:
    """32 pixels, or the images' own side if they are smaller; judged by about fifty of them."""
    sides = []
    for path in paths[:: max(1, len(paths) // 50)]:
        with suppress(Exception), _opened(path) as image:  # unreadable files are reported when they are decoded
            sides.append(min(image.size))
    return max(SMALLEST_SIZE, min(USUAL_SIZE, int(np.median(sides)))) if sides else USUAL_SIZE


def _opened(path: Path) -> Any:
    from PIL import Image

    check_regular(path)
    return Image.open(path, formats=FORMATS)


def decode(path: Path, size: int) -> Images:
    """One image as [3, size, size] bytes: rotated as its camera was held, transparency on white, the central square."""
    from PIL import Image, ImageOps

    with _opened(path) as opened:
        opened.draft(None, (DRAFT * size, DRAFT * size))
        image: Any = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16") or (image.mode == "I" and opened.format in ("PNG", "PPM")):  # 16 bits
            image = Image.fromarray(np.rint(np.asarray(image) / 257).clip(0, 255).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise ValueError("32 bits a pixel; expected 8 or 16")
        return _square(image, size)


def resized(pixels: NDArray[Any], size: int) -> Images:
    """The same of an image in memory: [channels, height, width], of bytes or of numbers from 0 to 1."""
    from PIL import Image

    whole = pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255).astype(np.uint8)
    return _square(
        Image.fromarray(whole[0] if len(whole) == 1 else np.ascontiguousarray(whole.transpose(1, 2, 0))), size
    )


def _square(image: Any, size: int) -> Images:
    from PIL import Image, ImageOps

    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    square = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))
