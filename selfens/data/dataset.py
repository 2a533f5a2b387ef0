"""Dataset: training inputs, the labels that are known, a test split, class names. Plain numpy, no torch.

Images are [rows, channels, height, width], uint8 or float32; feature vectors [rows, features] float32. A label is the number of
its class, or `UNLABELED` (-1). A user's arrays are checked here, once. Inputs may lie in memory or in a file: see `rows`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.arrays import PIECE, check_same_scale, fits_bytes, matching, read_npy, read_npz, standard_source
from selfens.data.rows import Concatenated, LazyRows, Source, pieces
from selfens.errors import DataError

UNLABELED = -1
INPUT_NAMES, LABEL_NAMES = ("x_train", "x"), ("y_train", "y")
MOST_HASHED = 2**33  # bytes; the fingerprint of larger inputs takes evenly spaced rows, or it would take minutes

Labels = NDArray[np.int64]


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
    row_names: Sequence[str] = ()
    """The file of each training row, if rows come from files."""
    test_row_names: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Files that were left out, and why."""
    notes: tuple[str, ...] = ()
    """What a person may not expect of these data, a sentence each."""
    extra_rows: int = 0
    """How many of the last rows are extra: without labels, and ignored by preprocessing."""
    extra_name: str = ""

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
        labels   one per row: integers or strings; -1, None, NaN or "" if the label is unknown
        classes  names of the classes; integer labels are then positions in it
        layout   "NHWC" or "NCHW" if the shape does not tell
        """
        bytes_only = fits_bytes(inputs) and (test_inputs is None or fits_bytes(test_inputs))
        x = standard_source(inputs, layout=layout, what="the training inputs", bytes_allowed=bytes_only)
        given = _label_values(labels, rows=len(x), what="the training labels")
        if (test_inputs is None) != (test_labels is None):
            raise DataError("a test set needs both inputs and labels, but only one of the two was given.")
        test_given: list[Any] = []
        test_x: Source = x[:0]
        if test_inputs is not None and test_labels is not None:
            test_x = standard_source(test_inputs, layout=layout, what="the test inputs", bytes_allowed=bytes_only)
            test_given = _label_values(test_labels, rows=len(test_x), what="the test labels")
            if test_x.shape[1:] != x.shape[1:]:
                raise DataError(
                    f"the test inputs have shape {test_x.shape[1:]} per row and the training inputs {x.shape[1:]}; "
                    "they must agree."
                )
            check_same_scale(inputs, test_inputs)
        names, numbers = _number_labels(given, test_given, classes)
        y, test_y = numbers[: len(given)], numbers[len(given) :]
        if (test_y == UNLABELED).any():
            raise DataError(
                f"{int((test_y == UNLABELED).sum())} test rows have no label or one no training row has; "
                "every test row needs a known label."
            )
        return cls(inputs=x, labels=y, test_inputs=test_x, test_labels=test_y, classes=names, name=name)

    @classmethod
    def from_npz(cls, path: str | Path) -> Dataset:
        """A dataset from an .npz file with x_train (or x), y_train (or y); x_test, y_test and classes are optional."""
        path = Path(path)
        arrays = read_npz(path)
        x, y = (next((arrays[name] for name in names if name in arrays), None) for names in (INPUT_NAMES, LABEL_NAMES))
        if x is None or y is None:
            raise missing_arrays(path)
        classes = _class_names(arrays["classes"], path) if "classes" in arrays else None
        return cls.from_arrays(x, y, arrays.get("x_test"), arrays.get("y_test"), classes=classes, name=str(path))

    @classmethod
    def from_npy(cls, folder: str | Path) -> Dataset:
        """A dataset from a folder with x_train.npy, y_train.npy; x_test.npy, y_test.npy and classes.npy are optional.

        Inputs of type uint8 or float32 stay in their files and may be larger than memory; others are converted in memory.
        """
        folder = Path(folder)
        x, y = read_npy(folder / "x_train.npy"), read_npy(folder / "y_train.npy")
        test = [read_npy(path) if path.exists() else None for path in (folder / "x_test.npy", folder / "y_test.npy")]
        names = folder / "classes.npy"
        classes = _class_names(read_npy(names), names) if names.exists() else None
        return cls.from_arrays(x, y, *test, classes=classes, name=str(folder))

    def with_extra(
        self, inputs: ArrayLike | LazyRows, *, names: Sequence[str] = (), name: str = "the extra inputs"
    ) -> Dataset:
        """This data set with unlabeled rows of the same shape and type after its own.

        names  of the rows, such as their files
        name   of all of them, for messages and the run's record
        """
        extra = inputs if isinstance(inputs, LazyRows) else np.asarray(inputs)
        extra = matching(extra, self.inputs, name)
        all_names = _RowNames([(self.name, self.row_names, self.num_rows), (name, names, len(extra))])
        return replace(
            self,
            inputs=Concatenated([self.inputs, extra]),
            labels=np.concatenate([self.labels, np.full(len(extra), UNLABELED, dtype=np.int64)]),
            row_names=all_names,
            extra_rows=self.extra_rows + len(extra),
            extra_name=f"{self.extra_name}, {name}" if self.extra_name else name,
        )

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

    def with_labels(self, labels: Labels) -> Dataset:
        return replace(self, labels=labels)

    def fingerprint(self) -> str:
        """A hash of inputs, labels and classes: two datasets with the same one train alike. Computed once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        about: tuple[Any, ...] = (self.classes, self.inputs.shape, str(self.inputs.dtype))
        about += (self.extra_rows,) if self.extra_rows else ()
        digest = hashlib.sha256(repr(about).encode())
        return _hashed(digest, self.inputs, self.labels, self.test_inputs, self.test_labels)

    def test_fingerprint(self) -> str:
        """A hash of the test rows: errors of runs with the same one are of the same rows."""
        return _hashed(hashlib.sha256(), self.test_inputs, self.test_labels)


def _hashed(digest: Any, *arrays: Any) -> str:
    """The digest with the arrays' bytes added, of every n-th row if there are many."""
    for array in arrays:
        every = 1 + array.nbytes // MOST_HASHED
        for piece in pieces(array, PIECE, None if every == 1 else np.arange(0, len(array), every)):
            digest.update(piece.data)
    return str(digest.hexdigest())


def missing_arrays(path: Path) -> DataError:
    """The sentence for an .npz file without training rows."""
    held = ", ".join(sorted(read_npz(path))) or "no arrays"
    return DataError(f"{path} holds {held}; expected x_train and y_train (and x_test, y_test for a test set).")


def _class_names(names: NDArray[Any], path: Path) -> list[str]:
    if names.ndim != 1:
        raise DataError(f"{path} holds an array of shape {names.shape}; expected one name for each class.")
    return [str(name) for name in names]


class _RowNames(Sequence[str]):
    """The names of rows from several sources: their file if it is known, else the source and the number of the row there."""

    def __init__(self, places: Sequence[tuple[str, Sequence[str], int]]) -> None:
        self.places = places

    def __len__(self) -> int:
        return sum(count for _, _, count in self.places)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        for place, names, count in self.places:
            if 0 <= row < count:
                return names[row] if names else f"{place}:{row}"
            row -= count
        raise IndexError(f"there are names of {len(self)} rows")


def _label_values(labels: ArrayLike, *, rows: int, what: str) -> list[Any]:
    """Labels as a list of int, str or None (unknown)."""
    array = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{what} have shape {array.shape}; expected one label per row.")
    if len(array) != rows:
        raise DataError(f"{what} are {len(array)} for {rows} rows; expected one label per row, -1 if it is unknown.")
    return [_label_value(value, what) for value in array.tolist()]


def _label_value(value: Any, what: str) -> int | str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return None if value in ("", str(UNLABELED)) else str(value)  # numpy's strings become Python's
    if value is None or value != value:  # NaN is the only value unequal to itself
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
