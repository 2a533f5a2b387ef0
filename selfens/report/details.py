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

METHODS = {
    "supervised": "supervised learning",
    "pi": "the Π-model",
    "temporal": "temporal ensembling",
    "mean-teacher": "mean teacher",
    "fixmatch": "FixMatch",
}
MAX_FILES_NAMED = 10

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


def details(run: Run, dataset: Dataset | None, source: str | Path | None, name: str, budget: int) -> Details:
    """What there is to say about a run.

    dataset  what it was trained on, if that is in memory; otherwise it is loaded
    source   where from, if it was moved
    budget   bytes of pictures
    """
    history = history_of(run)
    missing = _unfinished(run, history) + _unreadable(run)
    tests: list[Chart] = []
    galleries: list[Gallery] = []
    try:
        data = dataset or run.dataset(source=source)
        run.check_dataset(data)
        tests, galleries = _charts_and_galleries(run, data, name, budget)
    except SelfensError as error:
        reason = shown(str(error)).rstrip(".")
        missing.append(f"Confusion matrix, calibration and galleries are missing: {reason}.")
    else:
        if not tests:
            missing.append("There are no test rows, so there is no confusion matrix and no calibration.")
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
    return lines | {"w(t) × unsupervised": weighted, figures.TOTAL: every["total"]} if any(weighted) else lines


# In words


def _sentence(run: Run, history: Sequence[Record]) -> str:
    labelled, rows = len(run.labels.rows), run.about["rows"]
    how = f"{method_words(run)}, trained on {data_words(run)} with {labelled:,} of {rows:,} rows labelled,"
    epochs = f"after {len(history):,} epoch{'s' * (len(history) > 1)}"
    test, validation = (number(history[-1], key) for key in ERRORS)
    if test is not None:
        result = f"misclassifies {test:.2f} % of {run.about.get('test_rows', 0):,} test rows {epochs}"
    elif validation is not None:
        result = f"misclassifies {validation:.2f} % of {len(run.labels.validation):,} validation rows {epochs}"
    else:
        loss = number(history[-1], "supervised")
        result = f"has a supervised loss of {loss:.4f} {epochs}; there are no test rows to measure its error on"
    return f"{how[0].upper()}{how[1:]} {result}."


def method_words(run: Run) -> str:
    name = run.config.method.name
    return "a method of your own" if run.about["own_method"] else METHODS.get(name, name)


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


def _unfinished(run: Run, history: Sequence[Record]) -> list[str]:
    try:
        run.directory.check_not_lost()
        asked, (epochs, steps) = run.config.schedule.epochs, run.directory.reached()
    except RunError:
        return []  # it cannot be resumed; the sentence about missing galleries says why
    if epochs >= asked:
        return []
    note = (
        f"This run has done {len(history):,} of {asked:,} epochs; 'selfens resume {shown(str(run.path))}' completes it."
    )
    within = f"Test rows and galleries are shown as of its checkpoint, {steps:,} steps into the next epoch."
    return [note, within] if steps else [note]


def _unreadable(run: Run) -> list[str]:
    files = run.about.get("unreadable", [])
    more = f" and {len(files) - MAX_FILES_NAMED:,} more, listed in run.json" if len(files) > MAX_FILES_NAMED else ""
    named = "; ".join(files[:MAX_FILES_NAMED])
    return [shown(f"Left out, because they cannot be read: {named}{more}.")] if files else []


# Rows


def _charts_and_galleries(run: Run, data: Dataset, name: str, budget: int) -> tuple[list[Chart], list[Gallery]]:
    """The charts of the test rows, and the galleries."""
    known = run_labels(run)
    labelled = _training_rows(run, data, np.flatnonzero(known != UNLABELED))
    if len(data.test_labels):
        probabilities = run.test_probabilities(data)
        matrix = measures.confusion(data.test_labels, probabilities.argmax(axis=1), data.num_classes)
        test = PredictedRows(data, np.arange(len(data.test_labels)), data.test_labels, probabilities, is_test=True)
        charts = [
            figures.confusion_chart(matrix, data.classes, name),
            figures.class_error_chart(matrix, data.classes, name),
            figures.reliability_chart(measures.calibration(data.test_labels, probabilities), name),
        ]
        return charts, [each(budget // 3) for each in (test.uncertain, test.mistakes, labelled.doubtful)]
    unlabeled = _training_rows(run, data, np.flatnonzero(known == UNLABELED))
    kinds = (unlabeled.uncertain, labelled.doubtful) if len(unlabeled.rows) else (labelled.doubtful,)
    return [], [each(budget // 2) for each in kinds]


def _training_rows(run: Run, data: Dataset, rows: NDArray[np.int64]) -> PredictedRows:
    """Some of the training rows, with what the run predicts for them: of a large ensemble, only these are read."""
    made = run.predict_training_rows(data, rows)
    labels = run_labels(run)[rows]
    known = labels if (labels != UNLABELED).all() else None
    return PredictedRows(data, rows, known, made.probabilities, made.deviation)


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Rows of a data set with what is predicted for them; the arrays run in parallel."""

    data: Dataset
    rows: NDArray[np.int64]
    labels: Labels | None
    probabilities: Probabilities
    deviation: NDArray[np.float32] | None = None
    """By how much the probability of the predicted class has varied over the epochs."""
    is_test: bool = False

    @property
    def predicted(self) -> NDArray[np.int64]:
        return np.asarray(self.probabilities.argmax(axis=1))

    def uncertain(self, budget: int) -> Gallery:
        """The rows whose predictions have the highest entropy."""
        order = np.argsort(-uncertainty_of(self.probabilities.astype(np.float64)), kind="stable")
        kind = "Test rows" if self.is_test else "Unlabeled training rows"
        note = f"{kind} whose probabilities are spread most evenly over the classes."
        return self._gallery(order, budget, "Most uncertain", note)

    def mistakes(self, budget: int) -> Gallery:
        """The misclassified rows, most confident first."""
        wrong = np.flatnonzero(self.predicted != self.labels)
        order = wrong[np.argsort(-self.probabilities[wrong].max(axis=1), kind="stable")]
        note = "Misclassified test rows, most confident first." if len(order) else "No test row is misclassified."
        return self._gallery(order, budget, "Most confident mistakes", note)

    def doubtful(self, budget: int) -> Gallery:
        """The rows for which another class than the label is more probable."""
        assert self.labels is not None
        disputed = rank(self.labels, self.probabilities).disputed
        note = (
            "Labels for which the run finds another class more probable, most suspicious first. In-sample: the network was "
            "trained on these labels, which hides some mistakes."
            if len(disputed)
            else "The run's predictions contradict no label."
        )
        return self._gallery(disputed, budget, "Labels that look wrong", note)

    def _gallery(self, order: NDArray[np.int64], budget: int, title: str, note: str) -> Gallery:
        return gallery(
            self.data,
            self.rows[order],
            self.predicted[order],
            None if self.labels is None else self.labels[order],
            lambda place: self._measure(int(order[place])),
            budget=budget,
            test=self.is_test,
            title=title,
            note=note,
            given_word="" if self.labels is None else "true" if self.is_test else "given",
        )

    def _measure(self, place: int) -> str:
        varied = np.nan if self.deviation is None else self.deviation[place]
        probability = percent(float(self.probabilities[place].max()))
        return probability if np.isnan(varied) else f"{probability} ± {100 * varied:.0f} %"


def percent(share: float) -> str:
    """
    >>> percent(0.934), percent(0.99987)
    ('93 %', '> 99.9 %')
    """
    return "> 99.9 %" if share > 0.999 else f"{100 * share:.0f} %" if share < 0.99 else f"{100 * share:.1f} %"
