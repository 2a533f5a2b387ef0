"""Tiny Images: `tiny_images.bin`, and the authors' index of its labels.

The file is 3,072-byte records one after another, a 32x32 plane each of red, green and blue, each plane column by column. It is
mapped, and images are read as they are asked for: all 79 million would be 244 GB. The index, `tiny_index.pkl` of the authors'
code, says for each label which images were found under it; it is read without unpickling it.

The data set was withdrawn by its makers in 2020, because of what some of its labels and images are.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from selfens.data.files import IMAGE_BYTES, IMAGE_SHAPE, read_pickle
from selfens.data.rows import Numbers, Turned
from selfens.errors import DataError

OTHER_NAMES = {"aquarium_fish": "fish", "maple_tree": "maple"}  # two classes of CIFAR-100 that are no labels here


def open_images(path: Path) -> Turned:
    """All images, as [images, 3, 32, 32] bytes."""
    try:
        size = path.stat().st_size
        if size == 0 or size % IMAGE_BYTES:
            raise DataError(
                f"{path} has {size} bytes; expected a multiple of {IMAGE_BYTES}, one record per image as in "
                "tiny_images.bin: the file may be cut short."
            )
        records = np.memmap(path, np.uint8, mode="r", shape=(size // IMAGE_BYTES, *IMAGE_SHAPE))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its name and the rights to it.") from None
    return Turned(records, (1, 3, 2))


def images_of_classes(index: Path, classes: Sequence[str], num_images: int) -> Numbers:
    """The numbers of the images found under the names of `classes`, class by class."""
    ranges = read_pickle(index, "an index of Tiny Images")
    found = []
    for name in classes:
        label = OTHER_NAMES.get(name, name)
        if label not in ranges:
            raise DataError(
                f"{index} has no images of '{label}', which is a class of the training set; the restricted images are those "
                "found under the names of its classes."
            )
        found.append(_range(ranges[label], label, index, num_images))
    return np.concatenate(found)


def _range(value: object, label: str, index: Path, num_images: int) -> Numbers:
    match value:
        case (int(start), int(end)) if 0 <= start <= end:
            if end > num_images:
                raise DataError(
                    f"{index} has the images {start} to {end} for '{label}', but the file of images ends at {num_images}; "
                    "it may be cut short."
                )
            return np.arange(start, end)
    raise DataError(
        f"{index} has {reprlib.repr(value)} for '{label}'; expected two numbers, its first image and the one after its last."
    )
