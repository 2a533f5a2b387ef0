"""TargetsLayout: the arrays that an ensemble of targets consists of, wherever they are kept."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfens.core import memory

PAGE = 4096  # of a file
DTYPES = {"float32": torch.float32, "float16": torch.float16}
AVERAGES = ("mean", "square", "count")

Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class TargetsLayout:
    """The number of rows and classes, the type of the matrices, and whether there is a second moment."""

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

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shape and type of each array, by name."""
        matrix, column = ((self.num_rows, self.num_classes), DTYPES[self.dtype]), (self.num_rows,)
        shapes = {
            "count": (column, torch.int32),  # how many predictions are in the averages; first, for alignment in a file
            "mean": matrix,  # Z
            "square": matrix,  # the same average of the squared predictions
            "pending": matrix,  # this epoch's predictions
            "written": (column, torch.bool),  # which rows have one
        }
        return {name: shape for name, shape in shapes.items() if name != "square" or self.variance}

    @property
    def half_size(self) -> int:
        """The size of all arrays in bytes, rounded up to pages: writing to one half must not touch a page of the other."""
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.shapes().values())
        return -(-size // PAGE) * PAGE

    @property
    def file_size(self) -> int:
        return 3 * PAGE + 2 * self.half_size

    def arrays_in(self, content: Tensor) -> Arrays:
        """Return the arrays as views of a tensor of bytes."""
        arrays, start = {}, 0
        for name, (shape, dtype) in self.shapes().items():
            end = start + math.prod(shape) * dtype.itemsize
            arrays[name] = content[start:end].view(dtype).view(shape)
            start = end
        return arrays

    def allocate(self, device: torch.device) -> Arrays:
        """Allocate the arrays on a device, filled with zeros."""
        memory.check(self.half_size, f"targets of {self}", "keep them in a file, or use fewer rows or classes", device)
        # numpy allocates huge pages; rows are visited at random, and page lookups took half of the time.
        kinds = {name: (shape, str(dtype).removeprefix("torch.")) for name, (shape, dtype) in self.shapes().items()}
        return {name: torch.from_numpy(np.zeros(*kind)).to(device) for name, kind in kinds.items()}
