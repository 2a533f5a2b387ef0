"""The comparison of several runs: a sentence, charts, a table."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from selfens.config import decisive_fields
from selfens.errors import plural
from selfens.report.details import data_words, method_words, reported_history
from selfens.report.figures import epochs_chart, results_chart
from selfens.report.render import mean_and_deviation, shown
from selfens.runs.history import TOTAL, History, total_seconds
from selfens.runs.run import Run
from selfens.training.progress import duration

QUANTITIES = {
    "test_error": "test error in %",
    "validation_error": "validation error in %",
    "supervised": "supervised loss",
    TOTAL: "loss",
}
"""Runs are compared by the first of these that at least two of them have measured."""


class Compared(NamedTuple):
    """A run, the name to show, and its epochs."""

    name: str
    run: Run
    history: History

    @property
    def is_complete(self) -> bool:
        return len(self.history) >= self.run.config.schedule.epochs

    @property
    def epochs(self) -> str:
        return f"{len(self.history):,} of {self.run.config.schedule.epochs:,}"

    def last(self, key: str) -> Any:
        """Return the value of the last epoch that has one: not every epoch is evaluated."""
        return next((record[key] for record in reversed(self.history) if record.get(key) is not None), None)


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the values of the template. Runs are named by the last part of their paths if it is unambiguous."""
    last = [run.path.absolute().name for run in runs]
    names = [name if last.count(name) == 1 else str(run.path) for name, run in zip(last, runs, strict=True)]
    every = [Compared(shown(name), run, reported_history(run)) for name, run in zip(names, runs, strict=True)]
    quantity = next(key for key in QUANTITIES if sum(each.last(key) is not None for each in every) > 1)
    words = QUANTITIES[quantity]
    groups = _groups([each for each in every if each.last(quantity) is not None])
    results = [[each.last(quantity) for each in group] for group in groups]
    labels = [_label(group, values) for group, values in zip(groups, results, strict=True)]
    means = [statistics.mean(values) for values in results]
    lines = [[[record.get(quantity) for record in each.history] for each in group] for group in groups]
    tested = {frozenset(each.run.info.test_fingerprint for each in group) for group in groups}
    return {
        "sentence": f"Lowest {words}: {labels[means.index(min(means))]}.",
        "tested_alike": quantity != "test_error" or len(tested) == 1,
        "charts": [
            epochs_chart(f"{words.capitalize()} per epoch", dict(zip(labels, lines, strict=True)), words),
            results_chart(f"Last {words}", dict(zip([group[0].name for group in groups], results, strict=True)), words),
        ],
        "headers": ("run", words, "data", "method", "labels", "seed", "epochs", "time"),
        "rows": [_table_row(each, each.last(quantity)) for each in every],
    }


def _groups(runs: Sequence[Compared]) -> list[list[Compared]]:
    """Group the runs that differ only in the seed.

    A run that was stopped, repeats a seed, or has a custom network is its own group: its error does not belong in a mean over
    seeds.
    """
    groups: dict[str, list[Compared]] = {}
    for each in runs:
        config, info = each.run.config, each.run.info
        alike = f"{decisive_fields(config, with_seed=False)} {info.custom_options}"
        is_repeated = any(other.run.config.seed == config.seed for other in groups.get(alike, ()))
        is_alone = info.custom_network or is_repeated or not each.is_complete
        groups.setdefault(each.name if is_alone else alike, []).append(each)
    return list(groups.values())


def _label(group: Sequence[Compared], results: Sequence[float]) -> str:
    """Return the name of the first run of a group, and mean and standard deviation of the results."""
    first = group[0]
    seeds = f" and {plural(len(group) - 1, 'other seed')}" if len(group) > 1 else ""
    stopped = "" if first.is_complete else f" ({first.epochs} epochs)"
    return f"{first.name}{seeds}{stopped}, {mean_and_deviation(results)}"


def _table_row(each: Compared, result: float | None) -> tuple[str, ...]:
    run, error = each.run, "" if result is None else f"{result:.2f}"
    labels, seed = f"{len(run.labels.rows):,}", str(run.config.seed.base)
    time = duration(total_seconds(each.history))
    return (each.name, error, data_words(run), method_words(run), labels, seed, each.epochs, time)
