"""Batch: the data that a method gets in one step. Its size is fixed, so shapes are static."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    rows: Tensor
    """[rows] row numbers in the training set, which index the ensemble."""
    views: tuple[Tensor, ...]
    """One tensor [rows, ...] of inputs per view that the method lists."""
    labels: Tensor
    """[rows] class numbers, -1 if unknown."""
    labeled: Tensor
    """[rows] True if the label is known."""
    num_labeled: int = 0
    """If positive, this many rows at the beginning are labeled, and the labels of the others are hidden. 0: labeled rows may be
    anywhere, as with the paper's sampler."""

    @property
    def unlabeled(self) -> slice:
        """The rows of the unsupervised loss and of the ensemble."""
        return slice(self.num_labeled, None)
