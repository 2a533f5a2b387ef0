"""Several runs side by side: one sentence, one chart, one table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from selfens.report.details import History, data_words, history_of, method_words, time_words
from selfens.report.figures import epochs_chart, results_chart
from selfens.report.render import mean_and_deviation, shown
from selfens.runs.experiment import decisive_fields
from selfens.runs.run import Run

QUANTITIES = {
    "test_error": "test error in %",
    "validation_error": "validation error in %",
    "supervised": "supervised loss",
    "total": "loss",
}
"""What runs are compared by: the first that at least two of them have."""
HEADERS = ("run", "data", "method", "labels", "seed", "epochs", "time")


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
        """Of the last epoch that has it: not every epoch is evaluated."""
        return next((each[key] for each in reversed(self.history) if each.get(key) is not None), None)


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """What the template shows of the runs, by the last part of their paths, or by the whole path if that is ambiguous."""
    last = [run.path.absolute().name for run in runs]
    names = [name if last.count(name) == 1 else str(run.path) for name, run in zip(last, runs, strict=True)]
    every = [Compared(shown(name), run, history_of(run)) for name, run in zip(names, runs, strict=True)]
    quantity = next(key for key in QUANTITIES if sum(each.last(key) is not None for each in every) > 1)
    words = QUANTITIES[quantity]
    groups = _groups([each for each in every if each.last(quantity) is not None])
    labels = [_label(group, [each.last(quantity) for each in group]) for group in groups]
    best = min(range(len(groups)), key=lambda number: statistics.mean(each.last(quantity) for each in groups[number]))
    lines = [[[record.get(quantity) for record in each.history] for each in group] for group in groups]
    return {
        "sentence": f"Lowest {words}: {labels[best]}.",
        "tested_alike": quantity != "test_error" or _tested_alike(groups),
        "charts": [
            epochs_chart(f"{words.capitalize()} per epoch", dict(zip(labels, lines, strict=True)), words),
            results_chart(
                f"Last {words}", {group[0].name: [run.last(quantity) for run in group] for group in groups}, words
            ),
        ],
        "headers": (HEADERS[0], words, *HEADERS[1:]),
        "rows": [_table_row(each, each.last(quantity)) for each in every],
    }


def _groups(runs: Sequence[Compared]) -> list[list[Compared]]:
    """The runs, those together that differ only in the seed.

    A run that was stopped, repeats a seed, or has a network of the user's own, of which nothing is known, stays by itself:
    its error does not belong in a mean over seeds.
    """
    groups: dict[str, list[Compared]] = {}
    for each in runs:
        config, about = each.run.config, each.run.about
        own = [about.get(name) for name in ("own_data", "own_method_options")]  # of these a config knows nothing
        alike = f"{decisive_fields(config, with_seed=False)} {own}"
        is_repeated = any(other.run.config.seed == config.seed for other in groups.get(alike, ()))
        is_alone = about["own_network"] or is_repeated or not each.is_complete
        groups.setdefault(each.name if is_alone else alike, []).append(each)
    return list(groups.values())


def _tested_alike(groups: Sequence[Sequence[Compared]]) -> bool:
    """By the pixels, or by the files, of which runs may have made images of different sizes."""
    rows, files = (
        {frozenset(each.run.about.get(key) for each in group) for group in groups}
        for key in ("test_fingerprint", "test_files")
    )
    return len(rows) == 1 or (len(files) == 1 and None not in min(files))


def _label(group: Sequence[Compared], results: Sequence[float]) -> str:
    """The name of the first run of a group, and the mean and deviation of the results."""
    first, others = group[0], len(group) - 1
    seeds = f" and {others} other seed{'s' * (others > 1)}" if others else ""
    stopped = "" if first.is_complete else f" ({first.epochs} epochs)"
    return f"{first.name}{seeds}{stopped}, {mean_and_deviation(results)}"


def _table_row(each: Compared, result: float | None) -> tuple[str, ...]:
    """Texts under the headers."""
    run, labels = each.run, f"{len(each.run.labels.rows):,}"
    about = (
        each.name,
        "" if result is None else f"{result:.2f}",
        data_words(run),
        method_words(run),
        labels,
        str(run.config.seed.base),
    )
    return *about, each.epochs, time_words(each.history)
