"""Extra unlabeled rows from a file or folder, in the main set's shape and type, to be put after the main rows.

Arrays must have that shape already; the images of a folder are resized. Arrays in .npy files stay mapped, and so does
`tiny_images.bin`: 3,072-byte records, a 32x32 plane each of red, green and blue, column by column, 244 GB in all. The authors'
index, `tiny_index.pkl`, says which images were found under which label. (Tiny Images was withdrawn by its makers in 2020,
because of what some of its labels and images are.)
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from selfens.core.randomness import EXTRA, stream
from selfens.data.arrays import matching, read_inputs
from selfens.data.cifar_svhn import IMAGE_BYTES, IMAGE_SHAPE, Images, numbers_after, pickled_values
from selfens.data.dataset import Dataset, numbered
from selfens.data.folder import all_images, is_folder_source
from selfens.data.images import decode_all
from selfens.data.rows import LazyRows, Numbers, Source
from selfens.errors import DataError

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
        inputs, names = self.inputs, self.names
        if count is not None:
            if count > len(inputs):
                raise DataError(
                    f"data.extra_rows is {count}, but {self.source} has only {len(inputs)} rows; ask for fewer, or leave it "
                    "out to take them all."
                )
            rows = np.sort(stream(seed, EXTRA).choice(len(inputs), count, replace=False))  # sorted, for the disk
            names = [names[row] for row in rows] if names else numbered(self.source, rows)
            inputs = LazyRows([inputs], rows)
        added = main.with_extra(inputs, names=names, name=self.source)
        return replace(added, unreadable=(*main.unreadable, *self.unreadable))


def find(main: Dataset, source: Path, *, index: Path | None = None, progress: bool = False) -> Extra:
    """The rows of an .npz or .npy file, a folder or CSV of images, or tiny_images.bin, as `main` needs them.

    index     tiny_index.pkl: take only images of the main set's classes from tiny_images.bin
    progress  show how many images of a folder have been decoded
    """
    if index is not None and source.suffix != ".bin":
        raise DataError(f"an index of labels goes with tiny_images.bin, not with {source}; leave data.extra_index out.")
    if source.suffix == ".bin":
        return _tiny(main, source, index)
    if is_folder_source(source):
        return _folder(main, source, progress)
    if source.suffix in (".npy", ".npz"):
        return of_array(main, read_inputs(source), str(source))
    raise DataError(
        f"{source} cannot be read as extra rows; expected an .npz or .npy file, a folder of images, a .csv, tiny_images.bin, "
        "or the name of a data set."
    )


def of_array(main: Dataset, array: Source, source: str) -> Extra:
    return Extra(source, matching(array, main.inputs, source))


def _folder(main: Dataset, source: Path, progress: bool) -> Extra:
    channels, *sides = main.input_shape
    if channels != 3 or len(sides) != 2 or sides[0] != sides[1]:
        raise DataError(
            f"the images of {source} would become square and coloured, but the training inputs have shape "
            f"{main.input_shape}; give the extra rows as an array of that shape."
        )
    decoded = decode_all(all_images(source), sides[0], source, progress)
    images = matching(decoded.images, main.inputs, str(source))
    return Extra(str(source), images, [str(file) for file in decoded.files], tuple(decoded.failures))


def _tiny(main: Dataset, source: Path, index: Path | None) -> Extra:
    found = of_array(main, open_tiny_images(source), str(source))
    if index is None:
        return found
    rows = tiny_images_of_classes(index, main.classes, len(found.inputs))
    return Extra(str(source), LazyRows([found.inputs], rows), numbered(str(source), rows))


def open_tiny_images(path: Path) -> Images:
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
    return records.transpose(0, 1, 3, 2)


def tiny_images_of_classes(index: Path, classes: Sequence[str], num_images: int) -> Numbers:
    """The numbers of the images found under the names of `classes`, class by class."""
    values = pickled_values(index)
    places = {value: place for place, value in enumerate(values, start=1) if isinstance(value, str)}
    labels = [TINY_NAMES.get(name, name) for name in classes]
    ranges = {label: numbers_after(values, places[label]) if label in places else [] for label in labels}
    for label, limits in ranges.items():
        if len(limits) != 2 or not 0 <= limits[0] <= limits[1] <= num_images:
            raise DataError(
                f"{index} has {reprlib.repr(limits)} for '{label}', a class of the training set; expected its first image and "
                f"the one after its last, among the {num_images} images there are."
            )
    return np.concatenate([np.arange(*ranges[label]) for label in labels])
