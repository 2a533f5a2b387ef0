"""Everything that a report shows of one run: a sentence, charts, galleries, and what is missing and why."""

import shlex
from contextlib import suppress
from typing import Any

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.sources.base import PathOptions
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import RunError, SelfensError, plural, root_cause
from selfens.report import figures
from selfens.report.figures import Chart, Values
from selfens.report.gallery import (
    MAX_ENTRIES,
    Gallery,
    audit_gallery,
    evidence_galleries,
    inspection_gallery,
    novelty_gallery,
    suggestions_gallery,
)
from selfens.report.render import shown
from selfens.runs.evidence import Evidence
from selfens.runs.history import ERRORS, FIELDS, TOTAL, History, total_seconds
from selfens.runs.run import Run
from selfens.runs.statistics import interval
from selfens.tools import audit
from selfens.tools.comparison import Comparison, comparison_of, one_class_of
from selfens.tools.folds import default_folds
from selfens.tools.measure import evidence_on_test_rows, measure, wants_measuring
from selfens.training.progress import duration

PART_TITLES = {"unsupervised": "Unsupervised loss", "kept": "Share of targets that are confident enough to learn"}
"""Titles of the charts of some parts of the loss."""
LOSSES = ("supervised", TOTAL)
LITE = "timm:tf_efficientnet_lite0"  # a backbone that suits most photos
WIDE = 10.0  # percentage points; an interval this wide calls for more labels


def details(run: Run, dataset: Dataset | None, baselines: bool | None = None) -> dict[str, Any]:
    """Return the values of the template for one run. The dataset is loaded if it is not given."""
    history = reported_history(run)
    facts, missing, warning = _facts(run, history), "", ""
    charts, galleries, inspected = list[Chart](), list[Gallery](), list[str]()
    try:
        data = run.data(dataset)
        facts += "".join(f"; {shown(text)}" for text in (str(data.encoder), run.config.source.summary) if text)
        if wants_measuring(run, baselines):
            try:
                measure(run, can_train=False)
            except Exception as error:  # must not fail the page
                missing = shown(f"The comparison with simple methods is missing: {root_cause(error)}")
        evidence = run.evidence
        if evidence is None and len(data.test_labels):
            evidence = evidence_on_test_rows(run, with_baselines=False)
        charts, galleries = _charts_and_galleries(run, data, evidence)
        inspected = [] if run.inspection is None else list(map(shown, run.inspection.lines(data.dataset)))
        warning = shown(one_class_of(run))
    except SelfensError as error:
        missing = shown(f"Confusion matrix, calibration and galleries are missing: {error}")
    comparison = comparison_of(run) if baselines is not False else None
    return {
        "name": shown(run.path.absolute().name),
        "sentence": _sentence(run, history),
        "comparison": comparison,
        "facts": facts,
        "missing": missing,
        "warning": warning,
        "inspected": inspected,
        "headline": _headline(run.evidence),
        "next_step": _next_step(run, comparison),
        "curves": _curves(history),
        "tests": charts,
        "galleries": galleries,
        "settings": run.config.to_json(),
    }


def reported_history(run: Run) -> History:
    """Return the epochs up to the checkpoint, because its weights are shown; all epochs if it cannot be read."""
    records = run.history
    with suppress(RunError):
        records = records[: run.directory.position()[0] or None]
    if not records:
        raise RunError(f"{run.path} has not finished an epoch yet, so there is nothing to report; resume it first.")
    return records


def _curves(history: History) -> list[Chart]:
    """Chart everything that was recorded: one chart of errors, one of losses, and one of each other value that changes."""
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
    """Describe the result. A run that was stopped may have trained some epochs after its last evaluation."""
    measured = (n for n, record in enumerate(history, 1) if any(record.get(key) is not None for key in ERRORS))
    number = max(measured, default=len(history))
    record, tested, held_out = history[number - 1], run.info.test_rows, len(run.labels.validation)
    if record.get("test_error") is not None:
        result = f"{record['test_error']:.2f} % of {tested:,} test rows misclassified"
        low, high = interval(record["test_error"] / 100 * tested, tested)
        result += f" (90 % interval {low:.1f} to {high:.1f})"
    elif record.get("validation_error") is not None:
        result = f"{record['validation_error']:.2f} % of {held_out:,} validation rows misclassified"
    else:
        result = f"loss {record[TOTAL]:.4f}, {'not evaluated yet' if tested or held_out else 'no test rows'}"
    about = f"{data_words(run)}, {len(run.labels.rows):,} of {run.info.rows:,} rows labeled, {method_words(run)}"
    more = "" if number == len(history) else f"; {len(history):,} are done"
    return f"{about}: {result} after {number:,} of {run.config.schedule.epochs:,} epochs{more}."


def _headline(evidence: Evidence | None) -> tuple[str, str] | None:
    """Return the number that a reader came for, and what it means."""
    if evidence is None:
        return None
    (low, high), rows = (
        evidence.error_interval,
        f"{len(evidence.wrong):,} {'labeled' if evidence.folds else 'test'} rows",
    )
    share = f"of rows that it has not seen are misclassified: {low:.0f} to {high:.0f}\u00a0% with 90\u00a0% certainty"
    return f"{evidence.error:.1f}\u00a0%", f"{share}, measured on {rows}."


def _next_step(run: Run, comparison: Comparison | None) -> tuple[str, str]:
    """Return what to do next, and its command, if there is one: what is wrong with the data, before what is with the model."""
    if run.inspection is not None and run.inspection.conflicts:
        groups = plural(len(run.inspection.conflicts), "group")
        return f"Next, correct {groups} of copies or look-alikes with different labels, and train again", ""

    def command(name: str, rest: str) -> str:
        trust = " --trust-code" if run.code else ""
        return shown(f"selfens {name} {shlex.quote(str(run.path.absolute()))} {rest}{trust}")

    unlabeled, is_own = run.info.rows - len(run.labels.rows), run.info.custom_network or run.info.custom_method
    folds = 0 if run.was_passed_data or is_own else default_folds(run.labels.labels)
    if run.evidence is None and not run.config.source.is_public and folds > 1:
        return "Next, measure its error", command("evaluate", f"--folds {folds}")
    source, is_worse = run.config.source, comparison is not None and comparison.is_worse
    is_plain = comparison is not None and comparison.is_images and run.frozen is None
    if is_plain and is_worse and isinstance(source, PathOptions):
        train = f"selfens train {shlex.quote(source.title)} --backbone {LITE}"
        return "Next, try features of a pretrained network", shown(train)
    if run.evidence is not None and unlabeled and not run.was_passed_data:
        low, high = run.evidence.error_interval
        if high - low > WIDE:
            return "More labels improve it, and make the number above more certain", command("suggest", "-n 50")
    if comparison is not None and is_worse:
        return f"Next, {comparison.advice}", ""
    return "Next, predict", command("predict", "INPUT -o out.csv")


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


def _charts_and_galleries(
    run: Run, data: EncodedDataset, evidence: Evidence | None
) -> tuple[list[Chart], list[Gallery]]:
    """Return charts of predictions for rows that the model has not seen, and galleries."""
    charts, galleries = list[Chart](), list[Gallery]()
    found = None if run.inspection is None else inspection_gallery(run.inspection, data)
    if found is not None and found.total:
        galleries.append(found)
    if (audit.run_labels(run) == UNLABELED).any():
        galleries.append(suggestions_gallery(audit.suggest_run(run, MAX_ENTRIES), data))
    if evidence is not None:
        labels, predicted = evidence.labels, evidence.probabilities.argmax(axis=1)
        counted = evidence.counted
        charts = [
            figures.confusion_chart(labels[counted], predicted[counted], data.classes),
            figures.reliability_chart(evidence),
            figures.answered_chart(evidence),
        ]
        galleries += evidence_galleries(evidence, data)
    is_in_sample = evidence is None or not evidence.folds
    ranked = audit.audit_run(run) if evidence is None or is_in_sample else audit.audit_evidence(evidence)
    how = "Each label was judged by a model that was not trained on it."
    if is_in_sample:
        how = "In-sample: the network was trained on these labels, which hides mistakes; selfens audit judges them fairly."
    how = f"{how} {audit.warning(ranked, run.test_error)}".strip()
    galleries.append(audit_gallery(ranked, data, how, is_in_sample=is_in_sample))
    if run.novelty is not None:
        galleries.append(novelty_gallery(run.novelty, data))
    return charts, galleries
