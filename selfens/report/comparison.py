"""Several runs side by side: one chart, one table, one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfens.config import SeedConfig, TrainingConfig
from selfens.report import figures
from selfens.report.details import data_words, history_of, method_words
from selfens.report.figures import Chart, Record
from selfens.report.render import shown
from selfens.runs.run import Run
from selfens.training.progress import duration

QUANTITIES = {
    "test_error": ("test error", "test rows in the wrong class, %"),
    "validation_error": ("validation error", "validation rows in the wrong class, %"),
    "supervised": ("supervised loss", "supervised loss"),
}
IN_THE_SENTENCE = 6


@dataclass(frozen=True, kw_only=True)
class Comparison:
    sentence: str
    cautions: tuple[str, ...]
    chart: Chart
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def compare(runs: Mapping[str, Run]) -> Comparison:
    """What the runs, by the names to show, have in common and in which they differ."""
    histories = {name: history_of(run) for name, run in runs.items()}
    last = {name: history[-1] for name, history in histories.items()}
    quantity = next(key for key in QUANTITIES if sum(record.get(key) is not None for record in last.values()) > 1)
    word, axis = QUANTITIES[quantity]
    compared = {name: run for name, run in runs.items() if last[name].get(quantity) is not None}
    groups = _groups(compared, histories)
    results = {label: [float(last[name][quantity]) for name in names] for label, names in groups.items()}
    chart = figures.comparison_chart(
        {label: [histories[name] for name in names] for label, names in groups.items()}, quantity, axis
    )
    headers, rows = _table(runs, histories)
    return Comparison(
        sentence=_sentence(compared, word, results, "" if quantity == "supervised" else " %"),
        cautions=(
            *_left_out(runs, compared, word),
            *(_different_tests(runs, groups) if quantity == "test_error" else ()),
        ),
        chart=replace(chart, title=f"{word[0].upper()}{word[1:]} per epoch"),
        headers=headers,
        rows=rows,
    )


def _groups(runs: Mapping[str, Run], histories: Mapping[str, Sequence[Record]]) -> dict[str, list[str]]:
    """The names of runs that differ in nothing but the seed, under one label.

    A run that was stopped, or that repeats a seed, stays alone: with others it would make a mean of nothing in particular.
    """
    alike: dict[Any, list[str]] = {}
    for name, run in runs.items():
        config = replace(run.config, seed=SeedConfig(), training=_what_matters(run.config.training))
        same = alike.setdefault(config, [])
        finished = len(histories[name]) >= run.config.schedule.epochs
        repeated = any(runs[other].config.seed == run.config.seed for other in same)
        (same if finished and not repeated else alike.setdefault(name, [])).append(name)
    found = [names for names in alike.values() if names]
    methods = [method_words(runs[names[0]]) for names in found]
    groups = {}
    for names, method in zip(found, methods, strict=True):
        groups[_group_name(names, method if methods.count(method) == 1 else None, runs, histories)] = names
    return groups


def _group_name(
    names: Sequence[str], method: str | None, runs: Mapping[str, Run], histories: Mapping[str, Sequence[Record]]
) -> str:
    """A run's own name; several go by their method, or, where others have the same one, by the first of them."""
    first, others = names[0], len(names) - 1
    if not others:
        return f"{shown(first)}{_epochs_missing(runs[first], histories[first])}"
    return f"{method} ({len(names)} runs)" if method else f"{shown(first)} and {others} other seed{'s' * (others > 1)}"


def _epochs_missing(run: Run, history: Sequence[Record]) -> str:
    done, asked = len(history), run.config.schedule.epochs
    return "" if done >= asked else f" ({done} of {asked} epochs)"


def _what_matters(training: TrainingConfig) -> TrainingConfig:
    return TrainingConfig(batch_size=training.batch_size, rows=training.rows)


def _sentence(runs: Mapping[str, Run], word: str, results: Mapping[str, Sequence[float]], unit: str) -> str:
    data = sorted({data_words(run) for run in runs.values()})
    where = f" on {data[0]}" if len(data) == 1 else ""
    best = sorted(results, key=lambda label: statistics.mean(results[label]))
    parts = [f"{label} {_spread(results[label])}{unit}" for label in best[:IN_THE_SENTENCE]]
    more = f" and {len(best) - IN_THE_SENTENCE} others above" if len(best) > IN_THE_SENTENCE else ""
    return f"{word[0].upper()}{word[1:]} of {len(runs)} runs{where}, after the last epoch: {', '.join(parts)}{more}."


def _left_out(runs: Mapping[str, Run], compared: Mapping[str, Run], word: str) -> list[str]:
    without = [shown(name) for name in runs if name not in compared]
    return [f"Without a {word}: {', '.join(without)}."] if without else []


def _different_tests(runs: Mapping[str, Run], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """A caution where the means are not over the same test rows, as far as the runs know."""
    tested = [{runs[name].about.get("test_fingerprint") for name in names} for names in groups.values()]
    if any(None in rows for rows in tested) or all(rows == tested[0] for rows in tested):
        return []
    return ["Not all were tested on the same rows, so a part of their difference may be that of the rows."]


def _spread(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _table(
    runs: Mapping[str, Run], histories: Mapping[str, Sequence[Record]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """One line per run; columns that are empty, or data that is the same for all, are left out."""
    headers = (
        "run",
        "data",
        "test error %",
        "test rows",
        "validation error %",
        "method",
        "labels",
        "seed",
        "epochs",
        "time",
    )
    rows = [_table_row(name, run, histories[name]) for name, run in runs.items()]
    one_source = len({row[1] for row in rows}) == 1
    kept = [
        column
        for column, header in enumerate(headers)
        if any(row[column] for row in rows) and not (header == "data" and one_source)
    ]
    return tuple(headers[column] for column in kept), tuple(tuple(row[column] for column in kept) for row in rows)


def _table_row(name: str, run: Run, history: Sequence[Record]) -> tuple[str, ...]:
    test, validation = (history[-1].get(key) for key in ("test_error", "validation_error"))
    done, asked = len(history), run.config.schedule.epochs
    return (
        shown(name),
        data_words(run),
        "" if test is None else f"{test:.2f}",
        "" if test is None else f"{run.about.get('test_rows', 0):,}",
        "" if validation is None else f"{validation:.2f}",
        method_words(run),
        f"{len(run.labels.rows):,}",
        str(run.config.seed.base),
        str(done) if done == asked else f"{done} of {asked}",
        duration(sum(record.get("seconds", 0.0) for record in history)),
    )
