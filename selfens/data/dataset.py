"""Dataset: training inputs with labels where they are known, a test split, class names. Plain numpy, no torch.

Images are kept as [rows, channels, height, width], uint8 or float32; feature vectors as [rows, features] float32.
A label is the number of its class, or `UNLABELED` (-1). Everything given by a user is checked here, once, so that
nothing further down has to.
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

from selfens.errors import DataError

UNLABELED = -1
CHANNEL_COUNTS = (1, 3, 4)

Inputs = NDArray[Any]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """What a run trains and tests on.

    `labels` holds -1 where the label is unknown; `test_inputs` may have no rows, and then nothing is tested.
    """

    inputs: Inputs
    labels: Labels
    test_inputs: Inputs
    test_labels: Labels
    classes: tuple[str, ...]
    name: str = "arrays"
    row_names: tuple[str, ...] = ()
    """Where each training row comes from (its file), if that is known."""
    test_row_names: tuple[str, ...] = ()
    """The same for the test rows."""
    unreadable: tuple[str, ...] = ()
    """Files that were left out, and why."""

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
        labels   one per row: integers or strings; -1, None, NaN or "" where the label is unknown
        classes  names of the classes; integer labels are then positions in it
        layout   "NHWC" or "NCHW" where the shape alone does not tell
        """
        bytes_only = _fits_bytes(inputs) and (test_inputs is None or _fits_bytes(test_inputs))
        x = standard_inputs(inputs, layout=layout, what="the training inputs", bytes_allowed=bytes_only)
        given = _label_values(labels, rows=len(x), what="the training labels")
        if (test_inputs is None) != (test_labels is None):
            raise DataError("a test set needs both inputs and labels, but only one of the two was given.")
        test_given: list[Any] = []
        test_x = x[:0]
        if test_inputs is not None and test_labels is not None:
            test_x = standard_inputs(test_inputs, layout=layout, what="the test inputs", bytes_allowed=bytes_only)
            test_given = _label_values(test_labels, rows=len(test_x), what="the test labels")
            if test_x.shape[1:] != x.shape[1:]:
                raise DataError(
                    f"the test inputs have shape {test_x.shape[1:]} per row and the training inputs {x.shape[1:]}; "
                    "they must agree."
                )
            _check_same_scale(inputs, test_inputs)
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
        """A dataset from an .npz file with x_train, y_train and, if there is a test set, x_test, y_test; classes optional.

        `x` and `y` are taken for x_train and y_train. Arrays of Python objects are refused: reading them could run code.
        """
        path = Path(path)
        arrays = read_npz(path)
        x = arrays.get("x_train", arrays.get("x"))
        y = arrays.get("y_train", arrays.get("y"))
        if x is None or y is None:
            raise DataError(
                f"{path} holds {', '.join(sorted(arrays)) or 'no arrays'}; expected x_train and y_train "
                "(and x_test, y_test for a test set)."
            )
        classes = [str(c) for c in arrays["classes"]] if "classes" in arrays else None
        return cls.from_arrays(x, y, arrays.get("x_test"), arrays.get("y_test"), classes=classes, name=str(path))

    @property
    def num_rows(self) -> int:
        return len(self.inputs)

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
        """A hash of inputs, labels and classes: two datasets with the same one train alike. Worked out once."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.classes, self.inputs.shape, str(self.inputs.dtype))).encode())
        for array in (self.inputs, self.labels, self.test_inputs, self.test_labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, without unpickling anything."""
    try:
        with path.open("rb") as file:  # numpy leaves a file that it cannot read open
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{path} is a single array, not an .npz archive; save it with numpy.savez.")
            with archive:
                return {key: archive[key] for key in archive.files}
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"there is no file {path}; give the path of an .npz file.") from None
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds for damaged files
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds an array of Python objects, which is not read because it could run code; "
                "save labels as integers (-1 for unknown) or as a string array ('' for unknown)."
            ) from None
        raise DataError(
            f"{path} is not a readable .npz file ({error}); it may be cut short or of another kind."
        ) from None


def _fits_bytes(inputs: ArrayLike) -> bool:
    """Whether these are whole numbers from 0 to 255."""
    x = np.asarray(inputs) if not isinstance(inputs, list | tuple) else np.array(inputs, dtype=object)
    if x.dtype == object:
        return False
    return x.dtype.kind in "iu" and x.size > 0 and bool(x.min() >= 0) and bool(x.max() <= 255)


def _check_same_scale(inputs: ArrayLike, test_inputs: ArrayLike) -> None:
    """Bytes are divided by 255 and floats are not, so one of each would be on different scales."""
    train, test = np.asarray(inputs), np.asarray(test_inputs)
    if train.ndim > 2 and (train.dtype.kind in "iu") != (test.dtype.kind in "iu"):
        raise DataError(
            f"the training images are {train.dtype} and the test images {test.dtype}; whole numbers are taken for bytes "
            "and scaled to 0..1, floats are not, so give both in the same type."
        )


def standard_inputs(
    inputs: ArrayLike, *, layout: str = "auto", what: str = "the inputs", bytes_allowed: bool = True
) -> Inputs:
    """Images as [rows, channels, height, width], features as [rows, features]; bytes become uint8, all else float32."""
    try:
        x = np.asarray(inputs)
    except ValueError:
        raise DataError(f"{what} are of mixed shapes; every row must have the same shape.") from None
    if x.dtype == object:
        raise DataError(f"{what} are of mixed shapes or not numbers; every row must be numbers of the same shape.")
    if x.dtype.kind not in "buif":
        raise DataError(f"{what} have type {x.dtype}; expected numbers (uint8 images, or floats).")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{what} have shape {x.shape}; expected [rows, features], or images [rows, height, width(, channels)]."
        )
    if 0 in x.shape[1:] or len(x) == 0:
        raise DataError(
            f"{what} have shape {x.shape}, which is empty; expected at least one row of at least one number."
        )
    x = _channels_first(x, layout, what) if x.ndim > 2 else x
    if x.ndim == 4 and bytes_allowed and _fits_bytes(x):
        return np.ascontiguousarray(x, dtype=np.uint8)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused below
        x = np.ascontiguousarray(x, dtype=np.float32)
    bad = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if bad.any():
        raise DataError(
            f"{what} hold NaN or infinite values in {int(bad.sum())} rows (the first is row {int(bad.argmax())}); "
            "fill or remove them first."
        )
    return x


def _channels_first(x: Inputs, layout: str, what: str) -> Inputs:
    if x.ndim == 3:
        return x[:, None]
    if layout not in ("auto", "NHWC", "NCHW"):
        raise DataError(f"layout '{layout}' is not known; expected NHWC, NCHW or auto.")
    if layout == "auto":
        if x.shape[3] in CHANNEL_COUNTS:
            layout = "NHWC"
        elif x.shape[1] in CHANNEL_COUNTS:
            layout = "NCHW"
        else:
            raise DataError(
                f"{what} have shape {x.shape}, and neither the second nor the last number is a count of channels "
                "(1, 3 or 4); say layout='NHWC' or layout='NCHW'."
            )
    if layout == "NCHW":
        return x
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return first.reshape(-1).reshape(first.shape)  # a channel alone keeps odd strides otherwise, and other rounding


def _label_values(labels: ArrayLike, *, rows: int, what: str) -> list[Any]:
    """Labels as a list of int, str or None (unknown)."""
    array = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{what} have shape {array.shape}; expected one label per row.")
    if len(array) != rows:
        raise DataError(f"{what} are {len(array)} for {rows} rows; expected one label per row, -1 where it is unknown.")
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
            raise DataError(
                f"the class names {', '.join(names[:8])} hold one twice; each class needs a name of its own."
            )
        keys: list[Any] = list(names) if kinds == {str} else list(range(len(names)))
        strange = sorted({v for v in values if v is not None} - set(keys), key=str)
        if strange:
            raise DataError(f"the label {strange[0]!r} is not one of the {len(names)} classes {', '.join(names[:8])}.")
    else:
        keys = sorted(known)
        names = tuple(str(key) for key in keys)
    number = {key: i for i, key in enumerate(keys)} | {None: UNLABELED}
    return names, np.array([number.get(value, UNLABELED) for value in values], dtype=np.int64)
