"""Dataset: training inputs, the labels that are known, a test split, class names. Plain numpy, no torch.

Images are [rows, channels, height, width], uint8 or float32; feature vectors [rows, features] float32. A label is the number of
its class, or `UNLABELED` (-1). A user's arrays are checked here, once. Inputs may lie in memory or in a file: see `rows`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.arrays import (
    PIECE,
    Range,
    check_same_kind,
    fits_bytes,
    from_0_to_1,
    matching,
    read_npy,
    read_npz,
    standard_inputs,
    value_range,
)
from selfens.data.rows import LazyRows, Source, pieces
from selfens.errors import DataError

if TYPE_CHECKING:
    from selfens.data.tabular import Columns

UNLABELED = -1
MOST_HASHED = 2**33  # bytes; the fingerprint of larger inputs takes evenly spaced rows, or it would take minutes

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Origin:
    """The images of which a backbone made the features that are a data set's inputs."""

    images: Source
    test_images: Source
    digests: NDArray[np.uint8]
    """The hash of each image's pixels."""
    test_digests: NDArray[np.uint8]
    backbone: dict[str, Any]
    """What run.json and an export keep of it: name, weights with hash and license, input size and statistics."""
    summary: str
    """How many features were computed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """What a run trains and tests on; with no test rows nothing is tested."""

    inputs: Source
    """The main training rows, then the extra ones."""
    labels: Labels
    test_inputs: Source
    test_labels: Labels
    classes: tuple[str, ...]
    name: str = "arrays"
    row_names: tuple[str, ...] = ()
    """The file of each training row, if rows come from files; of a table, what identifies it."""
    test_row_names: tuple[str, ...] = ()
    row_numbers: NDArray[np.int64] | None = None
    """The place of each training row in its table; None: they are numbered from 0."""
    test_row_numbers: NDArray[np.int64] | None = None
    columns: Columns | None = None
    """How a table's cells became the inputs."""
    table: Any = None
    """A DataFrame of the cells that became the inputs, by the numbers of the rows: to look at, and to fit columns again."""
    notes: tuple[str, ...] = ()
    """What a person should know of how the inputs were made."""
    unreadable: tuple[str, ...] = ()
    """Files that were left out, and why."""
    extra_rows: int = 0
    """How many of the last rows are extra: without labels, and ignored by preprocessing."""
    extra_name: str = ""
    origin: Origin | None = None
    """What the inputs were computed from, if they are features of images."""

    @classmethod
    def from_arrays(
        cls,
        inputs: ArrayLike,
        labels: ArrayLike,
        test_inputs: ArrayLike | None = None,
        test_labels: ArrayLike | None = None,
        *,
        classes: Sequence[str] | None = None,
        layout: str = "auto",
        name: str = "arrays",
    ) -> Dataset:
        """A dataset from a user's arrays.

        inputs   images [rows, height, width, channels] or [rows, channels, height, width] or [rows, height, width],
                 uint8 or float; or feature vectors [rows, features]
        labels   one per row: integers or strings; -1, None, NaN, pandas' NA or "" if the label is unknown
        classes  names of the classes; integer labels are then positions in it
        layout   "NHWC" or "NCHW" if the shape does not tell
        """
        bytes_only = fits_bytes(inputs) and (test_inputs is None or fits_bytes(test_inputs))
        x = standard_inputs(inputs, layout=layout, what="the training inputs", bytes_allowed=bytes_only)
        given = _label_values(labels, rows=len(x), what="the training labels")
        if (test_inputs is None) != (test_labels is None):
            raise DataError("a test set needs both inputs and labels, but only one of the two was given.")
        test_given: list[Any] = []
        test_x: Source = x[:0]
        if test_inputs is not None and test_labels is not None:
            test_x = standard_inputs(test_inputs, layout=layout, what="the test inputs", bytes_allowed=bytes_only)
            test_given = _label_values(test_labels, rows=len(test_x), what="the test labels")
            if test_x.shape[1:] != x.shape[1:]:
                raise DataError(
                    f"the test inputs have shape {test_x.shape[1:]} per row and the training inputs {x.shape[1:]}; "
                    "they must agree."
                )
            check_same_kind(inputs, test_inputs)
        names, numbers = _number_labels(given, test_given, classes)
        y, test_y = numbers[: len(given)], numbers[len(given) :]
        if names and (unknown := [test_given[row] for row in np.flatnonzero(test_y == UNLABELED)]):
            strange = next((value for value in unknown if value is not None), None)
            lacks = "no label (-1, NaN and empty mean none)"
            lacks = lacks if strange is None else f"the label '{strange}', which no training row has"
            rows = f"{unknown.count(strange):,} test row{'s have' if unknown.count(strange) > 1 else ' has'}"
            raise DataError(f"{rows} {lacks}; give each a label of the training rows, or leave it out.")
        return cls(inputs=x, labels=y, test_inputs=test_x, test_labels=test_y, classes=names, name=name)

    @classmethod
    def from_npz(cls, path: str | Path) -> Dataset:
        """A dataset from an .npz file with x_train, y_train; x_test, y_test and classes are optional."""
        return cls._from_named(read_npz(Path(path)), Path(path))

    @classmethod
    def from_npy(cls, folder: str | Path) -> Dataset:
        """A dataset from a folder with x_train.npy, y_train.npy; x_test.npy, y_test.npy and classes.npy are optional.

        Inputs of type uint8 or float32 stay in their files and may be larger than memory; others are converted in memory.
        """
        paths = [Path(folder) / f"{name}.npy" for name in ("x_train", "y_train", "x_test", "y_test", "classes")]
        return cls._from_named({path.stem: read_npy(path) for path in paths if path.exists()}, Path(folder))

    @classmethod
    def _from_named(cls, arrays: dict[str, NDArray[Any]], path: Path) -> Dataset:
        if not {"x_train", "y_train"} <= set(arrays):
            raise missing_arrays(arrays, path)
        names = arrays.get("classes")
        if names is not None and names.ndim != 1:
            raise DataError(f"classes in {path} have shape {names.shape}; expected one name for each class.")
        classes = None if names is None else [str(name) for name in names]
        given = (arrays.get(name) for name in ("x_train", "y_train", "x_test", "y_test"))
        return cls.from_arrays(*given, classes=classes, name=str(path))  # type: ignore[arg-type]

    def with_extra(
        self, inputs: ArrayLike | LazyRows, *, names: Sequence[str] = (), name: str = "the extra inputs"
    ) -> Dataset:
        """This data set with unlabeled rows of the same shape and type after its own.

        names  of the rows, such as their files
        name   of all of them, for messages and the run's record
        """
        if self.columns is not None:
            raise DataError(f"{self.name} is a table; give it more unlabeled rows as rows whose label is empty.")
        extra = matching(inputs if isinstance(inputs, LazyRows) else np.asarray(inputs), self.inputs, name)
        own_names = self.row_names or numbered(self.name, range(self.num_rows))
        return replace(
            self,
            inputs=LazyRows([self.inputs, extra]),
            labels=np.concatenate([self.labels, np.full(len(extra), UNLABELED, dtype=np.int64)]),
            row_names=(*own_names, *(names or numbered(name, range(len(extra))))),
            extra_rows=self.extra_rows + len(extra),
            extra_name=f"{self.extra_name}, {name}" if self.extra_name else name,
        )

    def identify(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], dict[str, list[str]]]:
        """The numbers by which a person knows these training rows, and a column of their files or identifiers, if any."""
        header = "file" if self.columns is None else self.columns.header
        names = {header: [self.row_names[row] for row in rows]} if self.row_names else {}
        return rows if self.row_numbers is None else self.row_numbers[rows], names

    @property
    def num_rows(self) -> int:
        return len(self.inputs)

    @property
    def main_rows(self) -> int:
        """How many rows come before the extra ones."""
        return self.num_rows - self.extra_rows

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    @property
    def is_images(self) -> bool:
        return self.inputs.ndim == 4

    @cached_property
    def value_range(self) -> Range | None:
        """Of images, the least and the greatest number; 0 and 255 of bytes, whichever there are."""
        return value_range(self.inputs) if self.is_images else None

    @cached_property
    def are_pixels(self) -> bool:
        """Whether the inputs are images of bytes or of floats from 0 to 1, some in the upper half: else white is not known."""
        if self.value_range is None:
            return False
        if self.inputs.dtype == np.uint8:
            return any(bool(piece.max() > 127) for piece in pieces(self.inputs, PIECE))
        return from_0_to_1(self.value_range) and self.value_range[1] > 0.5

    def shown(self, *, test: bool = False) -> Source:
        """What the rows look like: the images behind features, else the inputs themselves."""
        if self.origin is not None:
            return self.origin.test_images if test else self.origin.images
        return self.test_inputs if test else self.inputs

    def with_labels(self, labels: Labels) -> Dataset:
        return replace(self, labels=labels)

    def fingerprint(self) -> str:
        """A hash of inputs, labels and classes: two datasets with the same one train alike. Computed once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        about: tuple[Any, ...] = (self.classes, self.inputs.shape, str(self.inputs.dtype))
        about += (self.extra_rows,) if self.extra_rows else ()
        about += (self.origin.backbone["key"],) if self.origin else ()
        digest, (inputs, test_inputs) = hashlib.sha256(repr(about).encode()), self._hashed_inputs
        return _hashed(digest, inputs, self.labels, test_inputs, self.test_labels)

    @property
    def _hashed_inputs(self) -> tuple[Source, Source]:
        """Features may differ in the last digits on another machine; the pixels they are of do not."""
        return (self.origin.digests, self.origin.test_digests) if self.origin else (self.inputs, self.test_inputs)

    def test_fingerprint(self) -> str:
        """A hash of the test rows: errors of runs with the same one are of the same rows."""
        inputs = self._hashed_inputs[1] if self.test_row_names else self.shown(test=True)
        return _hashed(hashlib.sha256(), inputs, self.test_labels)

    def test_files(self) -> str | None:
        """A hash of the names and sizes of the test rows' files, which is the same for images of any size; None if the test
        rows are not files."""
        names = self.test_row_names if self.columns is None else ()
        if not names or not all(map(os.path.isfile, names)):
            return None
        files = [(os.path.basename(name), os.path.getsize(name)) for name in names]
        return _hashed(hashlib.sha256(repr(files).encode()), self.test_labels)


def _hashed(digest: Any, *arrays: Any) -> str:
    """The digest with the arrays' bytes added, of every n-th row if there are many."""
    for array in arrays:
        every = 1 + array.nbytes // MOST_HASHED
        for piece in pieces(array, PIECE, None if every == 1 else np.arange(0, len(array), every)):
            digest.update(piece.data)
    return str(digest.hexdigest())


def missing_arrays(names: Iterable[str], path: Path) -> DataError:
    """The sentence for a data set without training rows."""
    held = ", ".join(sorted(names)) or "no arrays"
    return DataError(f"{path} holds {held}; expected x_train and y_train (and x_test, y_test for a test set).")


def numbered(name: str, rows: Iterable[int]) -> list[str]:
    """Names for rows that do not come from files of their own."""
    return [f"{name}:{row}" for row in rows]


def _label_values(labels: ArrayLike, *, rows: int, what: str) -> list[Any]:
    """Labels as a list of int, str or None (unknown)."""
    array = np.asarray(labels, dtype=object)  # whole numbers stay whole, even in a table's column with missing ones
    if array.shape != (rows,):
        shape = " x ".join(map(str, array.shape)) or "a single value"
        raise DataError(f"{what} are {shape} for {rows} rows; expected one label per row, -1 for unknown.")
    return [_label_value(value, what) for value in array.tolist()]


def is_missing(value: Any) -> bool:
    """Whether a label is what a table has for none: None, NaN, NaT or pandas' NA.

    >>> is_missing(float("nan")), is_missing("")
    (True, False)
    """
    try:
        return value is None or bool(value != value)
    except TypeError:  # of NA, whose comparisons are neither true nor false
        return True


def _label_value(value: Any, what: str) -> int | str | None:
    if isinstance(value, str):
        return None if value in ("", str(UNLABELED)) else str(value)  # numpy's strings become Python's
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | np.integer):
        if value < UNLABELED:
            raise DataError(f"{what} hold {value}; expected class numbers from 0, or -1 for unknown.")
        return None if value == UNLABELED else int(value)
    raise DataError(
        f"{what} hold {value!r} of type {type(value).__name__}; expected integers or strings, -1 or None for unknown."
    )


def _number_labels(
    train: list[Any], test: list[Any], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Class names, and every label as a position among them."""
    values = train + test
    known = {value for value in train if value is not None}
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        raise DataError("the labels mix integers and strings; use one of the two.")
    if classes is not None:
        names = tuple(str(c) for c in classes)
        if len(set(names)) != len(names):
            raise DataError(f"the class names {', '.join(names[:8])} hold one twice; names must be unique.")
        keys: list[Any] = list(names) if kinds == {str} else list(range(len(names)))
        strange = sorted({v for v in values if v is not None} - set(keys), key=str)
        if strange:
            raise DataError(f"the label {strange[0]!r} is not one of the {len(names)} classes {', '.join(names[:8])}.")
    else:
        keys = sorted(known)
        names = tuple(str(key) for key in keys)
    number = {key: i for i, key in enumerate(keys)} | {None: UNLABELED}
    return names, np.array([number.get(value, UNLABELED) for value in values], dtype=np.int64)
