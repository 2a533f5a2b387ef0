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
LOSSES = ("supervised", "unsupervised", "total")
RATES = {"weight": "w(t)", "learning_rate": "learning rate", "beta1": "β1", "momentum": "momentum"}
OTHERS = {"ensemble_variance": "variance of a row, summed over classes"}
NOT_DRAWN = ("epoch", "seconds", "images_per_second")

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Details:
    name: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    curves: tuple[Chart, ...]
    tests: tuple[Chart, ...]
    galleries: tuple[Gallery, ...]
    settings: str


def details(run: Run, dataset: Dataset | None, source: str | Path | None, name: str) -> Details:
    """What there is to say about a run.

    dataset  what it was trained on, if that is in memory; otherwise it is loaded
    source   where from, if it was moved
    """
    history = history_of(run)
    missing = _unfinished(run) + _unreadable(run)
    tests: list[Chart] = []
    galleries: list[Gallery] = []
    try:
        data = dataset or run.dataset(source=source)
        tests, galleries = _charts_and_galleries(run, data, name)
    except SelfensError as error:
        missing.append(shown(f"Confusion matrix, calibration and galleries are missing: {error}"))
    return Details(
        name=shown(name),
        sentence=_sentence(run, history),
        facts=_facts(run, history),
        missing=tuple(missing),
        curves=tuple(_curves(history, name)),
        tests=tuple(tests),
        galleries=tuple(galleries),
        settings=run.config.to_json().encode("utf-8", "replace").decode(),
    )


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
    """Charts of all numbers that were recorded: errors, losses and rates together, anything else by itself."""
    keys = dict.fromkeys(key for record in history for key in record if key not in NOT_DRAWN)
    every = {key: values_of(history, key) for key in keys}
    varying = {key: values for key, values in every.items() if len(set(values)) > 1}
    errors = {word: every[key] for key, word in ERRORS.items() if set(every.get(key, ())) - {None}}
    charts = {
        "Error per epoch": {"misclassified, %": errors} if errors else {},
        "Losses per epoch": {"mean over the epoch": _losses(every)},
        "Schedule": {word: {"": every[key]} for key, word in RATES.items() if key in varying},
    }
    for key in (key for key in varying if key not in (*ERRORS, *LOSSES, *RATES)):
        words = shown(key.replace("_", " "), 60)
        charts[words.capitalize()] = {OTHERS.get(key, words): {"": every[key]}}
    return [figures.epochs_chart(title, name, panels) for title, panels in charts.items() if panels]


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


def _facts(run: Run, history: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    network = "a module of your own" if run.about["own_network"] else run.config.network.name
    return (
        ("run", shown(str(run.path))),
        ("network", f"{network}, {run.about.get('parameters', 0):,} parameters"),
        ("seed", str(run.config.seed.base)),
        ("trained", f"{time_words(history)} on {run.about['environment'].get('device', '?')}"),
        ("classes", f"{len(run.classes):,}"),
    )


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


def _unreadable(run: Run) -> list[str]:
    count = len(run.about.get("unreadable", []))
    return [f"Files that could not be read and were left out: {count:,}, listed in run.json."] if count else []


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
        figures.class_error_chart(matrix, data.classes, name),
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
        return gallery(
            self.data,
            self.rows[order],
            self.predicted[order],
            None if self.labels is None else self.labels[order],
            [f"{100 * each:.1f} %" for each in self.probabilities[order].max(axis=1)],
            test=self.is_test,
            title=title,
            note=note,
            given_word="" if self.labels is None else "true" if self.is_test else "given",
        )
