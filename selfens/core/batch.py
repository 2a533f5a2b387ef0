"""Batch: what a method sees of the data in one step. Its size is fixed, so shapes are static."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    rows: Tensor
    """[rows] row numbers in the training set: the key into the ensemble."""
    views: tuple[Tensor, ...]
    """One augmented input tensor [rows, ...] per view."""
    labels: Tensor
    """[rows] class numbers, -1 where unknown."""
    labelled: Tensor
    """[rows] True where the label is known."""
