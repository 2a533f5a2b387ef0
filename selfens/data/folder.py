"""Folders of images, or a CSV of file,label, as a dataset; `listing` says which files they are.

Images of any size and mode become RGB bytes of one side, cut to a square about their centre. They are decoded into a file of
the cache, by path, size and time of change, so a second run starts at once and no more of them need be in memory than are
looked at. Files that cannot be read are left out and listed.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from selfens.data.cache import cache_folder
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.listing import Listed, Listing, is_csv, is_folder, list_images, named
from selfens.data.rows import Picked, Source, memory_left
from selfens.errors import DataError

PIECE = 1000  # files given to the threads at a time
HELD_OUT_SHARE = 0.2  # of each class, where there is no test folder
TOO_MANY_FAILURES = 0.5
USUAL_SIZE, SMALLEST_SIZE = 32, 8
SIZES = range(4, 1025)
DRAFT = 2  # a JPEG may be decoded at a fraction of its size, this many times ours or more

Notice = Callable[[int, int], None]
Images = NDArray[np.uint8]
Readable = NDArray[np.bool_]


@dataclass(frozen=True)
class Decoded:
    """The images that could be read, in the order of their files, and the files that could not."""

    images: Source
    readable: Readable
    failures: list[str]


def is_folder_source(source: str | Path) -> bool:
    return is_csv(source) or is_folder(source)


def load_folder(
    source: str | Path, *, size: int, split_seed: int = 0, notice: Notice | None = None, keep_in_file: bool = False
) -> Dataset:
    """A dataset from a folder of images or a CSV of file,label; in memory, or left in the cache's file.

    Without a test folder, a fifth of the labelled images of each class is held out to test on; a class keeps at least one.
    """
    if not SIZES.start <= size < SIZES.stop:
        raise DataError(f"the size is {size}; expected from {SIZES.start} to {SIZES.stop - 1} pixels.")
    listing = list_images(Path(source))
    decoded = decode_all([item.path for item in listing.train + listing.test], size, notice)
    check_failures(decoded, source)
    in_test_folder = np.arange(len(decoded.readable))[decoded.readable] >= len(listing.train)
    items = [item for item, kept in zip(listing.train + listing.test, decoded.readable, strict=True) if kept]
    classes = _classes(items, in_test_folder)
    numbers = np.array(
        [classes.index(item.label) if item.label in classes else UNLABELED for item in items], dtype=np.int64
    )
    for_testing = in_test_folder if listing.test else _held_out(items, Path(source), split_seed)
    untaught = [items[row].label for row in np.flatnonzero(for_testing & (numbers == UNLABELED))]
    if None in untaught:
        raise DataError(
            f"the test folder of {source} holds images outside class folders; sort them into folders of classes."
        )
    if strange := set(filter(None, untaught)):
        raise DataError(
            f"the test folder of {source} holds images of {named(strange)}, which is not trained on; sort them into folders "
            "of the same names as there (and rename the folder 'test' if it is itself a class)."
        )
    train_rows, test_rows = np.flatnonzero(~for_testing), np.flatnonzero(for_testing)
    return Dataset(
        inputs=in_memory_or_file(Picked(decoded.images, train_rows), keep_in_file),
        labels=numbers[train_rows],
        test_inputs=Picked(decoded.images, test_rows)[:],
        test_labels=numbers[test_rows],
        classes=classes,
        name=str(source),
        row_names=tuple(str(items[row].path) for row in train_rows),
        test_row_names=tuple(str(items[row].path) for row in test_rows),
        unreadable=tuple(decoded.failures),
        notes=(*listing.notes, *_notes_on_classes(listing, classes, numbers[test_rows])),
    )


def _classes(items: Sequence[Listed], in_test_folder: Readable) -> tuple[str, ...]:
    trained_on = (item for item, tested in zip(items, in_test_folder, strict=True) if not tested)
    return tuple(sorted({item.label for item in trained_on if item.label is not None}))


def _notes_on_classes(listing: Listing, classes: Sequence[str], test_labels: NDArray[Any]) -> Iterator[str]:
    """Which classes were lost with their files, and which no test row is of."""
    lost = {item.label for item in listing.train if item.label is not None} - set(classes)
    if lost:
        yield f"no image of {named(lost)} could be read, so no such class is trained on."
    untested = [name for number, name in enumerate(classes) if number not in test_labels]
    if untested and len(test_labels):
        few = "" if listing.test else " (one or two images are all trained on)"
        yield f"there is no test image of {named(untested)}{few}, so the test error says nothing about it."


def in_memory_or_file(images: Source, keep_in_file: bool) -> Source:
    """Images read into memory, unless they are to stay in their file or would take more than half of the memory left."""
    return images if keep_in_file or images.nbytes > memory_left() // 2 else np.array(images)


def suggested_size(source: str | Path) -> int:
    """32 pixels, or the images' own side where they are smaller; judged by a few of them."""
    from PIL import Image

    listing = list_images(Path(source))
    items, sides = listing.train + listing.test, []
    with _large_images_welcome():
        for item in items[:: max(1, len(items) // 50)]:
            try:
                with Image.open(item.path) as image:
                    sides.append(min(image.size))
            except Exception:  # what cannot be read is reported when it is decoded
                continue
    return max(SMALLEST_SIZE, min(USUAL_SIZE, int(np.median(sides)))) if sides else USUAL_SIZE


def decode_all(paths: list[Path], size: int, notice: Notice | None = None) -> Decoded:
    """Every image, from the cache if the files have not changed, else decoded by as many threads as there are cores."""
    cached = cache_folder() / "images" / f"{_fingerprint(paths, size)}.npy"
    kept = _kept(cached, (len(paths), 3, size, size))
    if kept is None:
        with _file_or_memory(cached, (len(paths), 3, size, size)) as images:
            readable, failures = _decode(paths, images, notice)
        _try_to_keep(cached, readable, failures)
        kept = _kept(cached, images.shape) or (images, readable, failures)
    images, readable, failures = kept
    return Decoded(images if readable.all() else Picked(images, np.flatnonzero(readable)), readable, failures)


def _decode(paths: list[Path], images: Images, notice: Notice | None) -> tuple[Readable, list[str]]:
    """Every image into its place, and which of them could be read."""
    readable, failures = np.zeros(len(paths), dtype=np.bool_), []
    with _large_images_welcome(), ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(paths), PIECE):  # the pool would run ahead of what has been put away
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
def _large_images_welcome() -> Iterator[None]:
    """Pillow warns of images of 90 megapixels, which cameras make. (Those of twice as many it refuses by itself.)"""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _decode_or_reason(path: Path, size: int) -> NDArray[np.uint8] | str:
    try:
        return decode(path, size)
    except Exception as error:  # Pillow's decoders raise whatever a damaged file makes them
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def decode(path: Path, size: int) -> NDArray[np.uint8]:
    """One image as [3, size, size] bytes: turned as its camera was held, transparency on white, the central square."""
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
    """Pillow keeps 16 bits as they are, or, of some formats, among 32."""
    return bool(image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")))


def _as_bytes(deep: NDArray[Any], is_16_bit: bool) -> NDArray[np.uint8]:
    """16 bits by 257, whatever of them an image uses, so that all are scaled alike; else 0..1 by 255, and 0..255 as it is."""
    values = deep.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= (65535 if is_16_bit else 255)):  # nor is NaN
        raise ValueError(f"values from {low:g} to {high:g}; expected 0 to 1 or 0 to 255, or 16 bits")
    factor = 1 / 257 if is_16_bit else 255 if high <= 1 else 1
    return np.rint(values * factor).astype(np.uint8)


def _fingerprint(paths: Iterable[Path], size: int) -> str:
    digest = hashlib.sha256(f"images, second way of decoding, {size}".encode())
    for path in paths:
        digest.update(f"{path.absolute()}|{_state(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _state(path: Path) -> str:
    """Changes when the file does; one that cannot be asked about will not be readable either."""
    try:
        status = path.stat()
    except OSError as error:
        return str(error.errno)
    return f"{status.st_size}|{status.st_mtime_ns}"


# The cache: the images as an .npy file, and beside it, written last, an .npz of which of them could be read


def _kept(path: Path, shape: tuple[int, ...]) -> tuple[Images, Readable, list[str]] | None:
    """What was decoded before, the images left in their file; a damaged cache is as good as none."""
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            readable, failures = arrays["readable"], [str(name) for name in arrays["failures"]]
        images = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    return (images, readable, failures) if images.shape == shape and readable.shape == shape[:1] else None


@contextmanager
def _file_or_memory(path: Path, shape: tuple[int, ...]) -> Iterator[Images]:
    """Room for images in the cache's file, put in its place at the end; in memory where that cannot be written."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npy")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        images = _allocated(temporary, shape)
    except OSError:  # a cache that cannot be written costs time, nothing else
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
    """A mapped file whose room on the disk is reserved: a write without room would end the process by a signal."""
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def _try_to_keep(path: Path, readable: Readable, failures: list[str]) -> None:
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    try:
        np.savez(temporary, readable=readable, failures=np.array(failures, dtype=np.str_))
        os.replace(temporary, path.with_suffix(".npz"))
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_failures(decoded: Decoded, source: str | Path) -> None:
    """Refuse a folder of which most cannot be read."""
    total = len(decoded.readable)
    if len(decoded.failures) > TOO_MANY_FAILURES * total:
        raise DataError(
            f"{len(decoded.failures)} of {total} images in {source} cannot be read (the first: {decoded.failures[0]}); "
            "are they images?"
        )


def _held_out(items: Sequence[Listed], source: Path, seed: int) -> Readable:
    """A fifth of each class: those whose names have the smallest hashes, so that few change when images are added."""
    root = source.parent if is_csv(source) else source
    held_out = np.zeros(len(items), dtype=np.bool_)
    members: dict[str, list[tuple[bytes, int]]] = {}
    for place, item in enumerate(items):
        if item.label is not None:
            name = f"{seed} {Path(os.path.relpath(item.path, root)).as_posix()}"
            digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
            members.setdefault(item.label, []).append((digest, place))
    for ranked in map(sorted, members.values()):
        held_out[[place for _, place in ranked[: min(round(HELD_OUT_SHARE * len(ranked)), len(ranked) - 1)]]] = True
    return held_out
