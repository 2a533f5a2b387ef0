"""Audit: which of the labels look wrong, and which rows are worth labelling next.

Everything is a function of `labels` (class numbers, -1 where unknown) and `probabilities` [rows, classes]; where they come
from is a second step. `audit_run` takes them from a run and is in-sample: the network was trained on the very labels it
is asked to doubt, which hides some mistakes. `selfens.folds` asks a network that has not seen the label, for the price of
training once per fold.

A CSV written by `write_audit` can be corrected in its `label` column and given back as `data.labels_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.errors import DataError
from selfens.predict import write_csv
from selfens.run import Run

Probabilities = NDArray[np.floating[Any]]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """The labelled rows, most suspicious first; the four arrays run in parallel."""

    rows: Rows
    labels: Labels
    """The label each row was given."""
    suggested: Labels
    """The most probable class; where it is the label itself, there is no quarrel."""
    scores: NDArray[np.float64]
    """From -1, sure that the label is wrong, to 1, sure that it is right."""

    @property
    def disputed(self) -> Rows:
        """The rows for which another class is more probable than the label, most suspicious first."""
        return np.asarray(self.rows[self.suggested != self.labels])


@dataclass(frozen=True, kw_only=True, eq=False)
class Suggestions:
    """Rows to label next, in the order in which to label them."""

    rows: Rows
    predicted: Labels
    uncertainty: NDArray[np.float64]
    """Entropy of the prediction over its largest possible value: 0 is certain, 1 knows nothing."""


# Functions of labels and probabilities


def label_scores(labels: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """How much more probable the label is than the best other class; lower is more suspicious, NaN is unlabeled.

    >>> label_scores([0, 1, -1], [[0.9, 0.1], [0.75, 0.25], [0.5, 0.5]])
    array([ 0.8, -0.5,  nan])
    """
    given, matrix = _checked(labels, probabilities)
    known = np.flatnonzero(given != UNLABELED)
    others = matrix.copy()
    others[known, given[known]] = -np.inf
    scores = np.full(len(given), np.nan)
    scores[known] = matrix[known, given[known]] - others[known].max(axis=1)
    return scores


def rank(labels: ArrayLike, probabilities: ArrayLike) -> Audit:
    """The labelled rows ranked by `label_scores`, with the class to put instead.

    >>> rank([0, 1, -1], [[0.9, 0.1], [0.75, 0.25], [0.5, 0.5]]).rows
    array([1, 0])
    """
    given, matrix = _checked(labels, probabilities)
    scores = label_scores(given, matrix)
    rows = np.argsort(scores, kind="stable")[: int((given != UNLABELED).sum())]  # NaN sorts last
    return Audit(rows=rows, labels=given[rows], suggested=matrix[rows].argmax(axis=1), scores=scores[rows])


def suggest(probabilities: ArrayLike, labelled: ArrayLike, count: int) -> Suggestions:
    """Up to `count` rows to label next: the least certain of each predicted class in turn.

    Uncertainty alone would pick one confused corner of the data over and over; taking the classes in turn spreads the
    effort. `labelled` is a mask over the rows, and those rows are never suggested.

    >>> suggest([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]], [False, False, False], 2).rows
    array([0, 2])
    """
    matrix = _checked_probabilities(probabilities)
    mask = np.asarray(labelled)
    if mask.shape != matrix.shape[:1] or mask.dtype != bool:
        raise DataError(
            f"labelled is {mask.dtype} of shape {mask.shape}; expected true or false for each of {len(matrix)} rows."
        )
    if count < 1:
        raise DataError(f"{count} rows were asked for; expected at least 1.")
    uncertainty, predicted = uncertainty_of(matrix), matrix.argmax(axis=1)
    order = np.argsort(-uncertainty, kind="stable")
    order = order[~mask[order]]
    turns = positions_within_groups(predicted[order])
    rows = order[np.argsort(turns, kind="stable")][:count]
    return Suggestions(rows=rows, predicted=predicted[rows], uncertainty=uncertainty[rows])


def uncertainty_of(probabilities: Probabilities) -> NDArray[np.float64]:
    """Entropy over its largest possible value: 0 is certain, 1 knows nothing."""
    safe = np.maximum(probabilities, np.finfo(np.float64).tiny)
    return np.asarray(-(probabilities * np.log(safe)).sum(axis=1) / np.log(probabilities.shape[1]))


def positions_within_groups(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 for the first member of each group, 1 for the second, and so on."""
    positions = np.empty(len(groups), dtype=np.int64)
    for group in np.unique(groups):
        members = groups == group
        positions[members] = np.arange(members.sum())
    return positions


def _checked(labels: ArrayLike, probabilities: ArrayLike) -> tuple[Labels, Probabilities]:
    given, matrix = np.asarray(labels), _checked_probabilities(probabilities)
    if given.shape != matrix.shape[:1] or given.dtype.kind not in "iu":
        raise DataError(
            f"the labels are {given.dtype} of shape {given.shape}; expected a class number, or -1 where unknown, "
            f"for each of {len(matrix)} rows."
        )
    if len(given) and not (given.min() >= UNLABELED and given.max() < matrix.shape[1]):
        raise DataError(
            f"the labels run from {given.min()} to {given.max()}; expected -1 to {matrix.shape[1] - 1}, "
            f"as there are probabilities of {matrix.shape[1]} classes."
        )
    return given.astype(np.int64), matrix


def _checked_probabilities(probabilities: ArrayLike) -> Probabilities:
    matrix = np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] < 2:
        raise DataError(
            f"the probabilities have shape {matrix.shape}; expected [rows, classes] of two classes or more."
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise DataError("the probabilities hold negative, NaN or infinite values.")
    return matrix


# Labels and probabilities of a run


def audit_run(run: Run, dataset: Dataset | None = None) -> Audit:
    """The labels a run was trained with, ranked by what it came to predict for them. In-sample: see the module.

    dataset  passed again where the run was given one; otherwise it is loaded as the run loaded it
    """
    return rank(run_labels(run), predictions(run, dataset or run.dataset()))


def suggest_run(run: Run, count: int, dataset: Dataset | None = None) -> Suggestions:
    """Rows the run had no label for and is least certain of, spread over the classes it predicts."""
    return suggest(predictions(run, dataset or run.dataset()), run_labels(run) != UNLABELED, count)


def predictions(run: Run, dataset: Dataset) -> Probabilities:
    """[training rows, classes] the ensemble where the run has one, the network's own predictions otherwise.

    Rows that training never visited (held out, or left out by an incomplete batch) have the network's too.
    """
    run.check_dataset(dataset)
    ensemble = run.ensemble
    if ensemble is None:
        return run.predict_rows(dataset.inputs)
    targets = ensemble.all()
    probabilities, known = targets.probabilities.numpy(), targets.known.numpy()
    if not known.all():
        probabilities[~known] = run.predict_rows(dataset.inputs, np.flatnonzero(~known))
    return probabilities


def run_labels(run: Run) -> Labels:
    """The labels a run knows of, with -1 elsewhere: those it trained on and those it validated on."""
    return run.labels.known_labels(run.about["rows"])


# Files


def write_audit(path: Path, audit: Audit, classes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """A CSV of row, label, suggested, score (and file, given `names`), most suspicious first: a labels file to correct."""
    columns = (audit.rows, audit.labels, audit.suggested, audit.scores)
    lines = (
        (row, classes[label], classes[suggested], f"{score:.6f}")
        for row, label, suggested, score in zip(*columns, strict=True)
    )
    _write(path, ("row", "label", "suggested", "score"), lines, names)


def write_suggestions(
    path: Path, suggestions: Suggestions, classes: Sequence[str], names: Sequence[str] | None = None
) -> None:
    """A CSV of row, label (left empty, to be filled in), predicted, uncertainty (and file, given `names`)."""
    columns = (suggestions.rows, suggestions.predicted, suggestions.uncertainty)
    lines = ((row, "", classes[best], f"{value:.6f}") for row, best, value in zip(*columns, strict=True))
    _write(path, ("row", "label", "predicted", "uncertainty"), lines, names)


def _write(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]], names: Sequence[str] | None) -> None:
    named = names is not None and len(names) > 0
    rows = [[*line, names[line[0]]] if named and names is not None else list(line) for line in lines]
    write_csv(path, [*header, "file"] if named else list(header), rows)
