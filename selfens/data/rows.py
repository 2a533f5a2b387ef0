"""LazyRows: a selection of rows, or several arrays one after another, without a copy in memory. Plain numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COPIED = 1 << 26  # bytes; a larger selection of rows is read lazily instead of copied

Rows = NDArray[np.int64]
"""Row numbers."""
Labels = NDArray[np.int64]
"""Class numbers, -1 if unknown."""


class LazyRows:
    """The rows of several arrays of the same shape and type; with `rows`, only these, in this order.

    It supports the array operations that inputs need. Rows are read when they are asked for, so data may exceed memory.
    """

    def __init__(self, parts: Sequence[Array], rows: Rows | None = None) -> None:
        self.parts, self.rows = tuple(parts), rows
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape: tuple[int, ...] = (int(self.ends[-1]) if rows is None else len(rows), *parts[0].shape[1:])
        self.dtype: np.dtype[Any] = parts[0].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        numbers = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.asarray(key)
        numbers = np.flatnonzero(numbers) if numbers.dtype == bool else numbers.astype(np.int64)
        if ((numbers < -len(self)) | (numbers >= len(self))).any():
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} are out of range for {len(self)} rows")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        found = self._read(np.atleast_1d(numbers if self.rows is None else self.rows[numbers]))
        return found if numbers.ndim else np.asarray(found[0])

    def _read(self, rows: Rows) -> NDArray[Any]:
        if len(self.parts) == 1:
            return np.asarray(self.parts[0][rows])
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        part_of_row = np.searchsorted(self.ends, rows, side="right")
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(part_of_row == number)
            if len(here):
                result[here] = part[rows[here] - (self.ends[number] - len(part))]
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


Array = NDArray[Any] | LazyRows
"""Rows of numbers, in memory, in a file or computed."""


def take(raw: Any, rows: Rows) -> Any:
    """Return these rows of an array or a DataFrame. A range of rows is a view; rows in a file stay there."""
    if hasattr(raw, "iloc"):
        return raw.iloc[rows]
    if len(rows) == 0 or (np.diff(rows) == 1).all():
        start = int(rows[0]) if len(rows) else 0
        return _range(raw, start, start + len(rows))
    is_lazy = isinstance(raw, LazyRows) or is_mapped(raw) or raw[:1].nbytes * len(rows) > COPIED
    return LazyRows([raw], rows) if is_lazy else raw[rows]


def _range(array: Array, start: int, stop: int) -> Array:
    if isinstance(array, np.ndarray):
        return array[start:stop]
    end = 0
    for part in array.parts if array.rows is None else ():
        begin, end = end, end + len(part)
        if begin <= start < stop <= end:
            return _range(part, start - begin, stop - begin)
    return LazyRows([array], np.arange(start, stop))


def is_mapped(array: Array) -> bool:
    """Return True if any rows come from a file rather than from memory."""
    if isinstance(array, LazyRows):
        return any(is_mapped(part) for part in array.parts)
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def pieces(array: Array, size: int, rows: Rows | None = None) -> Iterator[NDArray[Any]]:
    """Yield `size` rows at a time, all or only `rows`, as writable arrays."""
    for start in range(0, len(array) if rows is None else len(rows), size):
        wanted = slice(start, start + size)
        piece = np.ascontiguousarray(array[wanted if rows is None else rows[wanted]])
        yield piece if piece.flags.writeable else piece.copy()  # torch warns about read-only arrays


def read_into(array: Array, rows: Rows, out: NDArray[Any]) -> None:
    """Copy rows to `out`, without holding the GIL if they come from one plain array."""
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        np.take(array, rows, axis=0, out=out, mode="clip")  # other modes make a copy first
    else:
        out[...] = array[rows]
