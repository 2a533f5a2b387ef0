"""Inputs that are not one array in memory: some rows of a source, or several sources in a row. Plain numpy.

They have the parts of an array that inputs need (`shape`, `dtype`, `len`, rows by number, slice or mask) and read rows only
when asked, so a data set larger than memory is used like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class LazyRows:
    """The rows of one or several sources of the same shape and type, or only those of these numbers, in that order."""

    def __init__(self, parts: Sequence[Source], rows: Numbers | None = None) -> None:
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
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} were asked for of {len(self)}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        found = self._read(np.atleast_1d(numbers if self.rows is None else self.rows[numbers]))
        return found if numbers.ndim else np.asarray(found[0])

    def _read(self, rows: Numbers) -> NDArray[Any]:
        if len(self.parts) == 1:
            return np.asarray(self.parts[0][rows])
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        of_part = np.searchsorted(self.ends, rows, side="right")
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(of_part == number)
            if len(here):
                result[here] = part[rows[here] - (self.ends[number] - len(part))]
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


Source = NDArray[Any] | LazyRows


def is_mapped(source: Source) -> bool:
    """Whether any rows come from a file rather than from memory."""
    if isinstance(source, LazyRows):
        return any(is_mapped(part) for part in source.parts)
    array: Any = source
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def pieces(source: Source, size: int, rows: Numbers | None = None) -> Iterator[NDArray[Any]]:
    """`size` rows at a time, all or only `rows`, as writable arrays."""
    for start in range(0, len(source) if rows is None else len(rows), size):
        wanted = slice(start, start + size)
        piece = np.ascontiguousarray(source[wanted if rows is None else rows[wanted]])
        yield piece if piece.flags.writeable else piece.copy()  # torch warns of read-only arrays


def read_into(source: Source, rows: Numbers, out: NDArray[Any]) -> None:
    """Copy rows to `out`, without holding the GIL if the source is one plain array."""
    if isinstance(source, np.ndarray) and source.flags.c_contiguous:
        np.take(source, rows, axis=0, out=out, mode="clip")  # other modes go through a copy
    else:
        out[...] = source[rows]
