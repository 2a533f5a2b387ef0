"""Measures on test rows: the confusion matrix, and calibration."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfens.data.rows import Labels

BINS = 10


class Calibration(NamedTuple):
    """Of each nonempty bin, of equal width over the probability of the predicted class; and over all rows."""

    confidence: NDArray[np.float64]
    """Mean probability of the predicted class."""
    accuracy: NDArray[np.float64]
    """Fraction of the rows whose predicted class is right."""
    error: float
    """The expected calibration error: the distance of the two, averaged over the rows."""


def confusion(labels: Labels, probabilities: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Return [true class, predicted class] counts.

    >>> confusion(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])).tolist()
    [[1, 1], [0, 1]]
    """
    matrix = np.zeros((probabilities.shape[1],) * 2, dtype=np.int64)
    np.add.at(matrix, (labels, probabilities.argmax(axis=1)), 1)
    return matrix


def calibration(labels: Labels, probabilities: NDArray[np.floating[Any]]) -> Calibration:
    """Return how often the network is right, by confidence."""
    sure, right = probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == labels
    _, bins, counts = np.unique(np.ceil(sure * BINS).clip(1, BINS), return_inverse=True, return_counts=True)
    confidence, accuracy = (np.bincount(bins, weights=each) / counts for each in (sure, right))
    return Calibration(confidence, accuracy, float(np.average(np.abs(confidence - accuracy), weights=counts)))
