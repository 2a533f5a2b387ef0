"""Several runs side by side: one sentence, one chart, one table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfens.report.details import Record, data_words, history_of, method_words, number, time_words, values_of
from selfens.report.figures import Chart, comparison_chart
from selfens.report.render import shown
from selfens.runs.experiment import decisive_fields
from selfens.runs.run import Run

QUANTITIES = {"test_error": "test error", "validation_error": "validation error", "supervised": "supervised loss"}
"""What runs are compared by: the first that at least two of them have."""
IN_THE_SENTENCE = 6


@dataclass(frozen=True, kw_only=True)
class Comparison:
    sentence: str
    cautions: tuple[str, ...]
    chart: Chart
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Compared:
    """A run, the name to show, and its epochs."""

    name: str
    run: Run
    history: Sequence[Record]

    @property
    def is_complete(self) -> bool:
        return len(self.history) >= self.run.config.schedule.epochs

    @property
    def epochs(self) -> str:
        done, asked = len(self.history), self.run.config.schedule.epochs
        return f"{done:,}" if self.is_complete else f"{done:,} of {asked:,}"

    def last(self, key: str) -> float | None:
        return number(self.history[-1], key)


def compare(runs: Mapping[str, Run]) -> Comparison:
    """What the runs, by the names to show, have in common and how they differ."""
    every = [Compared(name, run, history_of(run)) for name, run in runs.items()]
    quantity = next(key for key in QUANTITIES if sum(each.last(key) is not None for each in every) > 1)
    words = QUANTITIES[quantity]
    measured = [each for each in every if each.last(quantity) is not None]
    groups = _labelled(_groups(measured))
    lines = {label: [values_of(each.history, quantity) for each in group] for label, group in groups.items()}
    unit = "" if quantity == "supervised" else ", %"
    table = [_table_row(each) for each in every]
    headers = [header for header in table[0] if _is_worth_a_column(header, [row[header] for row in table])]
    return Comparison(
        sentence=_sentence(groups, quantity),
        cautions=(
            *_unmeasured(every, measured, words),
            *(_different_tests(groups) if quantity == "test_error" else ()),
        ),
        chart=comparison_chart(f"{words.capitalize()} per epoch", lines, f"{words}{unit}"),
        headers=tuple(headers),
        rows=tuple(tuple(row[header] for header in headers) for row in table),
    )


def _groups(runs: Sequence[Compared]) -> list[list[Compared]]:
    """The runs, those together that differ only in the seed.

    A run that was stopped, or that repeats a seed, stays by itself: its error does not belong in a mean over seeds.
    """
    groups: dict[str, list[Compared]] = {}
    for each in runs:
        config, about = each.run.config, each.run.about
        own = [about[f"own_{part}"] for part in ("data", "network", "method")]  # of these a config knows nothing
        alike = f"{decisive_fields(config, with_seed=False)} {own}"
        is_repeated = any(other.run.config.seed == config.seed for other in groups.get(alike, ()))
        groups.setdefault(alike if each.is_complete and not is_repeated else each.name, []).append(each)
    return list(groups.values())


def _labelled(groups: Sequence[list[Compared]]) -> dict[str, list[Compared]]:
    """One run goes by its name; several by their method or, if other groups have the same one, by the first of them."""
    methods = [method_words(group[0].run) for group in groups]
    labelled = {}
    for group, method in zip(groups, methods, strict=True):
        first = group[0]
        label = shown(first.name) if first.is_complete else f"{shown(first.name)} ({first.epochs} epochs)"
        others = len(group) - 1
        if others and methods.count(method) == 1:
            label = f"{method} ({len(group)} runs)"
        elif others:
            label += f" and {others} other seed{'s' * (others > 1)}"
        labelled[label] = group
    return labelled


def _sentence(groups: Mapping[str, Sequence[Compared]], quantity: str) -> str:
    runs = [each.run for group in groups.values() for each in group]
    data = {data_words(run) for run in runs}
    on = f" on {data.pop()}" if len(data) == 1 else ""
    unit = "" if quantity == "supervised" else " %"
    results = {label: [each.last(quantity) or 0.0 for each in group] for label, group in groups.items()}
    best = sorted(results, key=lambda label: statistics.mean(results[label]))
    parts = [f"{label} {_mean_and_deviation(results[label])}{unit}" for label in best[:IN_THE_SENTENCE]]
    more = f", and {len(best) - IN_THE_SENTENCE} more above these" if len(best) > IN_THE_SENTENCE else ""
    words = QUANTITIES[quantity].capitalize()
    return f"{words} of {len(runs):,} runs{on}, after the last epoch: {', '.join(parts)}{more}."


def _mean_and_deviation(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _unmeasured(runs: Sequence[Compared], measured: Sequence[Compared], words: str) -> list[str]:
    without = [shown(each.name) for each in runs if each not in measured]
    return [f"Without a {words}, and so not in the chart: {', '.join(without)}."] if without else []


def _different_tests(groups: Mapping[str, Sequence[Compared]]) -> list[str]:
    """A caution if the means are known to be over different test rows."""
    tested = [{each.run.about.get("test_fingerprint") for each in group} for group in groups.values()]
    if any(None in rows for rows in tested) or all(rows == tested[0] for rows in tested):
        return []
    return ["The runs were not all tested on the same rows, which may explain part of their difference."]


def _table_row(each: Compared) -> dict[str, str]:
    run, test, validation = each.run, each.last("test_error"), each.last("validation_error")
    return {
        "run": shown(each.name),
        "data": data_words(run),
        "test error %": "" if test is None else f"{test:.2f}",
        "test rows": "" if test is None else f"{run.about.get('test_rows', 0):,}",
        "validation error %": "" if validation is None else f"{validation:.2f}",
        "method": method_words(run),
        "labels": f"{len(run.labels.rows):,}",
        "seed": str(run.config.seed.base),
        "epochs": each.epochs,
        "time": time_words(each.history),
    }


def _is_worth_a_column(header: str, texts: Sequence[str]) -> bool:
    """Not if it is empty, and not the data if all runs have the same."""
    return any(texts) and not (header == "data" and len(set(texts)) == 1)
