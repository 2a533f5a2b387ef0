"""Audit: which labels look wrong, and which rows are worth labeling next.

Everything is a function of `labels` (class numbers, -1 if unknown) and `probabilities` [rows, classes], wherever they come
from. `audit_run` takes them from a run and is in-sample: the network was trained on the labels it is asked to doubt, which
hides some mistakes. `selfens.tools.folds` asks networks that have not seen the label, and trains once per fold.

A CSV written by `write_audit` can be corrected in its `label` column and passed back as `data.labels_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

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
    """The labeled rows, most suspicious first; the arrays run in parallel."""

    rows: Rows
    labels: Labels
    """The label each row was given."""
    suggested: Labels
    """The most probable class; the label is disputed if it is another one."""
    scores: NDArray[np.float64]
    """From -1, sure that the label is wrong, to 1, sure that it is right."""

    @property
    def disputed(self) -> Rows:
        """The rows for which another class is more probable than the label, most suspicious first."""
        return np.asarray(self.rows[self.suggested != self.labels])


@dataclass(frozen=True, eq=False)
class Suggestions:
    """Rows to label next, in the order in which to label them."""

    rows: Rows
    predicted: Labels
    uncertainty: NDArray[np.float64]
    """Entropy of the prediction over its largest possible value: 0 is certain, 1 means all classes are equally probable."""


# Functions of labels and probabilities


def rank(labels: ArrayLike, probabilities: ArrayLike) -> Audit:
    """The labeled rows by how much more probable the label is than the best other class, with the class to use instead.

    >>> ranked = rank([0, 1, -1], [[0.9, 0.1], [0.75, 0.25], [0.5, 0.5]])
    >>> ranked.rows, ranked.scores
    (array([1, 0]), array([-0.5,  0.8]))
    """
    given, matrix = _checked(labels, probabilities)
    rows = np.flatnonzero(given != UNLABELED)
    others = matrix[rows]
    others[np.arange(len(rows)), given[rows]] = -np.inf
    scores = matrix[rows, given[rows]] - others.max(axis=1)
    order = np.argsort(scores, kind="stable")
    rows = rows[order]
    return Audit(rows=rows, labels=given[rows], suggested=matrix[rows].argmax(axis=1), scores=scores[order])


def suggest(labels: ArrayLike, probabilities: ArrayLike, count: int) -> Suggestions:
    """Up to `count` unlabeled rows to label next: the least certain of each predicted class in turn.

    Uncertainty by itself would pick one confused corner of the data over and over; taking the classes in turn spreads the
    effort.

    >>> suggest([-1, -1, -1], [[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]], 2).rows
    array([0, 2])
    """
    given, matrix = _checked(labels, probabilities)
    rows = np.flatnonzero(given == UNLABELED)
    return _in_turn([(rows, matrix[rows])], count)


def _in_turn(parts: Iterable[tuple[Rows, Probabilities]], count: int) -> Suggestions:
    """Of rows and their probabilities, in parts, the `count` least certain, the predicted classes in turn."""
    check_kind("count", count, Integral, "a whole number of rows")
    if count < 1:
        raise DataError(f"{count:,} rows were asked for; expected at least 1.")
    made = [(rows, matrix.argmax(axis=1), uncertainty_of(matrix)) for rows, matrix in parts]
    rows, predicted, uncertainty = (np.concatenate(arrays) for arrays in zip(*made, strict=True))
    order = np.argsort(-uncertainty, kind="stable")
    turns = np.empty(len(order), dtype=np.int64)
    for number in np.unique(predicted):
        members = predicted[order] == number
        turns[members] = np.arange(members.sum())
    first = order[np.argsort(turns, kind="stable")][:count]
    return Suggestions(rows[first], predicted[first], uncertainty[first])


def uncertainty_of(probabilities: Probabilities) -> NDArray[np.float64]:
    """Entropy over its largest possible value: from 0, certain, to 1, all classes equally probable."""
    matrix = probabilities.astype(np.float64)
    safe = np.maximum(matrix, np.finfo(np.float64).tiny)
    return np.asarray(-(matrix * np.log(safe)).sum(axis=1) / np.log(matrix.shape[1]))


def _checked(labels: ArrayLike, probabilities: ArrayLike) -> tuple[Labels, Probabilities]:
    given, matrix = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] < 2 or not np.isfinite(matrix).all() or (matrix < 0).any():
        raise DataError(
            f"the probabilities have shape {matrix.shape}; expected [rows, classes] of at least two classes, none of them "
            "negative, NaN or infinite."
        )
    is_fitting = given.shape == matrix.shape[:1] and given.dtype.kind in "iu"
    if not is_fitting or (len(given) and not (given.min() >= UNLABELED and given.max() < matrix.shape[1])):
        raise DataError(
            f"the labels are {given.dtype} of shape {given.shape}; expected a class number from 0 to {matrix.shape[1] - 1}, "
            f"or -1 if unknown, for each of {len(matrix):,} rows."
        )
    return given.astype(np.int64), matrix


# Labels and probabilities of a run


def audit_run(run: Run, dataset: Dataset | None = None) -> Audit:
    """The labels a run was trained with, ranked by what it predicts for them. In-sample: see the module.

    dataset  needed if the run was given one; otherwise it is loaded as the run loaded it
    """
    check_kind("run", run, Run, "a Run, such as load_run(path) gives")
    labels = run_labels(run)
    rows = np.flatnonzero(labels != UNLABELED)
    ranked = rank(labels[rows], run.predict_training_rows(dataset or run.dataset(), rows))
    return replace(ranked, rows=rows[ranked.rows])


def suggest_run(run: Run, count: int, dataset: Dataset | None = None) -> Suggestions:
    """Rows that the run had no label for and is least certain of, spread over the classes it predicts."""
    check_kind("run", run, Run, "a Run, such as load_run(path) gives")
    labeled = run_labels(run) != UNLABELED
    if labeled.all():
        raise DataError(f"every training row of {run.path} has a label, so there is none to label next.")
    data = dataset or run.dataset()
    blocks = (block[~labeled[block]] for block in run.training_blocks())
    return _in_turn(((rows, run.predict_training_rows(data, rows)) for rows in blocks), count)


def run_labels(run: Run) -> Labels:
    """The labels a run knows, both those it trained on and those it validated on; -1 elsewhere."""
    return run.labels.known_labels(run.about["rows"])


def doubt(audit: Audit, error: float | None) -> str:
    """A sentence if the model that judges the labels is itself mostly wrong; else empty.

    error  of the model on rows that it did not learn from, in percent, if it is known
    """
    if error is not None and error > 50:
        return f"The model misclassifies {error:.2f} % of its test rows, so most labels that it disputes are probably right."
    if 2 * len(audit.disputed) > len(audit.rows):
        return "More labels are disputed than not, so it is probably the model that is mostly wrong."
    return ""


# Files


OF_AUDIT = ("row", "label", "suggested", "score")
OF_SUGGESTIONS = ("row", "label", "predicted", "uncertainty")


def check_audit_replaceable(path: Path, run: Run, dataset: Dataset) -> None:
    """Refuse to write an audit over one with corrected labels, or over another kind of file."""
    known = run_labels(run)
    rows = np.flatnonzero(known >= 0)
    labels = zip(dataset.identify(rows)[0].tolist(), known[rows], strict=True)
    check_replaceable(path, OF_AUDIT, labels={row: run.classes[label] for row, label in labels})


def write_audit(path: Path, audit: Audit, classes: Sequence[str], dataset: Dataset | None = None) -> None:
    """A CSV of row, label, suggested, score, most suspicious first: a labels file to correct. With the dataset's names."""
    labels, suggested = ([classes[number] for number in numbers] for numbers in (audit.labels, audit.suggested))
    _write(path, OF_AUDIT, (audit.rows, labels, suggested, cells(audit.scores)), dataset)


def write_suggestions(
    path: Path, suggestions: Suggestions, classes: Sequence[str], dataset: Dataset | None = None
) -> None:
    """A CSV of row, label (empty, to be filled in), predicted, uncertainty. With the dataset's names."""
    rows, predicted = suggestions.rows, [classes[number] for number in suggestions.predicted]
    _write(path, OF_SUGGESTIONS, (rows, [""] * len(rows), predicted, cells(suggestions.uncertainty)), dataset)


def _write(path: Path, headers: Sequence[str], columns: tuple[Any, ...], dataset: Dataset | None) -> None:
    numbers, names = (columns[0], {}) if dataset is None else dataset.identify(columns[0])
    write_csv(path, dict(zip(headers, columns, strict=True)) | {"row": numbers} | names)
