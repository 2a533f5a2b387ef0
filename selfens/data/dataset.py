"""Dataset: raw examples from a source, their labels, and which rows are for testing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.arrays import PIECE, fits_bytes, matching, standard_inputs
from selfens.data.cells import IDENTIFIER, as_text
from selfens.data.frames import has_decimal_comma, is_frame
from selfens.data.rows import Labels, LazyRows, Rows, pieces, take
from selfens.errors import DataError, listed, plural

UNLABELED = -1
MAX_HASHED_ROWS = 100_000  # with more test rows, an evenly spaced sample is hashed
MAX_HASHED = 2**33  # bytes; of larger arrays, an evenly spaced sample is hashed, because all rows would take minutes


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Examples of any kind. An encoder (`selfens.encoders`) turns them into the arrays that are trained on.

    Training rows are numbered from 0, without the test rows. Extra rows come last; they have no labels, and preprocessing
    ignores them.
    """

    raw: Any
    """All rows: an array [rows, ...], `LazyRows`, or a pandas DataFrame."""
    labels: Labels
    """The class number of each row, `UNLABELED` if unknown."""
    is_test: NDArray[np.bool_]
    classes: tuple[str, ...]
    name: str = "arrays"
    ids: tuple[str, ...] = ()
    """The id of each row: its file, or a cell of an id column. Empty if rows have no ids."""
    id_header: str = "file"
    folder: str = ""
    """The folder that the files are in, if ids are files."""
    suggested: NDArray[np.bool_] | None = None
    """Rows that a model chose for labeling (`selfens.data.journal`). They are hard, so they never become test rows."""
    prior: NDArray[np.float32] | None = None
    """[rows, classes] what another model says about the rows (`selfens.data.prior`), NaN where nothing; None: no rows."""
    numbers: Rows | None = None
    """The number of each row in the user's file; None: counted from 0, training and test rows separately."""
    notes: tuple[str, ...] = ()
    """Messages for the user on how the data were read."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    extra_rows: int = 0
    extra_name: str = ""
    source: Any = None
    """The options it was loaded with, as completed by its source; None if it was made in Python."""

    # Constructors

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
        """Make a dataset from arrays.

        Parameters
        ----------
        inputs
            Images [rows, height, width, channels], [rows, channels, height, width] or [rows, height, width], uint8 or
            float; or feature vectors [rows, features].
        labels
            One per row: integers or strings; -1, None, NaN, pandas' NA or "" if unknown.
        test_inputs, test_labels
            The test set, if there is one. Every test row needs a label.
        classes
            Names of the classes; integer labels are indices into it.
        layout
            "NHWC" or "NCHW", if the shape is ambiguous.
        name
            What messages call the dataset.
        """
        bytes_only = fits_bytes(inputs) and (test_inputs is None or fits_bytes(test_inputs))
        x = standard_inputs(inputs, layout=layout, what="the training inputs", bytes_allowed=bytes_only)
        train = label_values(labels, rows=len(x), what="the training labels")
        if test_inputs is None and test_labels is None:
            return cls.from_labels(x, train, classes=classes, name=name)
        if test_inputs is None or test_labels is None:
            raise DataError("a test set needs both inputs and labels, but only one of them was given.")
        test_x = standard_inputs(test_inputs, layout=layout, what="the test inputs", bytes_allowed=bytes_only)
        test = label_values(test_labels, rows=len(test_x), what="the test labels")
        if test_x.shape[1:] != x.shape[1:]:
            shapes = f"{test_x.shape[1:]} per row and the training inputs {x.shape[1:]}"
            raise DataError(f"the test inputs have shape {shapes}; they must agree.")
        kind, test_kind = np.asarray(inputs).dtype, np.asarray(test_inputs).dtype
        if x.ndim > 2 and (kind.kind in "iu") != (test_kind.kind in "iu"):  # bytes are divided by 255, floats are not
            raise DataError(f"the training images are {kind} and the test images {test_kind}; use one type for both.")
        is_test = np.arange(len(x) + len(test_x)) >= len(x)
        return cls.from_labels(LazyRows([x, test_x]), [*train, *test], is_test, classes=classes, name=name)

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
        """Make a dataset from rows of any kind and their labels, None or -1 if unknown. `about` sets other fields."""
        test = np.zeros(len(labels), dtype=bool) if is_test is None else is_test
        names, numbers = number_classes([None if label == UNLABELED else label for label in labels], test, classes)
        unknown = np.flatnonzero(test & (numbers == UNLABELED)).tolist()
        if names and unknown:
            strange = next((labels[row] for row in unknown if labels[row] is not None), None)
            found = "no label" if strange is None else f"the label '{strange}', which no training row has"
            count = sum(labels[row] == strange for row in unknown)
            rows = f"{plural(count, 'test row')} {'has' if count == 1 else 'have'} {found}"
            raise DataError(f"{rows}; give each test row a label of the training rows, or leave it out.")
        return cls(raw=raw, labels=numbers, is_test=test, classes=names, **about)

    @classmethod
    def unlabeled(cls, raw: Any, **about: Any) -> Dataset:
        """Make a dataset from rows without labels, such as rows to predict on."""
        rows = raw.shape[0] if raw.shape else 0
        return cls(raw=raw, labels=np.full(rows, UNLABELED), is_test=np.zeros(rows, bool), classes=(), **about)

    def with_extra(self, raw: Any, *, ids: Sequence[str] = (), name: str = "the extra rows") -> Dataset:
        """Return this dataset with more unlabeled rows of the same kind after its own."""
        if is_frame(self.raw) != is_frame(raw):
            raise DataError(
                f"{name} and {self.name} are of different kinds; extra rows of a table must come from a table."
            )
        if is_frame(raw):
            import pandas

            if missing := [column for column in self.raw.columns if column not in raw.columns]:
                raise DataError(f"{name} lacks the columns {listed(missing)} of {self.name}.")
            if has_decimal_comma(raw) != has_decimal_comma(self.raw):
                raise DataError(f"only one of {name} and {self.name} has decimal commas; save both in the same way.")
            rows: Any = pandas.concat([self.raw, raw[self.raw.columns]], ignore_index=True)
            rows.attrs = self.raw.attrs
        else:
            raw = matching(raw if isinstance(raw, LazyRows) else np.asarray(raw), self.raw, name)
            rows = LazyRows([self.raw, raw])
        numbers = self.numbers
        if numbers is not None:
            numbers = np.concatenate([numbers, 1 + numbers.max(initial=-1) + np.arange(len(raw))])
        main_ids = self.ids or [f"{self.name}:{row}" for row in range(len(self.labels))]
        return replace(
            self,
            raw=rows,
            labels=np.concatenate([self.labels, np.full(len(raw), UNLABELED)]),
            is_test=np.concatenate([self.is_test, np.zeros(len(raw), bool)]),
            ids=(*main_ids, *(ids or [f"{name}:{row}" for row in range(len(raw))])),
            numbers=numbers,
            suggested=None if self.suggested is None else np.concatenate([self.suggested, np.zeros(len(raw), bool)]),
            prior=None if self.prior is None else np.pad(self.prior, [(0, len(raw)), (0, 0)], constant_values=np.nan),
            extra_rows=self.extra_rows + len(raw),
            extra_name=f"{self.extra_name}, {name}" if self.extra_name else name,
        )

    def with_split(self, train: Rows, test: Rows, labels: Labels) -> Dataset:
        """Return a dataset that trains on `train` and tests on `test`, both training rows of this one.

        `labels` are the labels of all training rows.
        """
        rows = self.train_rows[np.concatenate([train, test])]
        return replace(
            self,
            raw=take(self.raw, rows),
            labels=np.concatenate([labels[train], labels[test]]),
            is_test=np.arange(len(rows)) >= len(train),
            ids=tuple(self.ids[row] for row in rows) if self.ids else (),
            suggested=None if self.suggested is None else self.suggested[rows],
            prior=None if self.prior is None else self.prior[rows],
            numbers=None if self.numbers is None else self.numbers[rows],
            notes=(),
            skipped=(),
            extra_rows=int((train >= self.num_main).sum()),
        )

    def with_prior(self, prior: NDArray[np.float32] | None) -> Dataset:
        """Return this dataset with a prior of its training rows; `selfens.data.prior` reads and checks one."""
        if prior is None:
            return replace(self, prior=None)
        every = np.full((len(self.labels), self.num_classes), np.nan, np.float32)
        every[self.train_rows] = prior
        return replace(self, prior=every)

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

    @cached_property
    def train_prior(self) -> NDArray[np.float32] | None:
        return None if self.prior is None else self.prior[self.train_rows]

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

    # Names of rows

    def row_numbers(self, *, test: bool = False) -> Rows:
        """Return the numbers of the training rows, or of the test rows, in the user's file."""
        rows = self.test_rows if test else self.train_rows
        return np.arange(len(rows)) if self.numbers is None else self.numbers[rows]

    def row_ids(self, *, test: bool = False) -> tuple[str, ...]:
        """Return the ids of the training rows, or of the test rows; empty if rows have none."""
        return tuple(self.ids[row] for row in (self.test_rows if test else self.train_rows)) if self.ids else ()

    def identify(self, rows: Rows) -> tuple[Rows, dict[str, list[str]]]:
        """Return the numbers of these training rows in the user's file, and a column of their ids, if they have any."""
        ids = {self.id_header: [self.ids[row] for row in self.train_rows[rows]]} if self.ids else {}
        return self.row_numbers()[rows], ids

    def test_fingerprint(self) -> str:
        """Hash the test rows: errors of two runs with the same hash are errors on the same rows."""
        hashes = self.row_hashes(self.test_rows[:: 1 + len(self.test_rows) // MAX_HASHED_ROWS])
        return hash_arrays(hashlib.sha256("".join(hashes).encode()), self.test_labels)

    def row_hashes(self, rows: Rows | None = None) -> list[str]:
        """Hash the content of rows (default: all): their files, cells or numbers, whatever their names and order."""
        rows = np.arange(len(self.labels)) if rows is None else rows
        if is_frame(self.raw):
            from pandas.util import hash_pandas_object

            # Without columns named like ids, which are inputs only if cells repeat. As text, whatever the type of a column.
            names = [name for name in self.raw.columns if not IDENTIFIER.fullmatch(name)] or list(self.raw.columns)
            cells = self.raw[names].iloc[rows].apply(as_text, missing=())
            numbers = hash_pandas_object(cells, index=False)
            return [hashlib.sha256(number.tobytes()).hexdigest() for number in numbers.to_numpy()]
        are_files = np.array([bool(self.folder) and os.path.isfile(self.ids[row]) for row in rows], dtype=bool)
        others = (row for piece in pieces(self.raw, PIECE, rows[~are_files]) for row in piece)
        return [
            _file_hash(self.ids[row]) if is_file else hashlib.sha256(content(np.asarray(next(others)))).hexdigest()
            for row, is_file in zip(rows, are_files, strict=True)
        ]


def _file_hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content(rows: NDArray[Any]) -> bytes:
    """Return the bytes to hash for rows: their memory, or for Python objects, such as strings, their repr."""
    return repr(rows.tolist()).encode("utf-8", "backslashreplace") if rows.dtype == object else rows.tobytes()


def hash_arrays(digest: Any, *arrays: Any) -> str:
    """Update a hash with arrays, or with every n-th row of very large ones, and return it as text."""
    for array in arrays:
        every = 1 + array.nbytes // MAX_HASHED
        for piece in pieces(array, PIECE, None if every == 1 else np.arange(0, len(array), every)):
            digest.update(content(piece))
    return str(digest.hexdigest())


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
        return None if value in ("", str(UNLABELED)) else str(value)  # numpy strings become Python strings
    if is_missing(value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | np.integer) and value >= UNLABELED:
        return None if value == UNLABELED else int(value)
    found = f"{value!r} of type {type(value).__name__}"
    raise DataError(f"{what} hold {found}; expected integers from 0 or strings, -1 or None for unknown.")


def number_classes(
    labels: Sequence[int | str | None], is_test: NDArray[np.bool_], classes: Sequence[str] | None = None
) -> tuple[tuple[str, ...], Labels]:
    """Return the class names, and each label as an index into them. Default names: the labels of the training rows."""
    known = {value for value in labels if value is not None}
    kinds = {type(value) for value in known}
    if len(kinds) > 1:
        raise DataError("the labels mix integers and strings; use one of the two.")
    if classes is None:
        train = {value for value, tested in zip(labels, is_test, strict=True) if not tested}
        keys: list[Any] = sorted(train - {None})  # all of one kind
        names = tuple(map(str, keys))
    else:
        names = tuple(map(str, classes))
        keys = list(names) if kinds == {str} else list(range(len(names)))
        if len(set(names)) != len(names):
            raise DataError(f"the class names {listed(names, 8)} contain a duplicate; names must be unique.")
        if strange := sorted(known - set(keys), key=str):
            raise DataError(f"the label {strange[0]!r} is not one of the {len(names)} classes {listed(names, 8)}.")
    number = {key: position for position, key in enumerate(keys)}
    return names, np.array([number.get(value, UNLABELED) for value in labels], dtype=np.int64)
