"""Several runs side by side: one sentence, one chart, one table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfens.report.details import Record, data_words, history_of, method_words, number, time_words, values_of
from selfens.report.figures import comparison_chart
from selfens.report.render import shown
from selfens.runs.experiment import decisive_fields
from selfens.runs.run import Run

QUANTITIES = {
    "test_error": "test error in %",
    "validation_error": "validation error in %",
    "supervised": "supervised loss",
}
"""What runs are compared by: the first that at least two of them have."""
HEADERS = ("run", "data", "method", "labels", "seed", "epochs", "time")


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
        return f"{len(self.history):,} of {self.run.config.schedule.epochs:,}"

    def last(self, key: str) -> float | None:
        return number(self.history[-1], key)


def compare(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the template shows of the runs, given by the names to show."""
    every = [Compared(shown(name), run, history_of(run)) for name, run in runs.items()]
    quantity = next(key for key in QUANTITIES if sum(each.last(key) is not None for each in every) > 1)
    groups = _groups([each for each in every if each.last(quantity) is not None])
    lines = {label: [values_of(each.history, quantity) for each in group] for label, group in groups.items()}
    results = {label: [each.last(quantity) or 0.0 for each in group] for label, group in groups.items()}
    best = sorted(results, key=lambda label: statistics.mean(results[label]))
    words = QUANTITIES[quantity].capitalize()
    return {
        "sentence": f"{words}: {'; '.join(f'{label}, {_mean_and_deviation(results[label])}' for label in best)}.",
        "caution": _caution(groups) if quantity == "test_error" else "",
        "chart": comparison_chart(f"{words} per epoch", lines, QUANTITIES[quantity]),
        "headers": (*HEADERS, QUANTITIES[quantity]),
        "rows": [(*_table_row(each), "" if (last := each.last(quantity)) is None else f"{last:.2f}") for each in every],
    }


def _groups(runs: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The runs, those together that differ only in the seed, by the name of the first.

    A run that was stopped, or that repeats a seed, stays by itself: its error does not belong in a mean over seeds.
    """
    groups: dict[str, list[Compared]] = {}
    for each in runs:
        config, about = each.run.config, each.run.about
        own = [about[f"own_{part}"] for part in ("data", "network", "method")]  # of these a config knows nothing
        alike = f"{decisive_fields(config, with_seed=False)} {own}"
        is_repeated = any(other.run.config.seed == config.seed for other in groups.get(alike, ()))
        groups.setdefault(alike if each.is_complete and not is_repeated else each.name, []).append(each)
    return {_label(group): group for group in groups.values()}


def _label(group: Sequence[Compared]) -> str:
    first, others = group[0], len(group) - 1
    if not first.is_complete:
        return f"{first.name} ({first.epochs} epochs)"
    return f"{first.name} and {others} other seed{'s' * (others > 1)}" if others else first.name


def _mean_and_deviation(values: Sequence[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _caution(groups: Mapping[str, Sequence[Compared]]) -> str:
    """A sentence if the means are known to be over different test rows."""
    tested = [{each.run.about.get("test_fingerprint") for each in group} for group in groups.values()]
    if any(None in rows for rows in tested) or all(rows == tested[0] for rows in tested):
        return ""
    return "The runs were not all tested on the same rows, which may explain part of their difference."


def _table_row(each: Compared) -> tuple[str, ...]:
    """Texts under the headers."""
    run, labels = each.run, f"{len(each.run.labels.rows):,}"
    about = (each.name, data_words(run), method_words(run), labels, str(run.config.seed.base))
    return *about, each.epochs, time_words(each.history)
