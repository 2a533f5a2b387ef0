"""Everything that a report shows of one run: a sentence, charts, galleries, and what is missing and why."""

from contextlib import suppress
from typing import Any

import numpy as np

from selfens.data.dataset import UNLABELED, Dataset
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import RunError, SelfensError, plural, root_cause
from selfens.report import figures
from selfens.report.figures import Chart, Values
from selfens.report.gallery import MAX_ENTRIES, Gallery, audit_gallery, mistakes_gallery, suggestions_gallery
from selfens.report.render import shown
from selfens.runs.history import ERRORS, FIELDS, TOTAL, History, total_seconds
from selfens.runs.run import Run
from selfens.tools import audit
from selfens.tools.baselines import compare_run, one_class_of
from selfens.training.progress import duration

PART_TITLES = {"unsupervised": "Unsupervised loss", "kept": "Share of the targets that are learned"}
"""Titles of the charts of some parts of the loss."""
LOSSES = ("supervised", TOTAL)


def details(run: Run, dataset: Dataset | None, baselines: bool | None = None) -> dict[str, Any]:
    """Return what the template shows of a run; the dataset is loaded if it is not given."""
    history = reported_history(run)
    facts, missing, warning, comparison = _facts(run, history), "", "", None
    charts, galleries = list[Chart](), list[Gallery]()
    try:
        data = run.data(dataset)
        facts += "".join(f"; {shown(text)}" for text in (str(data.encoder), run.config.source.summary) if text)
        charts, galleries = _charts_and_galleries(run, data)
        warning = shown(one_class_of(run))
    except SelfensError as error:
        missing = shown(f"Confusion matrix, calibration and galleries are missing: {error}")
    try:
        comparison = compare_run(run, baselines, can_load=not missing)
    except Exception as error:  # a comparison must not fail the page
        missing = shown(f"The comparison with the baselines is missing: {root_cause(error)}")
    return {
        "name": shown(run.path.absolute().name),
        "sentence": _sentence(run, history),
        "comparison": comparison,
        "facts": facts,
        "missing": missing,
        "warning": warning,
        "untested": not run.info.test_rows,
        "curves": _curves(history),
        "tests": charts,
        "galleries": galleries,
        "settings": run.config.to_json(),
    }


def reported_history(run: Run) -> History:
    """Return the epochs up to the checkpoint, whose weights are shown; all of them if it cannot be read."""
    records = run.history
    with suppress(RunError):
        records = records[: run.directory.position()[0] or None]
    if not records:
        raise RunError(f"{run.path} has not finished an epoch yet, so there is nothing to report; resume it first.")
    return records


def _curves(history: History) -> list[Chart]:
    """Chart everything that was recorded: errors and losses together, anything else that changes by itself."""
    keys = dict.fromkeys(key for record in history for key in record if FIELDS.get(key, key))
    every: dict[str, Values] = {key: [record.get(key) for record in history] for key in keys}
    charts = {
        "Error, %": {word: [every[key]] for key, word in ERRORS.items() if set(every.get(key, ())) - {None}},
        "Losses": {key: [every[key]] for key in LOSSES if key in every},
    }
    for key, values in every.items():
        title = FIELDS.get(key) or PART_TITLES.get(key)
        if key not in (*ERRORS, *LOSSES) and len(set(values)) > 1:
            charts[title or shown(key.replace("_", " "), 60).capitalize()] = {"": [values]}
    return [figures.epochs_chart(title, groups) for title, groups in charts.items() if groups]


def _sentence(run: Run, history: History) -> str:
    """Say how the run did; one that was stopped may have continued for some epochs after its last evaluation."""
    measured = (n for n, record in enumerate(history, 1) if any(record.get(key) is not None for key in ERRORS))
    number = max(measured, default=len(history))
    record, tested, held_out = history[number - 1], run.info.test_rows, len(run.labels.validation)
    if record.get("test_error") is not None:
        result = f"{record['test_error']:.2f} % of {tested:,} test rows misclassified"
        if run.error_margin is not None:
            result += f" (with so few rows, accurate to about {run.error_margin:.0f} points)"
    elif record.get("validation_error") is not None:
        result = f"{record['validation_error']:.2f} % of {held_out:,} validation rows misclassified"
    else:
        result = f"loss {record[TOTAL]:.4f}, {'not evaluated yet' if tested or held_out else 'no test rows'}"
    about = f"{data_words(run)}, {len(run.labels.rows):,} of {run.info.rows:,} rows labeled, {method_words(run)}"
    more = "" if number == len(history) else f"; {len(history):,} are done"
    return f"{about}: {result} after {number:,} of {run.config.schedule.epochs:,} epochs{more}."


def method_words(run: Run) -> str:
    return "a custom method" if run.info.custom_method else run.config.method.name


def data_words(run: Run) -> str:
    """Return the name of the data, or the last part of its path."""
    return shown(run.info.data.rstrip("/").rpartition("/")[2], 60)


def _facts(run: Run, history: History) -> str:
    info = run.info
    network = "a custom network" if info.custom_network else shown(run.config.network.name)
    network += f" on {shown(run.config.encoder.summary)}" if run.config.encoder.summary else ""
    device = shown(str(info.environment.get("device")))
    skipped = f", {plural(len(info.skipped), 'unreadable file')} left out (run.json lists them)" if info.skipped else ""
    seconds = duration(total_seconds(history))
    about = f"{network} with {info.parameters:,} parameters, seed {run.config.seed.base}, {seconds} on {device}"
    return f"{shown(str(run.path))}: {about}{skipped}" + (f"; {shown(info.note)}" if info.note else "")


def _charts_and_galleries(run: Run, data: EncodedDataset) -> tuple[list[Chart], list[Gallery]]:
    """Return charts of the test rows, and galleries."""
    ranked = audit.audit_run(run)
    how = "In-sample: the network was trained on these labels, which hides some mistakes."
    suspicious = audit_gallery(ranked, data, f"{how} {audit.warning(ranked, run.test_error)}".strip())
    if not len(data.test_labels):
        if not (audit.run_labels(run) == UNLABELED).any():
            return [], [suspicious]
        return [], [suggestions_gallery(audit.suggest_run(run, MAX_ENTRIES), data), suspicious]
    labels, probabilities = data.test_labels, run.test_probabilities
    charts = [
        figures.confusion_chart(labels, probabilities.argmax(axis=1), data.classes),
        figures.reliability_chart(labels, probabilities),
    ]
    uncertain = audit.suggest(np.full(len(labels), UNLABELED), probabilities, MAX_ENTRIES)
    least_certain = suggestions_gallery(uncertain, data, test=True)
    return charts, [least_certain, mistakes_gallery(data, probabilities), suspicious]
