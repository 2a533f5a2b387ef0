"""Audit: which labels look wrong; and which rows of a run are worth labeling next (`selfens.tools.selection`).

Everything is a function of `labels` (class numbers, -1 if unknown) and `probabilities` [rows, classes], from any model.
`audit_run` takes them from a run and is in-sample: the network was trained on the labels that are judged, which hides some
mistakes. `selfens.tools.folds` asks networks that have not seen the label, and trains once per fold.

A CSV written by `write_audit` can be corrected in its `label` column and passed back as `labels.file`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data import journal
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.inspection import blank_rows
from selfens.data.interchange import check_new, is_for_tool, write_rows
from selfens.data.rows import Labels, Rows
from selfens.data.sources.base import PathOptions
from selfens.errors import DataError, check_type, listed
from selfens.files.tables import cells, check_replaceable, write_csv
from selfens.files.tensors import write_errors
from selfens.runs.evidence import Evidence
from selfens.runs.run import Run
from selfens.tools.selection import Suggestions, suggest

AUDIT_COLUMNS = ("row", "label", "suggested", "score")
SUGGESTION_COLUMNS = ("row", "label", "predicted", "uncertainty")

Probabilities = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """The labeled rows, most suspicious first; the arrays run in parallel."""

    rows: Rows
    labels: Labels
    suggested: Labels  # the most probable class; the label is disputed if it is a different one
    scores: NDArray[
        np.float64
    ]  # from 0, certainly wrong, to 1, certainly right; below 1/2 another class is more probable

    @property
    def disputed(self) -> Rows:
        """The rows for which another class is more probable than the label, most suspicious first."""
        return np.asarray(self.rows[self.suggested != self.labels])


# Functions of labels and probabilities


def rank(labels: ArrayLike, probabilities: ArrayLike) -> Audit:
    """Rank the labeled rows by how probable the label is beside the best other class, the least probable first.

    >>> ranked = rank([0, 1, -1], [[0.9, 0.1], [0.75, 0.25], [0.5, 0.5]])
    >>> ranked.rows, ranked.scores
    (array([1, 0]), array([0.25, 0.9 ]))
    """
    given, matrix = _checked(labels, probabilities)
    rows = np.flatnonzero(given != UNLABELED)
    scores, others = matrix[rows, given[rows]], matrix[rows]
    others[np.arange(len(rows)), given[rows]] = 0
    scores = scores / np.maximum(scores + others.max(axis=1), np.finfo(np.float64).tiny)
    order = np.argsort(scores, kind="stable")
    rows = rows[order]
    return Audit(rows=rows, labels=given[rows], suggested=matrix[rows].argmax(axis=1), scores=scores[order])


def _checked(labels: ArrayLike, probabilities: ArrayLike) -> tuple[Labels, NDArray[np.float64]]:
    given, matrix = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] < 2 or not np.isfinite(matrix).all() or (matrix < 0).any():
        expected = "[rows, classes] with at least two classes, none negative or NaN"
        raise DataError(f"the probabilities have shape {matrix.shape}; expected {expected}.")
    has_labels = given.shape == matrix.shape[:1] and given.dtype.kind in "iu"
    if not has_labels or (len(given) and not (given.min() >= UNLABELED and given.max() < matrix.shape[1])):
        expected = f"{len(matrix):,} class numbers from 0 to {matrix.shape[1] - 1}, or -1 if unknown"
        raise DataError(f"the labels are {given.dtype} of shape {given.shape}; expected {expected}.")
    return given.astype(np.int64), matrix


# Labels and probabilities of a run


def audit_evidence(evidence: Evidence) -> Audit:
    """Rank labels by what models that had not seen them predict."""
    ranked = rank(evidence.labels, evidence.probabilities)
    return replace(ranked, rows=evidence.rows[ranked.rows])


def audit_run(run: Run, dataset: Dataset | None = None) -> Audit:
    """Rank the labels a run was trained with by what it predicts for them. In-sample: see the module.

    Parameters
    ----------
    dataset
        Needed if it was passed to `train`; otherwise it is loaded as the run loaded it.
    """
    check_type("run", run, Run, "a Run, such as load_run(path) returns")
    labels = run_labels(run)
    rows = np.flatnonzero(labels != UNLABELED)
    ranked = rank(labels[rows], run.predict_training_rows(dataset, rows))
    return replace(ranked, rows=rows[ranked.rows])


def suggest_run(run: Run, count: int, dataset: Dataset | None = None, *, at_random: bool = False) -> Suggestions:
    """Suggest rows that the run had no label for: uncertain, unlike the labeled ones, and unlike each other.

    Parameters
    ----------
    at_random
        Draw the rows instead. The model learns less from them, but errors can be measured on them.
    """
    check_type("run", run, Run, "a Run, such as load_run(path) returns")
    labels, data = run_labels(run), run.data(dataset)
    if (labels != UNLABELED).all():
        raise DataError(f"every training row of {run.path} has a label, so there is none to label next.")
    return suggest(
        data.inputs,
        count,
        labels,
        run.predict_training_rows(dataset),
        usable=~blank_rows(data.dataset, data.dataset.train_rows),
        standardize=not data.encoder.is_scaled,
        way="random" if at_random else "cover",
        seed=run.config.seed.base,
    )


def note_suggestions(suggestions: Suggestions, dataset: Dataset, *, at_random: bool = False) -> None:
    """Write into the journal beside the data how these rows were chosen; RunError if it cannot be written."""
    source = dataset.source
    if not isinstance(source, PathOptions):
        return
    path = journal.path_for(Path(str(source.path)))
    hashes = dataset.row_hashes(dataset.train_rows[suggestions.rows])
    with write_errors(path):
        journal.add_chosen(path, hashes, journal.AT_RANDOM if at_random else journal.BY_MODEL)


def run_labels(run: Run) -> Labels:
    """Return the labels a run knows, both those it trained on and those it validated on; -1 elsewhere."""
    return run.labels.known_labels(run.info.rows)


def not_judged(audit: Audit, labels: Labels, classes: Sequence[str]) -> str:
    """Return a sentence about labels that are not in an audit, each the only one of its class; else ""."""
    rows = np.setdiff1d(np.flatnonzero(labels != UNLABELED), audit.rows)
    names = [f"'{classes[number]}'" for number in labels[rows]]
    return f"Not judged, because the class has only one label: {listed(names, 8)}." if names else ""


def warning(audit: Audit, error: float | None) -> str:
    """Return a sentence if the model that judges the labels, with this test error, is itself mostly wrong; else ""."""
    if error is not None and error > 50:
        return f"The model misclassifies {error:.2f} % of its test rows, so most labels that it disputes are probably right."
    if 2 * len(audit.disputed) > len(audit.rows):
        return "More labels are disputed than not, so it is probably the model that is mostly wrong."
    return ""


# Files


def check_audit_replaceable(path: Path, run: Run, dataset: Dataset) -> None:
    """Refuse to write an audit over one with corrected labels, or over another kind of file."""
    if is_for_tool(path):
        return check_new(path)
    known = run_labels(run)
    rows = np.flatnonzero(known >= 0)
    labels = zip(dataset.identify(rows)[0].tolist(), known[rows], strict=True)
    return check_replaceable(path, AUDIT_COLUMNS, labels={row: run.classes[label] for row, label in labels})


def write_audit(path: Path, audit: Audit, dataset: Dataset) -> None:
    """Write a CSV of row, label, suggested, score, most suspicious first: a labels file to correct.

    By its name, the file may be one for another tool (`selfens.data.interchange`).
    """
    if is_for_tool(path):
        return write_rows(path, dataset, audit.rows, audit.suggested, list(1 - audit.scores), audit.labels)
    labels, suggested = ([dataset.classes[number] for number in numbers] for numbers in (audit.labels, audit.suggested))
    numbers, ids = dataset.identify(audit.rows)
    return write_csv(
        path, {"row": numbers, "label": labels, "suggested": suggested, "score": cells(audit.scores), **ids}
    )


def write_suggestions(
    path: Path, suggestions: Suggestions, dataset: Dataset, novelty: NDArray[np.float64] | None = None
) -> None:
    """Write a CSV of row, label (empty, to be filled in), predicted, uncertainty, and the novelty of training rows.

    By its name, the file may be one for another tool (`selfens.data.interchange`).
    """
    if is_for_tool(path):
        return write_rows(path, dataset, suggestions.rows, suggestions.predicted, list(1 - suggestions.uncertainty))
    rows = suggestions.rows
    predicted = [dataset.classes[number] if number >= 0 else "" for number in suggestions.predicted]
    columns = {"label": [""] * len(predicted), "predicted": predicted, "uncertainty": cells(suggestions.uncertainty)}
    if novelty is not None:
        columns["novelty"] = cells(novelty[rows])
    numbers, ids = dataset.identify(rows)
    return write_csv(path, {"row": numbers, **columns, **ids})
