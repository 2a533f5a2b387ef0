"""Image files as RGB bytes of one size, decoded once into a file of the cache.

A cached file is named after the paths, sizes and modification times of the images, and stays mapped, so a second run starts at
once and no more images are in memory than are looked at. Files that cannot be read are left out and listed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from selfens.data.cache import cache_folder
from selfens.data.rows import Selected, Source, memory_left
from selfens.errors import DataError

PIECE = 1000  # files given to the threads at a time
TOO_MANY_FAILURES = 0.5
USUAL_SIZE, SMALLEST_SIZE = 32, 8
DRAFT = 2  # a JPEG may be decoded at a fraction of its size, this many times ours or more
# Pillow registers these too, but they are not pixels, or are read by running another program
NOT_PIXELS = {"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}

Notice = Callable[[int, int], None]
Images = NDArray[np.uint8]
Readable = NDArray[np.bool_]


@dataclass(frozen=True)
class Decoded:
    """The images that could be read, in the order of their files, and the files that could not."""

    images: Source
    readable: Readable
    failures: list[str]


def is_image(path: Path) -> bool:
    return path.suffix.lower() in _endings()


@cache
def _endings() -> frozenset[str]:
    """The endings of all kinds of images that Pillow can open."""
    from PIL import Image

    registered = Image.registered_extensions().items()
    return frozenset(ending for ending, kind in registered if kind in Image.OPEN and kind not in NOT_PIXELS)


def decode_all(paths: list[Path], size: int, source: str | Path, notice: Notice | None = None) -> Decoded:
    """Every image of `source`, cached or decoded by as many threads as there are cores; refused if most are unreadable."""
    cached = cache_folder() / "images" / f"{_fingerprint(paths, size)}.npy"
    found = _load_cached(cached, (len(paths), 3, size, size))
    if found is None:
        with _file_or_memory(cached, (len(paths), 3, size, size)) as images:
            readable, failures = _decode(paths, images, notice)
        _complete_cache(cached, readable, failures)
        found = _load_cached(cached, images.shape) or (images, readable, failures)
    images, readable, failures = found
    if len(failures) > TOO_MANY_FAILURES * len(paths):
        raise DataError(
            f"{len(failures)} of {len(paths)} images in {source} cannot be read (the first: {failures[0]}); "
            "are they images?"
        )
    return Decoded(images if readable.all() else Selected(images, np.flatnonzero(readable)), readable, failures)


def in_memory_or_file(images: Source, keep_in_file: bool) -> Source:
    """Images read into memory, unless they are to stay in their file or would take more than half of the memory left."""
    return images if keep_in_file or images.nbytes > memory_left() // 2 else np.array(images)


def suggested_size(paths: list[Path]) -> int:
    """32 pixels, or the images' own side if they are smaller; judged by about fifty of them."""
    from PIL import Image

    sides = []
    with _large_images_allowed():
        for path in paths[:: max(1, len(paths) // 50)]:
            with suppress(Exception), Image.open(path) as image:  # unreadable files are reported when they are decoded
                sides.append(min(image.size))
    return max(SMALLEST_SIZE, min(USUAL_SIZE, int(np.median(sides)))) if sides else USUAL_SIZE


def _decode(paths: list[Path], images: Images, notice: Notice | None) -> tuple[Readable, list[str]]:
    """Every image into its place, and which of them could be read."""
    readable, failures = np.zeros(len(paths), dtype=np.bool_), []
    with _large_images_allowed(), ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(paths), PIECE):  # in pieces, or decoded images would pile up in memory
            results = pool.map(lambda path: _decode_or_reason(path, images.shape[-1]), paths[start : start + PIECE])
            for number, result in enumerate(results, start):
                if isinstance(result, str):
                    failures.append(f"{paths[number]}: {result}")
                else:
                    images[number], readable[number] = result, True
                if notice:
                    notice(number + 1, len(paths))
    return readable, failures


@contextmanager
def _large_images_allowed() -> Iterator[None]:
    """Pillow warns of images of 90 megapixels, which cameras make. (It refuses those twice as large.)"""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _decode_or_reason(path: Path, size: int) -> Images | str:
    try:
        return decode(path, size)
    except Exception as error:  # Pillow's decoders raise anything for damaged files
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def decode(path: Path, size: int) -> Images:
    """One image as [3, size, size] bytes: rotated as its camera was held, transparency on white, the central square."""
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        opened.draft(None, (DRAFT * size, DRAFT * size))
        image: Any = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I") or image.mode == "F":
            image = Image.fromarray(_as_bytes(np.asarray(image), _is_16_bit(opened)))
        elif image.has_transparency_data:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image)
        square = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def _is_16_bit(image: Any) -> bool:
    """Pillow keeps 16 bits as they are or, for some formats, within 32."""
    return bool(image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")))


def _as_bytes(deep: NDArray[Any], is_16_bit: bool) -> Images:
    """16 bits divided by 257, so that all such images are scaled alike; else 0..1 times 255, and 0..255 as it is."""
    values = deep.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= (65535 if is_16_bit else 255)):  # also for NaN
        raise ValueError(f"values from {low:g} to {high:g}; expected 0 to 1 or 0 to 255, or 16 bits")
    factor = 1 / 257 if is_16_bit else 255 if high <= 1 else 1
    return np.rint(values * factor).astype(np.uint8)


# The cache: the images as an .npy file, and beside it, written last, an .npz that says which of them could be read


def _fingerprint(paths: Iterable[Path], size: int) -> str:
    digest = hashlib.sha256(f"images, second way of decoding, {size}".encode())
    for path in paths:
        digest.update(f"{path.absolute()}|{_state(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _state(path: Path) -> str:
    """Changes when the file does. If even this cannot be read, the image cannot either."""
    try:
        status = path.stat()
    except OSError as error:
        return str(error.errno)
    return f"{status.st_size}|{status.st_mtime_ns}"


def _load_cached(path: Path, shape: tuple[int, ...]) -> tuple[Images, Readable, list[str]] | None:
    """What was decoded before, mapped; None if the cache is missing or damaged."""
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            readable, failures = arrays["readable"], [str(name) for name in arrays["failures"]]
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    return (images, readable, failures) if images.shape == shape and readable.shape == shape[:1] else None


@contextmanager
def _file_or_memory(path: Path, shape: tuple[int, ...]) -> Iterator[Images]:
    """An array in the cache's file, which is renamed to `path` at the end; in memory if it cannot be written."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        images = _allocated(temporary, shape)
    except OSError:  # without a cache the next run is slower, nothing else
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        yield np.zeros(shape, dtype=np.uint8)
        return
    try:
        yield images
        images.flush()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _allocated(path: Path, shape: tuple[int, ...]) -> Any:
    """A mapped file with its disk space reserved: writing to a mapping on a full disk would kill the process."""
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def _complete_cache(path: Path, readable: Readable, failures: list[str]) -> None:
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    try:
        np.savez(temporary, readable=readable, failures=np.array(failures, dtype=np.str_))
        os.replace(temporary, path.with_suffix(".npz"))
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
