"""Inputs that are not one array in memory: a transposed file, some rows of a source, several sources in a row. Plain numpy.

Each has the parts of an array that inputs need (`shape`, `dtype`, `len`, rows by number, slice or mask) and reads rows only
when asked, so a data set larger than memory is used like any other.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.core import launcher

Numbers = NDArray[np.int64]


class LazyRows(ABC):
    """Rows that are read when they are asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: tuple[Source, ...]
    """What rows are read from."""

    @abstractmethod
    def read(self, rows: Numbers) -> NDArray[Any]:
        """The rows of these numbers, each from 0 to below `len`, as an array in memory."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        if isinstance(key, int | np.integer):
            return np.asarray(self.read(self._numbers(np.array([key])))[0])
        if isinstance(key, slice):
            return self.read(np.arange(*key.indices(len(self))))
        return self.read(self._numbers(np.asarray(key)))

    def _numbers(self, key: NDArray[Any]) -> Numbers:
        """Row numbers from a mask, or from numbers that may count from the end."""
        if key.dtype == bool:
            return np.flatnonzero(key)
        if len(key) and not (key.min() >= -len(self) and key.max() < len(self)):
            raise IndexError(f"rows {key.min()} to {key.max()} were asked for of {len(self)}")
        return np.where(key < 0, key + len(self), key).astype(np.int64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)


Source = NDArray[Any] | LazyRows


class Transposed(LazyRows):
    """An array whose rows are read with their axes permuted: channels-last images, column-major planes."""

    def __init__(self, array: NDArray[Any], axes: Sequence[int]) -> None:
        self.array, self.axes, self.parts = array, (0, *axes), (array,)
        self.shape = tuple(array.shape[axis] for axis in self.axes)
        self.dtype = array.dtype

    def read(self, rows: Numbers) -> NDArray[Any]:
        return np.ascontiguousarray(self.array[rows].transpose(self.axes))


class Selected(LazyRows):
    """Some rows of another source, in the order given."""

    def __init__(self, source: Source, rows: Numbers) -> None:
        self.source, self.rows, self.parts = source, rows, (source,)
        self.shape = (len(rows), *source.shape[1:])
        self.dtype = source.dtype

    def read(self, rows: Numbers) -> NDArray[Any]:
        return self.source[self.rows[rows]]


class Concatenated(LazyRows):
    """Sources of the same shape and type, one after another."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape = (int(self.ends[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def read(self, rows: Numbers) -> NDArray[Any]:
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        of_part = np.searchsorted(self.ends, rows, side="right")
        for number, part in enumerate(self.parts):
            here = np.flatnonzero(of_part == number)
            if len(here):
                result[here] = part[rows[here] - (self.ends[number] - len(part))]
        return result


def memory_left() -> int:
    """Bytes of RAM that are available, shared equally among the processes that train together on this machine."""
    sharing = launcher.size_here()
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024 // sharing
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // sharing


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
