"""Audit: which labels look wrong, and which rows are worth labelling next.

Everything is a function of `labels` (class numbers, -1 if unknown) and `probabilities` [rows, classes], wherever they come
from. `audit_run` takes them from a run and is in-sample: the network was trained on the labels it is asked to doubt, which
hides some mistakes. `selfens.tools.folds` asks networks that have not seen the label, and trains once per fold.

A CSV written by `write_audit` can be corrected in its `label` column and passed back as `data.labels_file`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.errors import DataError, check_kind
from selfens.files.tables import cells, check_replaceable, write_csv
from selfens.runs.run import Run

Probabilities = NDArray[np.floating[Any]]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """The labelled rows, most suspicious first; the arrays run in parallel."""

    rows: Rows
    labels: Labels
    """The label each row was given."""
    suggested: Labels
    """The most probable class; the label is disputed if it is another one."""
    scores: NDArray[np.float64]
    """From -1, sure that the label is wrong, to 1, sure that it is right."""
    deviations: NDArray[np.float64] | None = None
    """By how much the suggested class's probability has varied from epoch to epoch, if that is known."""

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
    """Entropy of the prediction over its largest possible value: 0 is certain, 1 means all classes are equally probable."""
    variance: NDArray[np.float64] | None = None
    """How much the predictions have varied from epoch to epoch, summed over the classes, if that is known."""


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


def rank(labels: ArrayLike, probabilities: ArrayLike, variance: ArrayLike | None = None) -> Audit:
    """The labelled rows ranked by `label_scores`, with the class to use instead.

    variance  [rows, classes] of the predictions that were averaged, to say how stable each suggestion was

    >>> rank([0, 1, -1], [[0.9, 0.1], [0.75, 0.25], [0.5, 0.5]]).rows
    array([1, 0])
    """
    given, matrix = _checked(labels, probabilities)
    scores = label_scores(given, matrix)
    rows = np.argsort(scores, kind="stable")[: int((given != UNLABELED).sum())]  # NaN sorts last
    suggested = matrix[rows].argmax(axis=1)
    deviations = None if variance is None else np.sqrt(_checked_variance(variance, matrix)[rows, suggested])
    return Audit(rows=rows, labels=given[rows], suggested=suggested, scores=scores[rows], deviations=deviations)


def suggest(
    probabilities: ArrayLike, labelled: ArrayLike, count: int, variance: ArrayLike | None = None
) -> Suggestions:
    """Up to `count` rows to label next: the least certain of each predicted class in turn.

    Uncertainty by itself would pick one confused corner of the data over and over; taking the classes in turn spreads the
    effort. `labelled` is a mask over the rows, and those rows are never suggested. Given `variance`, [rows, classes], rows
    are ranked by how much their predictions have varied instead of by uncertainty.

    >>> suggest([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]], [False, False, False], 2).rows
    array([0, 2])
    """
    matrix = _checked_probabilities(probabilities)
    mask = np.asarray(labelled)
    if mask.shape != matrix.shape[:1] or mask.dtype != bool:
        raise DataError(
            f"labelled is {mask.dtype} of shape {mask.shape}; expected true or false for each of {len(matrix):,} rows."
        )
    varied = None if variance is None else _checked_variance(variance, matrix).sum(axis=1)
    predicted, uncertainty, rows = matrix.argmax(axis=1), uncertainty_of(matrix), np.arange(len(matrix))
    every = Suggestions(rows=rows, predicted=predicted, uncertainty=uncertainty, variance=varied)
    return _first(every, uncertainty if varied is None else varied, mask, count)


def _first(every: Suggestions, worth: NDArray[np.float64], labelled: NDArray[np.bool_], count: int) -> Suggestions:
    """Of all rows, the `count` unlabeled ones that are worth most, the predicted classes in turn."""
    check_kind("count", count, Integral, "a whole number of rows")
    if count < 1:
        raise DataError(f"{count:,} rows were asked for; expected at least 1.")
    order = np.argsort(-worth, kind="stable")  # NaN, a row without a variance, sorts last
    order = order[~labelled[order]]
    turns = positions_within_groups(every.predicted[order])
    rows = order[np.argsort(turns, kind="stable")][:count]
    varied = None if every.variance is None else every.variance[rows]
    return Suggestions(rows=rows, predicted=every.predicted[rows], uncertainty=every.uncertainty[rows], variance=varied)


def uncertainty_of(probabilities: Probabilities) -> NDArray[np.float64]:
    """Entropy over its largest possible value: from 0, certain, to 1, all classes equally probable."""
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
            f"the labels are {given.dtype} of shape {given.shape}; expected a class number, or -1 if unknown, "
            f"for each of {len(matrix):,} rows."
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
            f"the probabilities have shape {matrix.shape}; expected [rows, classes] of at least two classes."
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise DataError("the probabilities hold negative, NaN or infinite values.")
    return matrix


def _checked_variance(variance: ArrayLike, probabilities: Probabilities) -> Probabilities:
    matrix = np.asarray(variance, dtype=np.float64)
    if matrix.shape != probabilities.shape:
        raise DataError(
            f"the variance has shape {matrix.shape}; expected that of the probabilities, {probabilities.shape}."
        )
    return matrix


# Labels and probabilities of a run


def audit_run(run: Run, dataset: Dataset | None = None) -> Audit:
    """The labels a run was trained with, ranked by what it predicts for them. In-sample: see the module.

    dataset  needed if the run was given one; otherwise it is loaded as the run loaded it
    """
    _check_run(run)
    labels = run_labels(run)
    rows = np.flatnonzero(labels != UNLABELED)
    ranked = rank(labels[rows], *run.predict_training_rows(dataset or run.dataset(), rows))
    return replace(ranked, rows=rows[ranked.rows])


def suggest_run(
    run: Run, count: int, dataset: Dataset | None = None, by: Literal["uncertainty", "variance"] = "uncertainty"
) -> Suggestions:
    """Rows that the run had no label for and is least certain of, spread over the classes it predicts.

    by  how certainty is judged: by the entropy of the prediction, or by how much predictions have varied over the epochs
    """
    _check_run(run)
    labelled = run_labels(run) != UNLABELED
    if labelled.all():
        raise DataError(f"every training row of {run.path} has a label, so there is none to label next.")
    data, blocks = dataset or run.dataset(), []
    for rows in run.training_blocks():
        made = run.predict_training_rows(data, rows)
        varied = np.full(len(rows), np.nan) if made.variance is None else made.variance.sum(axis=1, dtype=np.float64)
        blocks.append((made.predicted, uncertainty_of(made.probabilities.astype(np.float64)), varied))
    predicted, uncertainty, variance = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    kept = None if np.isnan(variance).all() else variance
    if by == "variance" and kept is None:
        raise DataError(f"{run.path} keeps no variance of its predictions, so rank by uncertainty.")
    every = Suggestions(rows=np.arange(len(labelled)), predicted=predicted, uncertainty=uncertainty, variance=kept)
    return _first(every, variance if by == "variance" else uncertainty, labelled, count)


def _check_run(run: Run) -> None:
    check_kind("run", run, Run, "a Run, such as load_run(path) gives")


def predictions(run: Run, dataset: Dataset) -> Probabilities:
    """[training rows, classes] the ensemble if the run has one, otherwise the network's own predictions.

    Rows that training never visited (held out, or left out by an incomplete batch) get the network's in any case.
    """
    return run.predict_training_rows(dataset).probabilities


def run_labels(run: Run) -> Labels:
    """The labels a run knows, both those it trained on and those it validated on; -1 elsewhere."""
    return run.labels.known_labels(run.about["rows"])


# Files


OF_AUDIT = ("row", "label", "suggested", "score")
OF_SUGGESTIONS = ("row", "label", "predicted", "uncertainty")


def check_audit_replaceable(path: Path, run: Run) -> None:
    """Refuse to write an audit over one with corrected labels, or over another kind of file."""
    known = run_labels(run)
    check_replaceable(path, OF_AUDIT, labels={int(row): run.classes[known[row]] for row in np.flatnonzero(known >= 0)})


def check_suggestions_replaceable(path: Path) -> None:
    """Refuse to write suggestions over some that were filled in, or over another kind of file."""
    check_replaceable(path, OF_SUGGESTIONS, labels={})


def write_audit(path: Path, audit: Audit, classes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """A CSV of row, label, suggested, score, most suspicious first: a labels file to correct.

    Also the deviation of the suggested class's probability, if it is known, and the file of each row, given `names`.
    """
    labels, suggested = ([classes[number] for number in numbers] for numbers in (audit.labels, audit.suggested))
    own: dict[str, Any] = dict(zip(OF_AUDIT, (audit.rows, labels, suggested, cells(audit.scores)), strict=True))
    write_csv(path, own | _more_columns(audit.rows, names, deviation=audit.deviations))


def write_suggestions(
    path: Path, suggestions: Suggestions, classes: Sequence[str], names: Sequence[str] | None = None
) -> None:
    """A CSV of row, label (empty, to be filled in), predicted, uncertainty.

    Also the variance, if it is known, and the file of each row, given `names`.
    """
    rows, predicted = suggestions.rows, [classes[number] for number in suggestions.predicted]
    columns = (rows, [""] * len(rows), predicted, cells(suggestions.uncertainty))
    own: dict[str, Any] = dict(zip(OF_SUGGESTIONS, columns, strict=True))
    write_csv(path, own | _more_columns(rows, names, variance=suggestions.variance))


def _more_columns(
    rows: Rows, names: Sequence[str] | None, **measured: NDArray[np.float64] | None
) -> dict[str, Sequence[str]]:
    more = {name: cells(values) for name, values in measured.items() if values is not None}
    return more | ({"file": [names[row] for row in rows]} if names is not None and len(names) else {})
