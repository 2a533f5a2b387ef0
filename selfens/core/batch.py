"""Batch: what a method sees of the data in one step. Its size is fixed, so shapes are static."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    rows: Tensor
    """[rows] row numbers in the training set: the key into the ensemble."""
    views: tuple[Tensor, ...]
    """One tensor [rows, ...] of inputs per view that the method lists."""
    labels: Tensor
    """[rows] class numbers, -1 if unknown."""
    labeled: Tensor
    """[rows] True if the label is known."""
    first: int = 0
    """Drawn by the split sampler: this many labeled rows come first, and the labels of the others are hidden. 0: the
    paper's sampler, in which labeled rows are anywhere."""

    @property
    def unlabeled(self) -> slice:
        """The rows that the unsupervised loss is over, and that targets are kept for: the second part, or all."""
        return slice(self.first, None)
