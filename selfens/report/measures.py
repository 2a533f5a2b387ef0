"""What is read off test rows: which class is taken for which, and how far a probability can be believed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import Labels

BINS = 10


class Calibration(NamedTuple):
    """Of each bin that is not empty, of equal width over the probability of the predicted class; and over all rows."""

    confidence: NDArray[np.float64]
    """Mean probability of the predicted class."""
    accuracy: NDArray[np.float64]
    """Share of the rows whose predicted class is right."""
    error: float
    """The expected calibration error: how far the two are apart, averaged over the rows."""


def confusion(labels: Labels, probabilities: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """[true class, predicted class] how often the one was taken for the other.

    >>> confusion(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])).tolist()
    [[1, 1], [0, 1]]
    """
    matrix = np.zeros((probabilities.shape[1],) * 2, dtype=np.int64)
    np.add.at(matrix, (labels, probabilities.argmax(axis=1)), 1)
    return matrix


def calibration(labels: Labels, probabilities: NDArray[np.floating[Any]]) -> Calibration:
    """How often the network is right, by how sure it is."""
    sure, right = probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == labels
    _, bins, counts = np.unique(np.ceil(sure * BINS).clip(1, BINS), return_inverse=True, return_counts=True)
    confidence, accuracy = (np.bincount(bins, weights=each) / counts for each in (sure, right))
    return Calibration(confidence, accuracy, float(np.average(np.abs(confidence - accuracy), weights=counts)))
