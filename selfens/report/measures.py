"""What is read off test rows: which class is taken for which, and how far a probability can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import Labels

BINS = 10


@dataclass(frozen=True, eq=False)
class Calibration:
    """By bins of equal width over the probability of the predicted class; NaN if a bin is empty."""

    counts: NDArray[np.int64]
    confidence: NDArray[np.float64]
    """Mean probability of the predicted class."""
    accuracy: NDArray[np.float64]
    """Share of the rows whose predicted class is right."""

    @property
    def error(self) -> float:
        """The expected calibration error: how far confidence and accuracy are apart, averaged over the rows."""
        gaps = np.abs(self.confidence - self.accuracy)
        return float(np.nansum(gaps * self.counts) / max(self.counts.sum(), 1))


def confusion(labels: Labels, predicted: Labels, num_classes: int) -> NDArray[np.int64]:
    """[true class, predicted class] how often the one was taken for the other.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(matrix, (labels, predicted), 1)
    return matrix


def calibration(labels: Labels, probabilities: NDArray[np.floating[Any]], bins: int = BINS) -> Calibration:
    """How often the network is right, by how sure it is."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    numbers = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of an empty bin
        return Calibration(
            counts,
            np.bincount(numbers, weights=confidence, minlength=bins) / counts,
            np.bincount(numbers, weights=right, minlength=bins) / counts,
        )
