"""Dataset: examples as their source gave them, the labels that are known, and which rows are for testing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.arrays import PIECE, fits_bytes, matching, read_npy, read_npz, standard_inputs
from selfens.data.frames import COMMA, is_frame
from selfens.data.rows import Array, Labels, LazyRows, Rows, pieces, take
from selfens.errors import DataError, listed, plural

UNLABELED = -1
MAX_HASHED = 2**33  # bytes; of larger arrays, evenly spaced rows are hashed, or it would take minutes


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Examples, whatever their kind; an encoder (`selfens.encoders`) makes the arrays of them that are trained on.

    Training rows are numbered from 0, those for testing left out. Extra rows, which have no labels and are ignored by
    preprocessing, come last.
    """

    raw: Any
    """All rows: an array [rows, ...], `LazyRows`, or a pandas DataFrame."""
    labels: Labels
    """The class number of each row, `UNLABELED` if unknown."""
    is_test: NDArray[np.bool_]
    classes: tuple[str, ...]
    name: str = "arrays"
    ids: tuple[str, ...] = ()
    """What tells the rows apart: their files, or an id column; empty if there is nothing of the kind."""
    id_header: str = "file"
    numbers: Rows | None = None
    """The number by which a person knows each row; None: counted from 0, training and test rows apart."""
    notes: tuple[str, ...] = ()
    """What a person should know about how the data were read."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    extra_rows: int = 0
    extra_name: str = ""
    source: Any = None
    """The options it was loaded with, as completed by its source; None if it was made in Python."""

    # Making one

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
        """Make a dataset of arrays.

        Parameters
        ----------
        inputs
            Images [rows, height, width, channels], [rows, channels, height, width] or [rows, height, width], uint8 or
            float; or feature vectors [rows, features].
        labels
            One per row: integers or strings; -1, None, NaN, pandas' NA or "" if unknown.
        classes
            Names of the classes; integer labels are positions in it.
        layout
            "NHWC" or "NCHW", if the shape is ambiguous.
        """
        bytes_only = fits_bytes(inputs) and (test_inputs is None or fits_bytes(test_inputs))
        x = standard_inputs(inputs, layout=layout, what="the training inputs", bytes_allowed=bytes_only)
        train = label_values(labels, rows=len(x), what="the training labels")
        if (test_inputs is None) != (test_labels is None):
            raise DataError("a test set needs both inputs and labels, but only one of them was given.")
        test: list[Any] = []
        raw: Array = x
        if test_inputs is not None and test_labels is not None:
            test_x = standard_inputs(test_inputs, layout=layout, what="the test inputs", bytes_allowed=bytes_only)
            test = label_values(test_labels, rows=len(test_x), what="the test labels")
            if test_x.shape[1:] != x.shape[1:]:
                raise DataError(
                    f"the test inputs have shape {test_x.shape[1:]} per row and the training inputs {x.shape[1:]}; "
                    "they must agree."
                )
            _check_same_kind(inputs, test_inputs)
            raw = LazyRows([x, test_x])
        is_test = np.arange(len(raw)) >= len(x)
        return cls.from_labels(raw, [*train, *test], is_test, classes=classes, name=name)

    @classmethod
    def from_labels(
        cls,
        raw: Any,
        labels: Sequence[int | str | None],
        is_test: NDArray[np.bool_] | None = None,
        *,
        classes: Sequence[str] | None = None,
        **about: Any,
    ) -> Dataset:
        """Make a dataset of rows of any kind and their labels, None if unknown; `about` are its other fields."""
        test = np.zeros(len(labels), dtype=bool) if is_test is None else is_test
        names, numbers = number_classes(labels, test, classes)
        unknown = np.flatnonzero(test & (numbers == UNLABELED)).tolist()
        if names and unknown:
            strange = next((labels[row] for row in unknown if labels[row] is not None), None)
            lacks = "no label (-1, NaN and empty mean unknown)"
            lacks = lacks if strange is None else f"the label '{strange}', which no training row has"
            count = sum(labels[row] == strange for row in unknown)
            raise DataError(
                f"{plural(count, 'test row')} {'has' if count == 1 else 'have'} {lacks}; give each a label of the "
                "training rows, or leave it out."
            )
        return cls(raw=raw, labels=numbers, is_test=test, classes=names, **about)

    @classmethod
    def from_npz(cls, path: str | Path) -> Dataset:
        """Read an .npz file with x_train, y_train; x_test, y_test and classes are optional."""
        return cls._from_named_arrays(read_npz(Path(path)), Path(path))

    @classmethod
    def from_npy(cls, folder: str | Path) -> Dataset:
        """Read a folder with x_train.npy, y_train.npy; x_test.npy, y_test.npy and classes.npy are optional.

        Inputs of type uint8 or float32 stay in their files and may be larger than memory; others are converted.
        """
        paths = [Path(folder) / f"{name}.npy" for name in ("x_train", "y_train", "x_test", "y_test", "classes")]
        return cls._from_named_arrays({path.stem: read_npy(path) for path in paths if path.exists()}, Path(folder))

    @classmethod
    def _from_named_arrays(cls, arrays: dict[str, NDArray[Any]], path: Path) -> Dataset:
        if not {"x_train", "y_train"} <= set(arrays):
            raise missing_arrays(arrays, path)
        names = arrays.get("classes")
        if names is not None and names.ndim != 1:
            raise DataError(f"classes in {path} have shape {names.shape}; expected one name for each class.")
        classes = None if names is None else [str(name) for name in names]
        given = (arrays.get(name) for name in ("x_train", "y_train", "x_test", "y_test"))
        return cls.from_arrays(*given, classes=classes, name=str(path))  # type: ignore[arg-type]

    def with_extra(self, raw: Any, *, ids: Sequence[str] = (), name: str = "the extra rows") -> Dataset:
        """Return this dataset with more unlabeled rows of the same kind after its own."""
        if is_frame(self.raw) != is_frame(raw):
            raise DataError(f"{name} and {self.name} are of different kinds; extra rows of a table come from a table.")
        if is_frame(raw):
            import pandas

            if missing := [column for column in self.raw.columns if column not in raw.columns]:
                raise DataError(f"{name} lacks the columns {listed(missing)} of {self.name}.")
            if bool(raw.attrs.get(COMMA)) != bool(self.raw.attrs.get(COMMA)):
                raise DataError(f"only one of {name} and {self.name} has decimal commas; save both in the same way.")
            joined: Any = pandas.concat([self.raw, raw[self.raw.columns]], ignore_index=True)
            joined.attrs = self.raw.attrs
        else:
            raw = matching(raw if isinstance(raw, LazyRows) else np.asarray(raw), self.raw, name)
            joined = LazyRows([self.raw, raw])
        own = self.ids or numbered(self.name, range(len(self.labels)))
        return replace(
            self,
            raw=joined,
            labels=np.concatenate([self.labels, np.full(len(raw), UNLABELED)]),
            is_test=np.concatenate([self.is_test, np.zeros(len(raw), bool)]),
            ids=(*own, *(ids or numbered(name, range(len(raw))))),
            numbers=None if self.numbers is None else np.concatenate([self.numbers, self._numbers_after(len(raw))]),
            extra_rows=self.extra_rows + len(raw),
            extra_name=f"{self.extra_name}, {name}" if self.extra_name else name,
        )

    def _numbers_after(self, count: int) -> Rows:
        assert self.numbers is not None
        return np.asarray(1 + self.numbers.max(initial=-1) + np.arange(count))

    def with_train_labels(self, labels: Labels) -> Dataset:
        """Return this dataset with other labels for its training rows."""
        every = self.labels.copy()
        every[self.train_rows] = labels
        return replace(self, labels=every)

    def with_split(self, train: Rows, test: Rows, labels: Labels) -> Dataset:
        """Return a dataset of some training rows, part of them for testing; `labels` are for all training rows."""
        rows = self.train_rows[np.concatenate([train, test])]
        return replace(
            self,
            raw=take(self.raw, rows),
            labels=np.concatenate([labels[train], labels[test]]),
            is_test=np.arange(len(rows)) >= len(train),
            ids=tuple(self.ids[row] for row in rows) if self.ids else (),
            numbers=None if self.numbers is None else self.numbers[rows],
            skipped=(),
            extra_rows=int((train >= self.num_main).sum()),
        )

    # Parts

    @cached_property
    def train_rows(self) -> Rows:
        return np.flatnonzero(~self.is_test)

    @cached_property
    def test_rows(self) -> Rows:
        return np.flatnonzero(self.is_test)

    @cached_property
    def train_labels(self) -> Labels:
        return self.labels[self.train_rows]

    @cached_property
    def test_labels(self) -> Labels:
        return self.labels[self.test_rows]

    @property
    def num_train(self) -> int:
        return len(self.train_rows)

    @property
    def num_main(self) -> int:
        """The number of training rows before the extra ones."""
        return self.num_train - self.extra_rows

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    # What rows are called

    def row_numbers(self, *, test: bool = False) -> Rows:
        """Return the numbers by which a person knows the training rows, or the test rows."""
        rows = self.test_rows if test else self.train_rows
        return np.arange(len(rows)) if self.numbers is None else self.numbers[rows]

    def row_ids(self, *, test: bool = False) -> tuple[str, ...]:
        """Return the ids of the training rows, or of the test rows; empty if rows have none."""
        return tuple(self.ids[row] for row in (self.test_rows if test else self.train_rows)) if self.ids else ()

    def identify(self, rows: Rows) -> tuple[Rows, dict[str, list[str]]]:
        """Return the numbers by which a person knows these training rows, and a column of their ids, if there are any."""
        ids = {self.id_header: [self.ids[row] for row in self.train_rows[rows]]} if self.ids else {}
        return self.row_numbers()[rows], ids

    def test_fingerprint(self) -> str:
        """Hash the test rows: errors of two runs with the same hash are errors on the same rows.

        Files are hashed by name and size, so that the result does not depend on the size they are decoded to.
        """
        digest, rows = hashlib.sha256(), self.test_rows
        files = self.row_ids(test=True)
        if files and self.id_header == "file" and all(map(os.path.isfile, files)):
            digest.update(repr([(os.path.basename(file), os.path.getsize(file)) for file in files]).encode())
            return hash_arrays(digest, self.test_labels)
        if is_frame(self.raw):
            from pandas.util import hash_pandas_object

            raw: Any = hash_pandas_object(take(self.raw, rows).astype(str), index=False).to_numpy()
        else:
            raw = take(self.raw, rows)
        return hash_arrays(digest, raw, self.test_labels)


def hash_arrays(digest: Any, *arrays: Any) -> str:
    """Update a hash with the bytes of arrays, or of every n-th row if they are very large; return it as text."""
    for array in arrays:
        every = 1 + array.nbytes // MAX_HASHED
        for piece in pieces(array, PIECE, None if every == 1 else np.arange(0, len(array), every)):
            digest.update(piece.data)
    return str(digest.hexdigest())


def missing_arrays(names: Iterable[str], path: Path) -> DataError:
    """Return the error for a file or folder without training arrays."""
    held = ", ".join(sorted(names)) or "no arrays"
    return DataError(f"{path} holds {held}; expected x_train and y_train (and x_test, y_test for a test set).")


def numbered(name: str, rows: Iterable[int]) -> list[str]:
    """Name rows that have no ids."""
    return [f"{name}:{row}" for row in rows]


def _check_same_kind(inputs: ArrayLike, test_inputs: ArrayLike) -> None:
    """Refuse integers beside floats: bytes are divided by 255 and floats are not, so the scales would differ."""
    train, test = np.asarray(inputs), np.asarray(test_inputs)
    if train.ndim > 2 and (train.dtype.kind in "iu") != (test.dtype.kind in "iu"):
        raise DataError(
            f"the training images are {train.dtype} and the test images {test.dtype}; integers are taken as bytes "
            "and scaled to 0..1, floats are not, so use one type for both."
        )


# Labels


def label_values(labels: ArrayLike, *, rows: int, what: str) -> list[int | str | None]:
    """Return labels as a list of int, str or None (unknown)."""
    array = np.asarray(labels, dtype=object)  # keeps whole numbers whole, even in a column with missing ones
    if array.shape != (rows,):
        shape = " x ".join(map(str, array.shape)) or "a single value"
        raise DataError(f"{what} are {shape} for {rows} rows; expected one label per row, -1 for unknown.")
    return [_label_value(value, what) for value in array.tolist()]


def is_missing(value: Any) -> bool:
    """Return True for None, NaN, NaT and pandas' NA.

    >>> is_missing(float("nan")), is_missing("")
    (True, False)
    """
    try:
        return value is None or bool(value != value)
    except TypeError:  # comparisons with NA are neither true nor false
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


def number_classes(
    labels: Sequence[int | str | None], is_test: NDArray[np.bool_], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], Labels]:
    """Return the class names and each label as a position among them; without names, those of the training rows."""
    known = {value for value in labels if value is not None}
    kinds = {type(value) for value in known}
    if len(kinds) > 1:
        raise DataError("the labels mix integers and strings; use one of the two.")
    if classes is not None:
        names = tuple(str(name) for name in classes)
        if len(set(names)) != len(names):
            raise DataError(f"the class names {', '.join(names[:8])} contain a duplicate; names must be unique.")
        keys: list[Any] = list(names) if kinds == {str} else list(range(len(names)))
        if strange := sorted(known - set(keys), key=str):
            raise DataError(f"the label {strange[0]!r} is not one of the {len(names)} classes {', '.join(names[:8])}.")
    else:
        train = (value for value, tested in zip(labels, is_test, strict=True) if not tested and value is not None)
        keys = sorted(set(train))  # all of one kind
        names = tuple(str(key) for key in keys)
    number = {key: position for position, key in enumerate(keys)}
    return names, np.array([number.get(value, UNLABELED) for value in labels], dtype=np.int64)
