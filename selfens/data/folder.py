"""Folders of images: sub-folders are classes, `unlabeled/` and files beside them are not labelled; or a CSV of file,label.

    photos/cat/1.jpg  photos/dog/2.png  photos/unlabeled/3.jpg  photos/4.jpg        labels from the folders' names
    photos/train/...  photos/test/...                                              the same inside, with a test set
    photos.csv        file,label per line, paths relative to it; an empty label is unknown

Images of any size and mode become RGB bytes of one side, cut to a square about their centre. They are decoded into a file of
the cache, by path, size and time of change, so a second run starts at once and no more of them need be in memory than are
looked at. Files that cannot be read are left out and listed.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
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
from selfens.data.rows import Picked, Source, memory_left
from selfens.errors import DataError
from selfens.randomness import TEST_SPLIT, stream

IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2"}
UNLABELED_FOLDERS = {"unlabeled", "unlabelled"}
SPLIT_FOLDERS = {"train", "test"}
PIECE = 1000  # files given to the threads at a time
HELD_OUT_SHARE = 0.2  # of each class, where there is no test folder
TOO_MANY_FAILURES = 0.5
USUAL_SIZE, SMALLEST_SIZE = 32, 8

Notice = Callable[[int, int], None]
Images = NDArray[np.uint8]
Readable = NDArray[np.bool_]


@dataclass(frozen=True)
class Listed:
    """A file and the name of its class, None where that is unknown."""

    path: Path
    label: str | None


@dataclass(frozen=True)
class Decoded:
    """The images that could be read, in the order of their files, and the files that could not."""

    images: Source
    readable: Readable
    failures: list[str]


def is_folder_source(source: str | Path) -> bool:
    return Path(source).is_dir() or str(source).lower().endswith(".csv")


def load_folder(
    source: str | Path, *, size: int, split_seed: int = 0, notice: Notice | None = None, keep_in_file: bool = False
) -> Dataset:
    """A dataset from a folder of images or a CSV of file,label; in memory, or left in the cache's file.

    Without a test folder, a fifth of the labelled images of each class is held out to test on; a class keeps at least one.
    """
    train, test = list_images(Path(source))
    decoded = decode_all([item.path for item in train + test], size, notice)
    check_failures(decoded, source)
    labels = [item.label for item in train + test]
    classes = tuple(sorted({label for label in labels[: len(train)] if label is not None}))
    numbers = np.array([classes.index(label) if label in classes else UNLABELED for label in labels], dtype=np.int64)
    for_testing = np.arange(len(labels)) >= len(train) if test else _held_out(numbers, split_seed)
    if (numbers[for_testing] == UNLABELED).any():
        raise DataError(
            f"{source}/test holds images of no class that {source}/train has; sort them into the same folders."
        )
    train_rows, test_rows = (
        np.flatnonzero(decoded.readable & ~for_testing),
        np.flatnonzero(decoded.readable & for_testing),
    )
    position = np.cumsum(decoded.readable) - 1  # of a file among the images that could be read
    train_images, test_images = (Picked(decoded.images, position[rows]) for rows in (train_rows, test_rows))
    return Dataset(
        inputs=in_memory_or_file(train_images, keep_in_file),
        labels=numbers[train_rows],
        test_inputs=test_images[:],
        test_labels=numbers[test_rows],
        classes=classes,
        name=str(source),
        row_names=tuple(str((train + test)[row].path) for row in train_rows),
        test_row_names=tuple(str((train + test)[row].path) for row in test_rows),
        unreadable=tuple(decoded.failures),
    )


def in_memory_or_file(images: Source, keep_in_file: bool) -> Source:
    """Images read into memory, unless they are to stay in their file or would take more than half of the memory left."""
    return images if keep_in_file or images.nbytes > memory_left() // 2 else np.array(images)


def suggested_size(source: str | Path) -> int:
    """32 pixels, or the images' own side where they are smaller; judged by a few of them."""
    from PIL import Image

    train, test = list_images(Path(source))
    sides = []
    for item in (train + test)[:: max(1, len(train + test) // 50)]:
        try:
            with Image.open(item.path) as image:
                sides.append(min(image.size))
        except Exception:  # what cannot be read is reported when it is decoded
            continue
    return max(SMALLEST_SIZE, min(USUAL_SIZE, int(np.median(sides)))) if sides else USUAL_SIZE


def list_images(source: Path) -> tuple[list[Listed], list[Listed]]:
    """The training files and the test files, sorted by path."""
    if source.suffix.lower() == ".csv":
        return _from_csv(source), []
    folders = {path.name for path in _entries(source) if path.is_dir()}
    if "test" in folders and folders <= SPLIT_FOLDERS | UNLABELED_FOLDERS and "train" in folders:
        beside = [
            item for name in sorted(folders & UNLABELED_FOLDERS) for item in _from_tree(source / name, labelled=False)
        ]
        train, test = _from_tree(source / "train") + beside, _from_tree(source / "test")
    else:
        train, test = _from_tree(source), []
    if not train:
        raise DataError(
            f"{source} holds no images ({', '.join(sorted(IMAGE_ENDINGS))}); expected one folder of images per class, and "
            "'unlabeled' for the others."
        )
    return train, test


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its name and the rights to it.") from None


def _from_tree(folder: Path, labelled: bool = True) -> list[Listed]:
    """Files of `folder` itself without a label, those of each sub-folder with its name."""
    found = []
    for path in _entries(folder):
        if path.is_dir():
            label = path.name if labelled and path.name.lower() not in UNLABELED_FOLDERS else None
            found += [Listed(image, label) for image in _images_below(path)]
        elif path.suffix.lower() in IMAGE_ENDINGS:
            found.append(Listed(path, None))
    return found


def _images_below(folder: Path) -> list[Path]:
    inside: list[Path] = []
    for path in _entries(folder):
        inside += _images_below(path) if path.is_dir() else [path] if path.suffix.lower() in IMAGE_ENDINGS else []
    return inside


def _from_csv(path: Path) -> list[Listed]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV of file,label ({error}).") from None
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    if "file" not in header or "label" not in header:
        raise DataError(f"{path} begins with the columns {', '.join(header) or 'none'}; expected file and label.")
    file_at, label_at = header.index("file"), header.index("label")
    found = [
        Listed(path.parent / line[file_at].strip(), _known(line[label_at] if label_at < len(line) else ""))
        for line in lines[1:]
    ]
    missing = [item.path for item in found if not item.path.is_file()]
    if missing or not found:
        what = f"{len(missing)} files that are not there, the first {missing[0]}" if missing else "no files"
        raise DataError(f"{path} names {what}; paths are relative to the CSV's own folder.")
    return found


def _known(text: str) -> str | None:
    label = text.strip()
    return None if label in ("", str(UNLABELED)) or label.lower() in UNLABELED_FOLDERS else label


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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
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


def _decode_or_reason(path: Path, size: int) -> NDArray[np.uint8] | str:
    try:
        return decode(path, size)
    except Exception as error:  # Pillow's decoders raise whatever a damaged file makes them
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def decode(path: Path, size: int) -> NDArray[np.uint8]:
    """One image as [3, size, size] bytes: turned as its camera was held, transparency on white, the central square."""
    from PIL import Image, ImageOps

    with Image.open(path) as opened:
        image: Any = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I") or image.mode == "F":
            image = Image.fromarray(_as_bytes(np.asarray(image)))
        elif image.has_transparency_data:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image)
        square = ImageOps.fit(image.convert("RGB"), (size, size), method=Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def _as_bytes(deep: NDArray[Any]) -> NDArray[np.uint8]:
    """16-bit and float images scaled to bytes: by 257 where values need 16 bits, as they are where they fit a byte."""
    values = deep.astype(np.float64)
    scale = 257.0 if values.max(initial=0) > 255 else 1.0
    return np.clip(values / scale, 0, 255).astype(np.uint8)


def _fingerprint(paths: Iterable[Path], size: int) -> str:
    digest = hashlib.sha256(f"images {size}".encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path.absolute()}|{status.st_size}|{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


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


def _held_out(numbers: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    random = stream(seed, TEST_SPLIT)
    held_out = np.zeros(len(numbers), dtype=np.bool_)
    for number in np.unique(numbers[numbers != UNLABELED]):
        members = random.permutation(np.flatnonzero(numbers == number))
        held_out[members[: min(round(HELD_OUT_SHARE * len(members)), len(members) - 1)]] = True
    return held_out
