"""Image files as RGB bytes of one size, decoded once into a file of the cache.

A cached file is named after the paths, sizes and modification times of the images, and stays mapped. Images that cannot be
read are left out and listed.
"""

from __future__ import annotations

import hashlib
import json
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

from selfens.errors import DataError

TOO_MANY_FAILURES = 0.5
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


def cache_folder() -> Path:
    """Where selfens keeps what can be computed or downloaded again: SELFENS_CACHE, else the platform's place for caches."""
    import platformdirs

    chosen = os.environ.get("SELFENS_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("selfens")


def is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def decode_all(paths: list[Path], size: int, source: str | Path, progress: bool = False) -> Decoded:
    """Every image of `source`, cached or decoded by as many threads as there are cores; refused if most are unreadable."""
    cached = cache_folder() / "images" / f"{_fingerprint(paths, size)}.npy"
    found = _load_cached(cached, len(paths))
    if found is None:
        images, failed = _decode(paths, size, progress)
        _save_cached(cached, images, failed)
        found = _load_cached(cached, len(paths)) or (images, failed)
    images, failed = found
    failures = [f"{paths[number]}: {reason}" for number, reason in failed.items()]
    if len(failures) > TOO_MANY_FAILURES * len(paths):
        raise DataError(
            f"{len(failures)} of {len(paths)} images in {source} cannot be read (the first: {failures[0]}); "
            "are they images?"
        )
    return Decoded(images, [path for number, path in enumerate(paths) if number not in failed], failures)


def suggested_size(paths: list[Path]) -> int:
    """32 pixels, or the images' own side if they are smaller; judged by about fifty of them."""
    from PIL import Image

    sides = []
    for path in paths[:: max(1, len(paths) // 50)]:
        with suppress(Exception), Image.open(path) as image:  # unreadable files are reported when they are decoded
            sides.append(min(image.size))
    return max(SMALLEST_SIZE, min(USUAL_SIZE, int(np.median(sides)))) if sides else USUAL_SIZE


def _decode(paths: list[Path], size: int, progress: bool) -> tuple[Images, dict[int, str]]:
    """The images that could be read, and why the others could not, by number."""
    from rich.console import Console
    from rich.progress import track

    images = np.empty((len(paths), 3, size, size), dtype=np.uint8)

    def read(number: int) -> str | None:
        try:
            images[number] = decode(paths[number], size)
        except Exception as error:  # Pillow's decoders raise anything for damaged files
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results: Iterable[str | None] = pool.map(read, range(len(paths)))
        if progress and sys.stderr.isatty():
            results = track(results, "reading images", len(paths), console=Console(stderr=True), transient=True)
        failed = {number: reason for number, reason in enumerate(results) if reason}
    return np.delete(images, list(failed), axis=0) if failed else images, failed


def decode(path: Path, size: int) -> Images:
    """One image as [3, size, size] bytes: rotated as its camera was held, transparency on white, the central square."""
    from PIL import Image, ImageOps

    with Image.open(path, formats=FORMATS) as opened:
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


# The cache: the readable images as an .npy file, and beside it, written last, the reasons why others are not, as JSON


def _fingerprint(paths: Iterable[Path], size: int) -> str:
    digest = hashlib.sha256(f"images, third way of storing, {size}".encode())
    for path in paths:
        state = path.stat() if os.path.exists(path) else os.stat_result([0] * 10)  # such as a link that leads nowhere
        digest.update(os.fsencode(f"{path.absolute()}|{state.st_size}|{state.st_mtime_ns}\n"))
    return digest.hexdigest()[:32]


def _load_cached(path: Path, count: int) -> tuple[Images, dict[int, str]] | None:
    """What was decoded before, mapped; None if the cache is missing or damaged."""
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        failed = {int(number): reason for number, reason in json.loads(path.with_suffix(".json").read_text()).items()}
    except (OSError, ValueError, EOFError):
        return None
    return (images, failed) if len(images) + len(failed) == count else None


def _save_cached(path: Path, images: Images, failed: dict[int, str]) -> None:
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(temporary, images)
        os.replace(temporary, path)
        path.with_suffix(".json").write_text(json.dumps(failed))
    except OSError:  # without a cache the next run is slower, nothing else
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
