"""Extra unlabeled rows from a file or folder, in the main set's shape and type, to be put after the main rows.

Arrays must have that shape already; the images of a folder are resized. Arrays in .npy files stay mapped, and so does
`tiny_images.bin`: 3,072-byte records, a 32x32 plane each of red, green and blue, column by column. All 79 million would be
244 GB. The authors' index, `tiny_index.pkl`, says which images were found under which label. (Tiny Images was withdrawn by its
makers in 2020, because of what some of its labels and images are.)
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from selfens.core.randomness import EXTRA, stream
from selfens.data.arrays import matching, read_inputs
from selfens.data.cifar_svhn import IMAGE_BYTES, IMAGE_SHAPE, read_pickle
from selfens.data.dataset import Dataset
from selfens.data.folder import all_images, is_folder_source
from selfens.data.images import Notice, decode_all, in_memory_or_file
from selfens.data.rows import Numbers, Selected, Source, Transposed
from selfens.errors import DataError

ARRAY_NAMES = ("x", "inputs", "images", "x_train")
TINY_NAMES = {"aquarium_fish": "fish", "maple_tree": "maple"}  # two classes of CIFAR-100 have other names there


@dataclass(frozen=True, eq=False)
class Extra:
    """Rows that fit a main set."""

    source: str
    inputs: Source
    names: Sequence[str] = ()
    unreadable: tuple[str, ...] = ()
    """Files that were left out, and why."""

    def added_to(self, main: Dataset, *, count: int | None = None, seed: int = 0) -> Dataset:
        """`main` with these rows, or `count` of them drawn at random, after its own."""
        chosen = self if count is None else self._some(count, seed)
        added = main.with_extra(chosen.inputs, names=chosen.names, name=self.source)
        return replace(added, unreadable=(*main.unreadable, *self.unreadable))

    def _some(self, count: int, seed: int) -> Extra:
        if count > len(self.inputs):
            raise DataError(
                f"data.extra_rows is {count}, but {self.source} has only {len(self.inputs)} rows; ask for fewer, or leave it "
                "out to take them all."
            )
        rows = np.sort(stream(seed, EXTRA).choice(len(self.inputs), count, replace=False))  # sorted, for the disk
        names = [self.names[row] if self.names else f"{self.source}:{row}" for row in rows]
        return Extra(self.source, Selected(self.inputs, rows), names)


def find(
    main: Dataset,
    source: Path,
    *,
    index: Path | None = None,
    notice: Notice | None = None,
    keep_in_file: bool = False,
) -> Extra:
    """The rows of an .npz or .npy file, a folder or CSV of images, or tiny_images.bin, as `main` needs them.

    index         tiny_index.pkl: take only images of the main set's classes from tiny_images.bin
    notice        told how many images of a folder have been decoded
    keep_in_file  leave the decoded images of a folder in the cache's file
    """
    if index is not None and source.suffix != ".bin":
        raise DataError(f"an index of labels goes with tiny_images.bin, not with {source}; leave data.extra_index out.")
    if source.suffix == ".bin":
        return _tiny(main, source, index)
    if is_folder_source(source):
        return _folder(main, source, notice, keep_in_file)
    if source.suffix in (".npy", ".npz"):
        return of_array(main, read_inputs(source, ARRAY_NAMES)[0], str(source))
    if not source.exists():
        raise DataError(f"there is no file or folder {source} to take extra rows from; check its path.")
    raise DataError(
        f"{source} cannot be read as extra rows; expected an .npz or .npy file, a folder of images, a .csv, tiny_images.bin, "
        "or the name of a data set."
    )


def of_array(main: Dataset, array: Source, source: str) -> Extra:
    return Extra(source, matching(array, main.inputs, source))


def _folder(main: Dataset, source: Path, notice: Notice | None, keep_in_file: bool) -> Extra:
    channels, *sides = main.input_shape
    if channels != 3 or len(sides) != 2 or sides[0] != sides[1]:
        raise DataError(
            f"the images of {source} would become square and coloured, but the training inputs have shape "
            f"{main.input_shape}; give the extra rows as an array of that shape."
        )
    paths = all_images(source)
    decoded = decode_all(paths, sides[0], source, notice)
    images = matching(in_memory_or_file(decoded.images, keep_in_file), main.inputs, str(source))
    names = [str(path) for path, kept in zip(paths, decoded.readable, strict=True) if kept]
    return Extra(str(source), images, names, tuple(decoded.failures))


# Tiny Images


def _tiny(main: Dataset, source: Path, index: Path | None) -> Extra:
    if main.input_shape != IMAGE_SHAPE:
        raise DataError(
            f"{source} holds images of shape {IMAGE_SHAPE}; the training inputs have {main.input_shape}, so give others."
        )
    images = open_tiny_images(source)
    if index is None:
        return of_array(main, images, str(source))
    rows = tiny_images_of_classes(index, main.classes, len(images))
    chosen = matching(Selected(images, rows), main.inputs, str(source))
    return Extra(str(source), chosen, [f"{source}:{row}" for row in rows])


def open_tiny_images(path: Path) -> Transposed:
    """All images, as [images, 3, 32, 32] bytes, mapped."""
    try:
        size = path.stat().st_size
        if size == 0 or size % IMAGE_BYTES:
            raise DataError(
                f"{path} has {size} bytes; expected a multiple of {IMAGE_BYTES}, one record per image as in "
                "tiny_images.bin: the file may be cut short."
            )
        records = np.memmap(path, np.uint8, mode="r", shape=(size // IMAGE_BYTES, *IMAGE_SHAPE))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its name and permissions.") from None
    return Transposed(records, (1, 3, 2))


def tiny_images_of_classes(index: Path, classes: Sequence[str], num_images: int) -> Numbers:
    """The numbers of the images found under the names of `classes`, class by class."""
    ranges = read_pickle(index, "an index of Tiny Images")
    labels = [TINY_NAMES.get(name, name) for name in classes]
    if missing := [label for label in labels if label not in ranges]:
        raise DataError(
            f"{index} has no images of '{missing[0]}', which is a class of the training set; only images found under the names "
            "of its classes can be taken."
        )
    return np.concatenate([_range(ranges[label], label, index, num_images) for label in labels])


def _range(value: object, label: str, index: Path, num_images: int) -> Numbers:
    match value:
        case (int(start), int(end)) if 0 <= start <= end <= num_images:
            return np.arange(start, end)
        case (int(start), int(end)) if 0 <= start <= end:
            raise DataError(
                f"{index} has the images {start} to {end} for '{label}', but the file of images ends at {num_images}; "
                "it may be cut short."
            )
    raise DataError(
        f"{index} has {reprlib.repr(value)} for '{label}'; expected two numbers, its first image and the one after its last."
    )
