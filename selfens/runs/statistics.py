"""What can be said about a model from its predictions on rows it has not seen: intervals, calibration, abstaining.

Plain numpy: `probabilities` are [rows, classes], `labels` are class numbers. Probabilities are of rows that the model was not
trained on, or everything here is too optimistic.
"""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfens.data.rows import Labels

LEVEL = 0.9  # of intervals
BINS = 10  # of the calibration
SMALLEST = 1e-12  # a probability of zero would make the loss infinite
TEMPERATURES = np.geomspace(0.2, 20, 241)
USUAL, SPREAD = 1.3, 0.5  # of temperatures, and of their logarithms; chosen as docs/log.md says

Probabilities = NDArray[np.floating[Any]]
Numbers = NDArray[np.float64]


def interval(wrong: float, rows: float, level: float = LEVEL) -> tuple[float, float]:
    """Return the Wilson interval of an error, in percent, from the number of misclassified rows.

    >>> low, high = interval(2, 10)
    >>> round(low, 1), round(high, 1)
    (6.9, 45.9)
    """
    z, share = NormalDist().inv_cdf((1 + level) / 2), wrong / rows
    center = share + z**2 / (2 * rows)
    half = z * math.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return tuple(100 * float(np.clip(end / (1 + z**2 / rows), 0, 1)) for end in (center - half, center + half))  # type: ignore[return-value]


def half_width(rows: int, level: float = LEVEL) -> float:
    """Return half the width of the interval of an error, in points, where it is widest: at an error of one half."""
    low, high = interval(rows / 2, rows, level)
    return (high - low) / 2


# Calibration


def tempered(probabilities: Probabilities, temperature: float) -> Numbers:
    """Return the probabilities of the same logits, divided by a temperature.

    >>> tempered(np.array([[0.8, 0.2]]), 2.0).round(3)
    array([[0.667, 0.333]])
    """
    logits = np.log(np.maximum(probabilities.astype(np.float64), SMALLEST)) / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def fit_temperature(probabilities: Probabilities, labels: Labels, quantile: float = 0.5) -> float:
    """Return a quantile of the posterior of the temperature: how much less certain the model should be.

    The prior is what models trained on few labels usually need. A quantile above one half is cautious.
    """
    rows = np.arange(len(labels))
    likely = [np.log(np.maximum(tempered(probabilities, each)[rows, labels], SMALLEST)).sum() for each in TEMPERATURES]
    weights = np.array(likely) - ((np.log(TEMPERATURES) - math.log(USUAL)) / SPREAD) ** 2 / 2
    shares = np.cumsum(np.exp(weights - weights.max()))
    return float(TEMPERATURES[np.searchsorted(shares, quantile * shares[-1])])


def calibration(labels: Labels, probabilities: Probabilities) -> tuple[Numbers, Numbers, float]:
    """Return mean confidence and accuracy of each nonempty bin of confidence, and the expected calibration error.

    The confidence is the probability of the predicted class; the error is the distance of the two, averaged over the rows.
    """
    confidence, right = probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == labels
    _, bins, counts = np.unique(np.ceil(confidence * BINS).clip(1, BINS), return_inverse=True, return_counts=True)
    mean, accuracy = (np.bincount(bins, weights=each) / counts for each in (confidence, right))
    return mean, accuracy, float(np.average(np.abs(mean - accuracy), weights=counts))


# Answering only what is certain enough


class Answered(NamedTuple):
    """If only the most confident rows are answered: the share of the rows, and the error among them in percent."""

    share: Numbers
    error: Numbers


def answered(confidence: Numbers, wrong: NDArray[np.bool_]) -> Answered:
    """Return the error over the share of rows answered, most confident first."""
    order = np.argsort(-confidence, kind="stable")
    count = np.arange(1, len(order) + 1)
    return Answered(count / len(order), 100 * np.cumsum(wrong[order]) / count)


def least_confidence(confidence: Numbers, max_error: float) -> float:
    """Return the least calibrated confidence at which rows are answered, so that an expected `max_error` percent are wrong.

    `confidence` is that of rows like those to predict on. Above 1 if no row is certain enough; 0 if all of them are.

    >>> least_confidence(np.array([0.99, 0.95, 0.9, 0.6]), max_error=6)
    0.9
    """
    ranked = np.sort(confidence)[::-1]
    expected = 100 * np.cumsum(1 - ranked) / np.arange(1, len(ranked) + 1)
    kept = np.flatnonzero(expected <= max_error)
    if not len(kept):
        return math.nextafter(1.0, 2.0)
    return 0.0 if kept[-1] == len(ranked) - 1 else float(ranked[kept[-1]])
