"""Extra unlabeled rows: found in a file or folder, in the main set's shape and type, and put after the main rows.

Arrays must have that shape already; the images of a folder are brought to it. Files of arrays stay mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfens.core.randomness import EXTRA, stream
from selfens.data import folder, tiny_images
from selfens.data.dataset import Dataset
from selfens.data.files import IMAGE_SHAPE
from selfens.data.inputs import matching, read_inputs
from selfens.data.listing import all_images
from selfens.data.rows import Picked, Source
from selfens.errors import DataError

ARRAY_NAMES = ("x", "inputs", "images", "x_train")


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
        return added.with_unreadable(self.unreadable)

    def _some(self, count: int, seed: int) -> Extra:
        if count > len(self.inputs):
            raise DataError(
                f"data.extra_rows is {count}, but {self.source} has only {len(self.inputs)} rows; ask for fewer, or leave it "
                "out to take them all."
            )
        rows = np.sort(stream(seed, EXTRA).choice(len(self.inputs), count, replace=False))  # rising, as a disk likes it
        names = [self.names[row] if self.names else f"{self.source}:{row}" for row in rows]
        return Extra(self.source, Picked(self.inputs, rows), names)


def find(
    main: Dataset,
    source: Path,
    *,
    index: Path | None = None,
    notice: folder.Notice | None = None,
    keep_in_file: bool = False,
) -> Extra:
    """The rows of an .npz or .npy file, a folder or CSV of images, or tiny_images.bin, as `main` needs them.

    index         take only images of the main set's classes from tiny_images.bin, which this says where to find
    notice        told how many images of a folder have been decoded
    keep_in_file  leave the decoded images of a folder in the cache's file
    """
    if index is not None and source.suffix != ".bin":
        raise DataError(f"an index of labels goes with tiny_images.bin, not with {source}; leave data.extra_index out.")
    if source.suffix == ".bin":
        return _tiny(main, source, index)
    if folder.is_folder_source(source):
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


def _tiny(main: Dataset, source: Path, index: Path | None) -> Extra:
    if main.input_shape != IMAGE_SHAPE:
        raise DataError(
            f"{source} holds images of shape {IMAGE_SHAPE}; the training inputs have {main.input_shape}, so give others."
        )
    images = tiny_images.open_images(source)
    if index is None:
        return of_array(main, images, str(source))
    rows = tiny_images.images_of_classes(index, main.classes, len(images))
    return Extra(
        str(source), matching(Picked(images, rows), main.inputs, str(source)), [f"{source}:{row}" for row in rows]
    )


def _folder(main: Dataset, source: Path, notice: folder.Notice | None, keep_in_file: bool) -> Extra:
    channels, *sides = main.input_shape
    if channels != 3 or len(sides) != 2 or sides[0] != sides[1]:
        raise DataError(
            f"the images of {source} would become square and coloured, but the training inputs have shape "
            f"{main.input_shape}; give the extra rows as an array of that shape."
        )
    paths = all_images(source)
    decoded = folder.decode_all(paths, sides[0], notice)
    folder.check_failures(decoded, source)
    images = matching(folder.in_memory_or_file(decoded.images, keep_in_file), main.inputs, str(source))
    names = [str(path) for path, kept in zip(paths, decoded.readable, strict=True) if kept]
    return Extra(str(source), images, names, tuple(decoded.failures))
