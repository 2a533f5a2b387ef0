"""Arrays: what the ensemble remembers of each row. Where they are kept decides how they are allocated, and nothing else."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LARGE = 1 << 24
DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class Arrays:
    mean: Tensor
    """Z, [rows, classes]"""
    square: Tensor | None
    """The same average of the squared predictions, where variances are wanted."""
    count: Tensor
    """[rows] how many predictions are in the averages."""
    pending: Tensor
    """[rows, classes] this epoch's predictions."""
    written: Tensor
    """[rows] which rows have one."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Arrays:
        square = None if self.square is None else change(self.square)
        return Arrays(change(self.mean), square, change(self.count), change(self.pending), change(self.written))


@dataclass(frozen=True)
class Layout:
    """The shapes and types of the arrays."""

    num_rows: int
    num_classes: int
    dtype: str = "float32"
    """Of means, squares and predictions: float32 or float16."""
    variance: bool = True
    """Whether the squares are kept."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"the targets' type is '{self.dtype}'; expected {' or '.join(DTYPES)}.")

    def __str__(self) -> str:
        variance = "with" if self.variance else "without"
        return f"{self.num_rows:,} rows of {self.num_classes:,} classes in {self.dtype} {variance} variance"

    @property
    def row_bytes(self) -> int:
        """Of one row of a matrix."""
        return self.num_classes * DTYPES[self.dtype].itemsize

    def specifications(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each array there is."""
        matrix, column = (self.num_rows, self.num_classes), (self.num_rows,)
        every = {
            "mean": (matrix, DTYPES[self.dtype]),
            "square": (matrix, DTYPES[self.dtype]),
            "count": (column, torch.int32),
            "pending": (matrix, DTYPES[self.dtype]),
            "written": (column, torch.bool),
        }
        return {name: kind for name, kind in every.items() if name != "square" or self.variance}

    def build(self, make: Callable[[str, tuple[int, ...], torch.dtype], Tensor]) -> Arrays:
        """The arrays, each made from its name, shape and type."""
        made = {name: make(name, shape, kind) for name, (shape, kind) in self.specifications().items()}
        return Arrays(made["mean"], made.get("square"), made["count"], made["pending"], made["written"])

    def allocate(self, device: torch.device | str | None) -> Arrays:
        """Zeros in the memory of a device."""
        return self.build(lambda name, shape, kind: _zeros(shape, kind, device))


def _zeros(shape: tuple[int, ...], kind: torch.dtype, device: torch.device | str | None) -> Tensor:
    """On the host in huge pages where there are many: for rows visited at random, half of the time went into finding pages."""
    size = torch.Size(shape).numel() * kind.itemsize
    if torch.empty(0, device=device).device.type != "cpu" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=kind, device=device)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=kind).view(shape)
