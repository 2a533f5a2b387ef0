"""The arrays an ensemble consists of: their names, shapes and types, and how they are allocated in memory."""

from __future__ import annotations

import math
import mmap
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16}
AVERAGES = ("mean", "square", "count")
LARGE = 1 << 24  # bytes

Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """How many rows and classes there are, the type the matrices are kept in, and whether there is a second moment."""

    num_rows: int
    num_classes: int
    dtype: str = "float32"
    variance: bool = True

    def __post_init__(self) -> None:
        if min(operator.index(self.num_rows), operator.index(self.num_classes)) < 1:
            raise ValueError(
                f"the targets have {self.num_rows} rows and {self.num_classes} classes; expected at least 1."
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"the targets' type is '{self.dtype}'; expected {' or '.join(DTYPES)}.")

    def __str__(self) -> str:
        variance = "with" if self.variance else "without"
        return f"{self.num_rows:,} rows of {self.num_classes:,} classes in {self.dtype} {variance} variance"

    @property
    def row_bytes(self) -> int:
        """Of one row of a matrix."""
        return self.num_classes * DTYPES[self.dtype].itemsize

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each array, by name."""
        matrix, column = ((self.num_rows, self.num_classes), DTYPES[self.dtype]), (self.num_rows,)
        shapes = {
            "count": (column, torch.int32),  # how many predictions are in the averages; first, for alignment in a file
            "mean": matrix,  # Z
            "square": matrix,  # the same average of the squared predictions
            "pending": matrix,  # this epoch's predictions
            "written": (column, torch.bool),  # which rows have one
        }
        return {name: shape for name, shape in shapes.items() if name != "square" or self.variance}

    def sizes(self) -> list[int]:
        """Of each array, in bytes."""
        return [math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes().values()]

    def allocate(self, device: torch.device | str | None) -> Arrays:
        """Zeros in the memory of a device."""
        return {name: _zeros(shape, dtype, device) for name, (shape, dtype) in self.shapes().items()}


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """On the host in huge pages if there are many: rows are visited at random, and half of the time was page lookup."""
    size = math.prod(shape) * dtype.itemsize
    if torch.empty(0, device=device).device.type != "cpu" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
