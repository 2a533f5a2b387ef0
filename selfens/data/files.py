"""Readers of the official CIFAR and SVHN files, by numpy alone.

How the bytes of a pickle or a MATLAB file are read is in `formats`; what must be in them, and where, is here.
SVHN writes the digit 0 as label 10. Row order is that of the files, because choosing labels by seed depends on it.
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isdir, isfile  # these take a folder without the right to look into it for missing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfens.data.formats import LARGEST_CONTENT, Images, PickledArray, PickleReader, as_text, matlab_arrays
from selfens.errors import DataError, unknown_name

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = math.prod(IMAGE_SHAPE)

Labels = NDArray[np.int64]


class Splits(NamedTuple):
    """The two splits of an official data set, in the order of its files."""

    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Where one official distribution of CIFAR keeps what; a label is at a key of a pickle or at a byte of a record."""

    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    names_key: str
    label_at: str | int
    num_classes: int

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
_FIVE_BIN = tuple(f"{file}.bin" for file in _FIVE)

LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-batches-py", _FIVE, "test_batch", "batches.meta", "label_names", "labels", 10),
        Layout("cifar-10-batches-bin", _FIVE_BIN, "test_batch.bin", "batches.meta.txt", "", 0, 10),
    ),
    "cifar100": (
        Layout("cifar-100-python", ("train",), "test", "meta", "fine_label_names", "fine_labels", 100),
        # the byte before the fine label is the coarse one
        Layout("cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", "", 1, 100),
    ),
}
SVHN_FOLDER = "svhn"
SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")


def read_cifar(folder: Path, name: str) -> Splits:
    """CIFAR-10 or CIFAR-100 (fine labels) from whichever official layout lies in the folder, or is the folder."""
    if name not in LAYOUTS:
        raise DataError(unknown_name("CIFAR data set", name, LAYOUTS))
    found = find_cifar(folder, name)
    if found is None:
        wanted = " or ".join(layout.folder for layout in LAYOUTS[name])
        raise DataError(f"{folder} holds no files of {name}; expected the folder {wanted}, unpacked.")
    place, layout = found
    if lacking := _lacking(place, layout):
        raise DataError(
            f"{place} lacks {', '.join(lacking)}; expected {', '.join(layout.files)}: "
            "add what is missing, or remove the folder and have it downloaded anew."
        )
    train_x, train_y = _read_batches(place, layout.train, layout)
    test_x, test_y = _read_batches(place, (layout.test,), layout)
    return Splits(train_x, train_y, test_x, test_y, _read_names(place / layout.names, layout))


def find_cifar(folder: Path, name: str) -> tuple[Path, Layout] | None:
    """Where the files are and in which layout, a complete one before one that lacks files; None where there is none."""
    inside = [(folder / layout.folder, layout) for layout in LAYOUTS[name] if isdir(folder / layout.folder)]
    itself = [(folder, layout) for layout in LAYOUTS[name] if isfile(folder / layout.train[0])]
    found = inside + itself
    complete = [(place, layout) for place, layout in found if not _lacking(place, layout)]
    return next(iter(complete + found), None)


def _lacking(place: Path, layout: Layout) -> list[str]:
    return [file for file in layout.files if not isfile(place / file)]


def find_svhn(folder: Path, file: str) -> Path | None:
    """The path of one of SVHN's two files, in the folder or in its sub-folder `svhn`."""
    return next((path for path in (folder / file, folder / SVHN_FOLDER / file) if isfile(path)), None)


def read_svhn(folder: Path) -> Splits:
    """SVHN's cropped digits, train and test (not extra), with label 10 turned into the digit 0 that it stands for."""
    paths = [find_svhn(folder, file) for file in SVHN_FILES]
    missing = [file for file, path in zip(SVHN_FILES, paths, strict=True) if path is None]
    if missing:
        raise DataError(f"{folder} lacks {' and '.join(missing)} of SVHN; put them there or in its sub-folder svhn.")
    (train_x, train_y), (test_x, test_y) = (_read_mat(path) for path in paths if path is not None)
    return Splits(train_x, train_y, test_x, test_y, tuple("0123456789"))


def _read_batches(place: Path, files: Sequence[str], layout: Layout) -> tuple[Images, Labels]:
    read = _read_records if isinstance(layout.label_at, int) else _read_pickled_batch
    batches = [read(place / file, layout) for file in files]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, *IMAGE_SHAPE)
    return images, np.concatenate([labels for _, labels in batches])


def _read_records(path: Path, layout: Layout) -> tuple[Images, Labels]:
    """A binary file: one or two label bytes and the pixels, again and again."""
    content = _read_bytes(path)
    label_at = int(layout.label_at)
    record = label_at + 1 + IMAGE_BYTES
    if not content or len(content) % record:
        raise _wrong(path, f"has {len(content)} bytes", f"a multiple of {record}, one record per image")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = _checked_labels(path, rows[:, label_at].tolist(), layout.num_classes)
    return rows[:, label_at + 1 :], labels


def _read_pickled_batch(path: Path, layout: Layout) -> tuple[Images, Labels]:
    batch = _read_pickle(path)
    pixels, labels = batch.get("data"), batch.get(str(layout.label_at))
    if isinstance(pixels, PickledArray):
        pixels = pixels.values
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != IMAGE_BYTES or not len(pixels):
        found = f"an array of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else "no array"
        raise _wrong(path, f"holds {found} under 'data'", f"uint8 images of shape [n, {IMAGE_BYTES}]")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        found = f"{len(labels)} labels" if isinstance(labels, list) else "no list"
        raise _wrong(path, f"holds {found} under '{layout.label_at}'", f"{len(pixels)} labels, one per image")
    return pixels, _checked_labels(path, labels, layout.num_classes)


def _checked_labels(path: Path, labels: list[Any], num_classes: int) -> Labels:
    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < num_classes:
            found = label if type(label) is int and abs(label) < 10**9 else f"something of type {type(label).__name__}"
            raise _wrong(path, f"gives row {row} the label {found}", f"an integer from 0 to {num_classes - 1}")
    return np.array(labels, dtype=np.int64)


def _read_names(path: Path, layout: Layout) -> tuple[str, ...]:
    if layout.names_key:
        values = _read_pickle(path).get(layout.names_key)
        names = (
            [as_text(value) for value in values if isinstance(value, str | bytes)] if isinstance(values, list) else []
        )
    else:
        names = [line.strip() for line in _read_bytes(path).decode("latin-1").splitlines() if line.strip()]
    if len(names) != layout.num_classes or not all(name.isprintable() for name in names):
        raise _wrong(path, f"holds {len(names)} class names", f"{layout.num_classes} printable names")
    return tuple(names)


def _read_mat(path: Path) -> tuple[Images, Labels]:
    content = _read_bytes(path)
    try:
        arrays = matlab_arrays(content)
    except (ValueError, TypeError, OverflowError, MemoryError, struct.error, zlib.error) as error:
        raise _wrong(path, f"is not a MATLAB file as published ({_short(error)})", "SVHN's cropped digits") from None
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or not x.size:
        found = "no array X" if x is None else f"X of shape {x.shape} and type {x.dtype}"
        raise _wrong(path, f"holds {found}", "uint8 images of shape [32, 32, 3, n]")
    if y is None or y.shape != (x.shape[3], 1) or not np.isin(y, np.arange(1, 11)).all():
        found = "no array y" if y is None else f"y of shape {y.shape} from {y.min(initial=0)} to {y.max(initial=0)}"
        raise _wrong(path, f"holds {found}", f"{x.shape[3]} labels from 1 to 10 in one column")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y[:, 0].astype(np.int64) % 10


def _read_bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size <= LARGEST_CONTENT:
            return path.read_bytes()
    except (OSError, MemoryError) as error:
        raise DataError(f"{path} cannot be read ({_short(error)}); check the file and the rights to it.") from None
    raise _wrong(path, f"has {size} bytes", f"at most {LARGEST_CONTENT}")


def _wrong(path: Path, found: str, expected: str) -> DataError:
    return DataError(
        f"{path} {found}; expected {expected}: replace it by the official file, which may need a new download."
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:150] or type(error).__name__


def _read_pickle(path: Path) -> dict[str, Any]:
    return read_pickle(path, "one of CIFAR's pickles")


def read_pickle(path: Path, what: str) -> dict[str, Any]:
    """The dictionary in a pickle of plain values, which is not unpickled: see `formats`."""
    content = _read_bytes(path)
    try:
        with warnings.catch_warnings():  # pickletools warns of odd escapes in strings
            warnings.simplefilter("ignore")
            value = PickleReader(content).read()
    except (ValueError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise _wrong(path, f"is not {what} ({_short(error)})", "an intact one") from None
    if not isinstance(value, dict):
        raise _wrong(path, f"holds a pickled {type(value).__name__}", "a dictionary")
    return value
