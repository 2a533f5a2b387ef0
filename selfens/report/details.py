"""All that a report shows of one run: a sentence, charts, galleries, and what is missing and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.errors import RunError, SelfensError
from selfens.report import figures, measures
from selfens.report.figures import Chart, Values
from selfens.report.gallery import Gallery, gallery
from selfens.report.render import shown
from selfens.runs.run import Run
from selfens.tools.audit import Probabilities, rank, run_labels, uncertainty_of
from selfens.training.progress import duration

NEEDED = ("epoch", "supervised", "total")
ERRORS = {"test_error": "test", "validation_error": "validation"}
NOT_DRAWN = ("epoch", "seconds", "images_per_second")

Record = Mapping[str, Any]


def details(run: Run, dataset: Dataset | None, source: str | Path | None, name: str) -> dict[str, Any]:
    """What the template shows of a run.

    dataset  what it was trained on, if that is in memory; otherwise it is loaded
    source   where from, if it was moved
    """
    history, missing = history_of(run), _unfinished(run)
    tests: list[Chart] = []
    galleries: list[Gallery] = []
    try:
        tests, galleries = _charts_and_galleries(run, dataset or run.dataset(source=source), name)
    except SelfensError as error:
        missing.append(shown(f"Confusion matrix, calibration and galleries are missing: {error}"))
    return {
        "name": shown(name),
        "sentence": _sentence(run, history),
        "facts": _facts(run, history),
        "missing": missing,
        "curves": _curves(history, name),
        "tests": tests,
        "galleries": galleries,
        "settings": run.config.to_json().encode("utf-8", "replace").decode(),
    }


# The history


def history_of(run: Run) -> Sequence[Record]:
    """The finished epochs up to the checkpoint, whose weights are shown; all of them if there is no checkpoint to read."""
    try:
        epochs = run.directory.reached()[0]
    except RunError:
        epochs = 0
    records = [
        record
        for record in run.history[: epochs or None]
        if isinstance(record, dict) and all(number(record, key) is not None for key in NEEDED)
    ]
    if not records:
        raise RunError(
            f"{run.path} has not finished an epoch yet, so there is nothing to report; go on with 'selfens resume {run.path}'."
        )
    return records


def number(record: Record, key: str) -> float | None:
    """A number of a record; None if it is missing or, in a file that was tampered with, is not one."""
    value = record.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def values_of(history: Sequence[Record], key: str) -> Values:
    return [number(record, key) for record in history]


def _curves(history: Sequence[Record], name: str) -> list[Chart]:
    """Charts of all numbers that were recorded: errors and losses together, anything else that changes by itself."""
    keys = dict.fromkeys(key for record in history for key in record if key not in NOT_DRAWN)
    every = {key: values_of(history, key) for key in keys}
    charts = {
        "Error, %": {word: every[key] for key, word in ERRORS.items() if set(every.get(key, ())) - {None}},
        "Losses": _losses(every),
    }
    for key, values in every.items():
        if len(set(values)) > 1 and key not in (*ERRORS, "supervised", "unsupervised", "total"):
            charts[shown(key.replace("_", " "), 60).capitalize()] = {"": values}
    return [figures.epochs_chart(title, name, lines) for title, lines in charts.items() if lines]


def _losses(every: Mapping[str, Values]) -> dict[str, Values]:
    """The unsupervised loss as it counts, times its weight; that and the total only if there is any."""
    factors = zip(every.get("weight", ()), every.get("unsupervised", ()), strict=False)
    weighted = [None if weight is None or loss is None else weight * loss for weight, loss in factors]
    lines = {"supervised": every["supervised"]}
    return lines | {"w(t) × unsupervised": weighted, "total": every["total"]} if any(weighted) else lines


# In words


def _sentence(run: Run, history: Sequence[Record]) -> str:
    test, validation = (number(history[-1], key) for key in ERRORS)
    if test is not None:
        result = f"{test:.2f} % of {run.about.get('test_rows', 0):,} test rows misclassified"
    elif validation is not None:
        result = f"{validation:.2f} % of {len(run.labels.validation):,} validation rows misclassified"
    else:
        result = f"supervised loss {number(history[-1], 'supervised'):.4f}, no test rows"
    labelled, epochs = f"{len(run.labels.rows):,} of {run.about['rows']:,} rows labelled", f"{len(history):,}"
    return f"{data_words(run)}, {labelled}, {method_words(run)}: {result} after {epochs} epoch{'s' * (epochs != '1')}."


def method_words(run: Run) -> str:
    return "a method of your own" if run.about["own_method"] else run.config.method.name


def data_words(run: Run) -> str:
    """A named data set, or the last part of a path."""
    return shown(str(run.about.get("data", run.config.data.name)).rstrip("/").rpartition("/")[2], 60)


def _facts(run: Run, history: Sequence[Record]) -> str:
    network = "a module of your own" if run.about["own_network"] else run.config.network.name
    size, device = f"{run.about.get('parameters', 0):,} parameters", run.about["environment"].get("device", "?")
    seed, unreadable = run.config.seed.base, len(run.about.get("unreadable", []))
    left_out = f", {unreadable:,} unreadable files left out (run.json lists them)" if unreadable else ""
    return shown(f"{run.path}: {network} of {size}, seed {seed}, {time_words(history)} on {device}{left_out}")


def time_words(history: Sequence[Record]) -> str:
    return duration(sum(number(record, "seconds") or 0.0 for record in history))


def _unfinished(run: Run) -> list[str]:
    try:
        run.directory.check_not_lost()
        done, asked = run.directory.reached()[0], run.config.schedule.epochs
    except RunError:
        return []  # it cannot be resumed; the sentence about missing galleries says why
    path = shown(str(run.path))
    return [f"This run has done {done:,} of {asked:,} epochs; 'selfens resume {path}' completes it."] * (done < asked)


# Rows


def _charts_and_galleries(run: Run, data: Dataset, name: str) -> tuple[list[Chart], list[Gallery]]:
    """The charts of the test rows, and the galleries."""
    known = run_labels(run)
    labelled, unlabeled = np.flatnonzero(known != UNLABELED), np.flatnonzero(known == UNLABELED)
    judged = PredictedRows(data, labelled, known[labelled], run.predict_training_rows(data, labelled).probabilities)
    if not len(data.test_labels):
        others = PredictedRows(data, unlabeled, None, run.predict_training_rows(data, unlabeled).probabilities)
        return [], [others.uncertain(), judged.doubtful()]
    labels, probabilities = data.test_labels, run.test_probabilities(data)
    test = PredictedRows(data, np.arange(len(labels)), labels, probabilities, is_test=True)
    matrix = measures.confusion(labels, test.predicted, data.num_classes)
    charts = [
        figures.confusion_chart(matrix, data.classes, name),
        figures.reliability_chart(measures.calibration(labels, probabilities), name),
    ]
    return charts, [test.uncertain(), test.mistakes(), judged.doubtful()]


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Rows of a data set with what is predicted for them; the arrays run in parallel."""

    data: Dataset
    rows: NDArray[np.int64]
    labels: Labels | None
    probabilities: Probabilities
    is_test: bool = False

    @property
    def predicted(self) -> NDArray[np.int64]:
        return np.asarray(self.probabilities.argmax(axis=1))

    def uncertain(self) -> Gallery:
        order = np.argsort(-uncertainty_of(self.probabilities.astype(np.float64)), kind="stable")
        kind = "Test rows" if self.is_test else "Unlabeled training rows"
        return self._gallery(order, "Most uncertain", f"{kind}, the highest entropy of the probabilities first.")

    def mistakes(self) -> Gallery:
        wrong = np.flatnonzero(self.predicted != self.labels)
        order = wrong[np.argsort(-self.probabilities[wrong].max(axis=1), kind="stable")]
        return self._gallery(order, "Most confident mistakes", "Misclassified test rows, most confident first.")

    def doubtful(self) -> Gallery:
        assert self.labels is not None
        note = (
            "Labels for which the run finds another class more probable, most suspicious first. In-sample: the network was "
            "trained on these labels, which hides some mistakes."
        )
        return self._gallery(rank(self.labels, self.probabilities).disputed, "Labels that look wrong", note)

    def _gallery(self, order: NDArray[np.int64], title: str, note: str) -> Gallery:
        columns = {
            "predicted": [self.data.classes[number] for number in self.predicted[order]],
            "probability": [f"{each:.3f}" for each in self.probabilities[order].max(axis=1)],
        }
        if self.labels is not None:
            word = "true" if self.is_test else "given"
            columns = {word: [self.data.classes[number] for number in self.labels[order]]} | columns
        return gallery(self.data, self.rows[order], columns, title, note, test=self.is_test)
