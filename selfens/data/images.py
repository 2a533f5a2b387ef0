"""Image files as RGB bytes of one size. Images that cannot be read are left out and listed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.core import memory
from selfens.errors import DataError
from selfens.files import check_regular

USUAL_SIZE, SMALLEST_SIZE = 32, 8
DRAFT = 2  # a JPEG may be decoded at a fraction of its size, this many times ours or more
ENDINGS = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".webp"}
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")  # Pillow reads some others by running another program

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Decoded:
    """The images that could be read with their files, in the order given, and the files that could not, with the reason."""

    images: Images
    files: list[Path]
    failures: list[str]


def is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def decode_all(paths: list[Path], size: int, source: str | Path, progress: bool = False) -> Decoded:
    """Every image of `source`, decoded by as many threads as there are cores; refused if most are damaged.

    What is not a regular file, such as a pipe or a link that leads nowhere, is left out too, but does not count as an image.
    """
    from rich.console import Console
    from rich.progress import track

    memory.check(
        len(paths) * 3 * size * size, f"{len(paths):,} images of {size} x {size} pixels", "choose a smaller size"
    )
    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)

    def read(number: int) -> str | None:
        try:
            images[number] = decode(paths[number], size)
        except Exception as error:  # Pillow's decoders raise anything for damaged files
            return f"{paths[number]}: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results: Iterable[str | None] = pool.map(read, range(len(paths)))
        if progress and sys.stderr.isatty():
            results = track(results, "reading images", len(paths), console=Console(stderr=True), transient=True)
        failed = {number: failure for number, failure in enumerate(results) if failure}
    failures, num_readable = list(failed.values()), len(paths) - len(failed)
    damaged = sum(os.path.isfile(paths[number]) for number in failed)
    if failed and (not num_readable or damaged > num_readable):
        raise DataError(
            f"{len(failures)} of {len(paths)} images in {source} cannot be read (the first: {failures[0]}); "
            "are they images?"
        )
    readable = [path for number, path in enumerate(paths) if number not in failed]
    return Decoded(np.delete(images, list(failed), axis=0) if failed else images, readable, failures)


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
        elif image.has_transparency_data:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image)
        square = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))
