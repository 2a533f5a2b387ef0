"""All that a report shows of one run: a sentence, charts, galleries, and what is missing and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from selfens.data.dataset import UNLABELED, Dataset
from selfens.errors import RunError, SelfensError, root_cause
from selfens.report import figures, measures
from selfens.report.figures import Chart, Values
from selfens.report.gallery import MAX_ENTRIES, Gallery, audit_gallery, mistakes_gallery, suggestions_gallery
from selfens.report.render import shown
from selfens.runs.run import Run
from selfens.tools.audit import audit_run, doubt, run_labels, suggest, suggest_run
from selfens.tools.baselines import one_class, one_class_of, stored, verdict_of
from selfens.training.progress import duration

TITLES = {
    "unsupervised": "Unsupervised loss",
    "kept": "Share of the targets that are learned",
    "weight": "Weight of the unsupervised loss",
    "beta1": "Adam's β1",
    (SPEED := "images_per_second"): "Rows per second",
}
ERRORS, LOSSES = {"test_error": "test", "validation_error": "validation"}, ("supervised", "total")
NOT_DRAWN = ("epoch", "seconds", SPEED)

History = Sequence[dict[str, Any]]


def details(run: Run, dataset: Dataset | None, baselines: bool | None = None) -> dict[str, Any]:
    """What the template shows of a run; the data set is loaded if it is not given."""
    history, verdict = history_of(run), None if baselines is False else stored(run)
    facts = _facts(run, history)
    try:
        data = dataset or run.dataset()
        facts += "" if data.columns is None else f"; {shown(str(data.columns))}"
        rows, missing = _charts_and_galleries(run, data), ""
    except SelfensError as error:
        rows, missing = ([], [], ""), shown(f"Confusion matrix, calibration and galleries are missing: {error}")
    try:
        verdict = verdict or (None if missing else verdict_of(run, data, baselines))
    except Exception as error:  # a comparison must not fail the page
        missing = shown(f"The comparison with the baselines is missing: {root_cause(error)}")
    return {
        "name": shown(run.path.absolute().name),
        "sentence": _sentence(run, history),
        "verdict": verdict,
        "facts": facts,
        "missing": missing,
        "doubts": rows[2],
        "untested": not run.about["test_rows"],
        "curves": _curves(history),
        "tests": rows[0],
        "galleries": rows[1],
        "settings": run.config.to_json().encode("utf-8", "replace").decode(),
    }


# The history


def history_of(run: Run) -> History:
    """The finished epochs up to the checkpoint, whose weights are shown; all of them if there is no checkpoint to read."""
    try:
        epochs = run.directory.reached()[0]
    except RunError:
        epochs = 0
    records = run.history[: epochs or None]
    if not records:
        raise RunError(f"{run.path} has not finished an epoch yet, so there is nothing to report; resume it first.")
    return records


def _curves(history: History) -> list[Chart]:
    """Charts of all numbers that were recorded: errors and losses together, anything else that changes by itself; and of the
    speed, if that makes their number even."""
    keys = dict.fromkeys(key for record in history for key in record if key not in NOT_DRAWN)
    every: dict[str, Values] = {key: [record.get(key) for record in history] for key in keys}
    charts = {
        "Error, %": {word: [every[key]] for key, word in ERRORS.items() if set(every.get(key, ())) - {None}},
        "Losses": {key: [every[key]] for key in LOSSES if key in every},
    }
    others = {key: values for key, values in every.items() if key not in (*ERRORS, *LOSSES)}
    changing = {key: values for key, values in others.items() if len(set(values)) > 1}
    if (len(changing) + bool(charts["Error, %"])) % 2 == 0:  # with the losses an odd number; no chart stands alone
        changing[SPEED] = [record.get(SPEED) for record in history]
    for key, values in changing.items():
        charts[TITLES.get(key) or shown(key.replace("_", " "), 60).capitalize()] = {"": [values]}
    return [figures.epochs_chart(title, groups) for title, groups in charts.items() if groups]


# In words


def _sentence(run: Run, history: History) -> str:
    """A run that was stopped may have gone on for some epochs after it was last evaluated."""
    evaluated = [
        number for number, record in enumerate(history, 1) if any(record.get(key) is not None for key in ERRORS)
    ]
    number = evaluated[-1] if evaluated else len(history)
    last, tested, held_out = history[number - 1], run.about.get("test_rows", 0), len(run.labels.validation)
    if last.get("test_error") is not None:
        result = f"{last['test_error']:.2f} % of {tested:,} test rows misclassified"
        if run.error_margin is not None:
            result += f" (with so few rows, accurate to about {run.error_margin:.0f} points)"
    elif last.get("validation_error") is not None:
        result = f"{last['validation_error']:.2f} % of {held_out:,} validation rows misclassified"
    else:
        result = f"loss {last['total']:.4f}, {'not evaluated yet' if tested or held_out else 'no test rows'}"
    about = f"{data_words(run)}, {len(run.labels.rows):,} of {run.about['rows']:,} rows labeled, {method_words(run)}"
    more = "" if number == len(history) else f"; {len(history):,} are done"
    return f"{about}: {result} after {number:,} of {run.config.schedule.epochs:,} epochs{more}."


def method_words(run: Run) -> str:
    return "a method of your own" if run.about["own_method"] else run.config.method.name


def data_words(run: Run) -> str:
    """A named data set, or the last part of a path."""
    return shown(str(run.about.get("data", run.config.data.name)).rstrip("/").rpartition("/")[2], 60)


def _facts(run: Run, history: History) -> str:
    network = "a module of your own" if run.about["own_network"] else shown(run.config.network.name)
    if run.config.data.backbone is not None:
        network += f" on features of {shown(run.config.data.backbone)}"
    size, device = f"{run.about.get('parameters', 0):,} parameters", shown(str(run.about["environment"].get("device")))
    seed, unreadable = run.config.seed.base, len(run.about.get("unreadable", []))
    left_out = (
        f", {unreadable:,} unreadable file{'s' * (unreadable > 1)} left out (run.json lists them)" if unreadable else ""
    )
    about = f"{network} with {size}, seed {seed}, {time_words(history)} on {device}{left_out}"
    note = str(run.about.get("note") or "")
    return f"{shown(str(run.path))}: {about}" + (f"; {shown(note)}" if note else "")


def time_words(history: History) -> str:
    return duration(sum(record.get("seconds") or 0.0 for record in history))


# Rows


def _charts_and_galleries(run: Run, data: Dataset) -> tuple[list[Chart], list[Gallery], str]:
    """The charts of the test rows, the galleries, and what is wrong with the model in words."""
    audit = audit_run(run, data)
    how = "In-sample: the network was trained on these labels, which hides some mistakes."
    suspicious = audit_gallery(audit, data, f"{how} {doubt(audit, run.test_error)}".strip())
    if not len(data.test_labels):
        words = shown(one_class_of(run, data))
        if (run_labels(run) != UNLABELED).all():
            return [], [suspicious], words
        suggestions = suggestions_gallery(suggest_run(run, MAX_ENTRIES, data), data, "Rows to label next")
        return [], [suggestions, suspicious], words
    labels, probabilities = data.test_labels, run.test_probabilities(data)
    charts = [
        figures.confusion_chart(measures.confusion(labels, probabilities), data.classes),
        figures.reliability_chart(measures.calibration(labels, probabilities)),
    ]
    uncertain = suggest(np.full(len(labels), UNLABELED), probabilities, MAX_ENTRIES)
    shown_first = suggestions_gallery(uncertain, data, "Most uncertain test rows", test=True)
    words = shown(one_class(probabilities.argmax(axis=1), labels, data.classes))
    return charts, [shown_first, mistakes_gallery(data, probabilities), suspicious], words
