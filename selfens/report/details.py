"""All that a report shows of one run: a sentence, charts, galleries, and what is missing and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.rows import Source
from selfens.errors import RunError, SelfensError
from selfens.report import figures, measures
from selfens.report.figures import Chart, Record
from selfens.report.gallery import Entry, Gallery, gallery
from selfens.report.render import shown
from selfens.runs.run import Run
from selfens.tools.audit import Probabilities, rank, run_labels, uncertainty_of
from selfens.training.progress import duration

METHODS = {"supervised": "supervised training", "pi": "the Π-model", "temporal": "temporal ensembling"}
MOST_FILES_NAMED = 10
NEEDED = ("epoch", "supervised", "unsupervised", "total", "weight", "learning_rate")


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


def history_of(run: Run) -> Sequence[Record]:
    """The finished epochs; a run without any has nothing to show."""
    history = [record for record in run.history if isinstance(record, dict) and all(key in record for key in NEEDED)]
    if not history:
        raise RunError(
            f"{run.path} has not finished an epoch yet, so there is nothing to report; go on with 'selfens resume {run.path}'."
        )
    return history


def details(run: Run, dataset: Dataset | None, source: str | Path | None, name: str, budget: int) -> Details:
    """What there is to say about a run.

    dataset  what it was trained on, where that is in memory; otherwise it is loaded
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
        tests, galleries = _looked_at(run, data, name, budget)
    except SelfensError as error:
        missing.append(f"Confusion matrix, calibration and galleries are missing: {_plain_sentence(error)}")
    else:
        if not tests:
            missing.append("There are no test rows, so there is no confusion matrix and no calibration.")
    curves = [
        figures.error_chart(history, name),
        figures.loss_chart(history, name),
        figures.rates_chart(history, name),
        figures.variance_chart(history, name),
    ]
    return Details(
        name=shown(name),
        sentence=_sentence(run, history),
        facts=_facts(run, history),
        missing=tuple(missing),
        curves=tuple(chart for chart in curves if chart),
        tests=tuple(tests),
        galleries=tuple(galleries),
        settings=shown_settings(run),
    )


# In words


def _unreadable(run: Run) -> list[str]:
    files = run.about.get("unreadable", [])
    more = f" and {len(files) - MOST_FILES_NAMED} more, which run.json names" if len(files) > MOST_FILES_NAMED else ""
    return (
        [shown(f"Left out, because they cannot be read: {'; '.join(files[:MOST_FILES_NAMED])}{more}.")] if files else []
    )


def _sentence(run: Run, history: Sequence[Record]) -> str:
    labelled, rows = len(run.labels.rows), run.about["rows"]
    how = f"{method_words(run)}, trained on {data_words(run)} with {labelled:,} of {rows:,} rows labelled,"
    epochs = f"after {_count(len(history), 'epoch')}"
    test, validation = history[-1].get("test_error"), history[-1].get("validation_error")
    if test is not None:
        result = f"puts {test:.2f} % of {run.about.get('test_rows', 0):,} test rows into the wrong class {epochs}"
    elif validation is not None:
        rows_held = len(run.labels.validation)
        result = f"puts {validation:.2f} % of {rows_held:,} validation rows into the wrong class {epochs}"
    else:
        result = (
            f"has come to a supervised loss of {history[-1]['supervised']:.4f} {epochs}; no test rows tell its error"
        )
    sentence = f"{how} {result}."
    return sentence[0].upper() + sentence[1:]


def method_words(run: Run) -> str:
    return (
        "a method of your own"
        if run.about["own_method"]
        else METHODS.get(run.config.method.name, run.config.method.name)
    )


def data_words(run: Run) -> str:
    """A named data set, or the last part of a path."""
    return shown(str(run.about.get("data", run.config.data.name)).rstrip("/").rpartition("/")[2], 60)


def _facts(run: Run, history: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    network = "a module of your own" if run.about["own_network"] else run.config.network.name
    environment = run.about["environment"]
    seconds = sum(record.get("seconds", 0.0) for record in history)
    facts = {
        "run": shown(str(run.path)),
        "network": f"{network}, {run.about.get('parameters', 0):,} parameters",
        "seed": str(run.config.seed.base),
        "trained": f"{duration(seconds)} on {environment.get('device', '?')}",
        "classes": str(len(run.classes)),
    }
    return tuple(facts.items())


def _unfinished(run: Run, history: Sequence[Record]) -> list[str]:
    try:
        run.directory.check_can_go_on()
        asked, kept = run.config.schedule.epochs, run.directory.reached()[0]
    except RunError:
        return []  # it cannot be gone on with; why not is said where its rows would be shown
    notes = []
    if kept < asked:
        notes.append(
            f"This run has done {len(history)} of {asked} epochs; 'selfens resume {shown(str(run.path))}' completes it."
        )
    if 0 < kept < len(history):
        notes.append(f"What is shown of single rows is that of the last checkpoint, after epoch {kept}.")
    return notes


def _plain_sentence(error: SelfensError) -> str:
    return shown(str(error)).rstrip(".") + "."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shown_settings(run: Run) -> str:
    return run.config.to_json().encode("utf-8", "replace").decode()


# Looking at rows


def _looked_at(run: Run, data: Dataset, name: str, budget: int) -> tuple[list[Chart], list[Gallery]]:
    """The charts of the test rows, and the galleries."""
    classes = data.classes
    charts: list[Chart] = []
    galleries: list[Gallery] = []
    known = run_labels(run)
    if len(data.test_labels):
        probabilities = run.test_probabilities(data)
        matrix = measures.confusion(data.test_labels, probabilities.argmax(axis=1), len(classes))
        charts = [
            figures.confusion_chart(matrix, classes, name),
            figures.class_error_chart(matrix, classes, name),
            figures.reliability_chart(measures.calibration(data.test_labels, probabilities), name),
        ]
        every, names = np.arange(len(data.test_labels)), data.test_row_names
        test = Looked(data.test_inputs, every, data.test_labels, probabilities, None, names, classes, budget // 3)
        galleries = [_uncertain_tests(test), _confident_mistakes(test)]
    else:
        unlabeled = np.flatnonzero(known == UNLABELED)
        galleries = [_uncertain_rows(_training_rows(run, data, unlabeled, budget // 2))] if len(unlabeled) else []
    labelled = _training_rows(run, data, np.flatnonzero(known != UNLABELED), budget // 3)
    return charts, [*galleries, _doubtful_labels(labelled)]


def _training_rows(run: Run, data: Dataset, rows: NDArray[np.int64], budget: int) -> Looked:
    """Some of the training rows, as the run sees them: of a large ensemble no more is read than is looked at."""
    made = run.predict_training_rows(data, rows)
    labels = run_labels(run)[rows]
    return Looked(data.inputs, rows, labels, made.probabilities, made.deviation, data.row_names, data.classes, budget)


@dataclass(frozen=True)
class Looked:
    """Rows with what is known and what is predicted of them; all but inputs and files run parallel to `numbers`."""

    inputs: Source
    numbers: NDArray[np.int64]
    labels: Labels
    probabilities: Probabilities
    deviation: NDArray[np.float32] | None
    """By how much the probability of the predicted class has varied over the epochs."""
    files: Sequence[str]
    classes: tuple[str, ...]
    budget: int

    @property
    def predicted(self) -> NDArray[np.int64]:
        return np.asarray(self.probabilities.argmax(axis=1))

    def gallery(self, places: NDArray[np.int64], groups: Labels, **words: Any) -> Gallery:
        """A gallery of the rows at these places, each found under its class of `groups`."""
        return gallery(
            groups[places],
            lambda place: self._entry(int(places[place])),
            self.inputs,
            self.budget,
            classes=self.classes,
            measure_word="probability",
            **words,
        )

    def _entry(self, place: int) -> Entry:
        row, label, best = int(self.numbers[place]), int(self.labels[place]), int(self.probabilities[place].argmax())
        varied = np.nan if self.deviation is None else self.deviation[place]
        return Entry(
            row=row,
            given="" if label == UNLABELED else shown(self.classes[label]),
            predicted=shown(self.classes[best]),
            measure=percent(float(self.probabilities[place, best]))
            + ("" if np.isnan(varied) else f" ± {100 * varied:.0f} %"),
            wrong=label not in (UNLABELED, best),
            file=shown(self.files[row]) if self.files else "",
        )


def percent(share: float) -> str:
    """
    >>> percent(0.934), percent(0.99987)
    ('93 %', '> 99.9 %')
    """
    return "> 99.9 %" if share > 0.999 else f"{100 * share:.0f} %" if share < 0.99 else f"{100 * share:.1f} %"


def _uncertain_tests(test: Looked) -> Gallery:
    order = np.argsort(-uncertainty_of(test.probabilities.astype(np.float64)), kind="stable")
    note = "Test rows whose probabilities are spread most evenly over the classes."
    return test.gallery(order, test.labels, title="Most uncertain", note=note, given_word="true")


def _uncertain_rows(rows: Looked) -> Gallery:
    order = np.argsort(-uncertainty_of(rows.probabilities.astype(np.float64)), kind="stable")
    note = "Unlabeled training rows whose probabilities are spread most evenly over the classes."
    return rows.gallery(order, rows.predicted, title="Most uncertain", note=note, given_word="")


def _confident_mistakes(test: Looked) -> Gallery:
    wrong = np.flatnonzero(test.predicted != test.labels)
    order = wrong[np.argsort(-test.probabilities[wrong].max(axis=1), kind="stable")]
    note = (
        "Test rows put into the wrong class, the surest first."
        if len(order)
        else "No test row is put into the wrong class."
    )
    return test.gallery(order, test.labels, title="Most confident mistakes", note=note, given_word="true")


def _doubtful_labels(rows: Looked) -> Gallery:
    disputed = rank(rows.labels, rows.probabilities).disputed
    note = (
        "Labels in use for which another class is more probable, the most suspicious first. In-sample: the network was trained "
        "on these labels, which hides some mistakes."
        if len(disputed)
        else "No label in use is contradicted by what the run came to predict."
    )
    return rows.gallery(disputed, rows.labels, title="Labels that look wrong", note=note, given_word="given")
