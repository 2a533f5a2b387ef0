"""Ours against the paper's: means and deviations over seeds, differences paired by seed, the claims.

Deviations are those of a sample (n - 1); with one run there is none, and only the paper's counts. "Within the joint
deviation" means that the difference of the means is at most the root of the sum of both squared deviations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from selfens.experiments import data
from selfens.experiments.cells import Cell, Claim, Table
from selfens.experiments.records import Record

NOT_RUN = "not run"
ROUNDING = 1e-9  # errors have two decimals, so a difference may equal the deviation except for the last bit


@dataclass(frozen=True)
class Summary:
    """The records of one cell."""

    cell: Cell
    records: tuple[Record, ...]

    @property
    def errors(self) -> dict[int, float]:
        """By seed, of the runs that did not diverge."""
        return {record.seed: record.final_error for record in self.records if record.final_error is not None}

    @property
    def diverged(self) -> int:
        return len(self.records) - len(self.errors)

    @property
    def difference(self) -> float | None:
        """Our mean less the paper's."""
        if not self.errors or self.cell.mean is None:
            return None
        return statistics.mean(self.errors.values()) - self.cell.mean

    @property
    def within_joint(self) -> bool | None:
        ours = statistics.stdev(self.errors.values()) if len(self.errors) > 1 else 0.0
        return self._within(math.hypot(ours, self.cell.deviation or 0.0))

    @property
    def within_two(self) -> bool | None:
        """Within twice the paper's own deviation."""
        return self._within(2 * (self.cell.deviation or 0.0))

    def _within(self, distance: float) -> bool | None:
        """None if there is nothing to compare, or other extra images stood in for the paper's."""
        if self.difference is None or self.has_stand_in:
            return None
        return abs(self.difference) <= distance + ROUNDING

    @property
    def images(self) -> dict[str, Any]:
        """The extra images, which are the same in all records."""
        return self.records[0].extra if self.records else {}

    @property
    def has_stand_in(self) -> bool:
        return bool(self.records) and data.is_stand_in(self.cell, self.images)

    @property
    def speeds(self) -> dict[tuple[str, ...], float]:
        """Seconds per epoch by device, precision and torch, over the runs that had their device to themselves."""
        found: dict[tuple[str, ...], list[float]] = {}
        for record in self.records:
            if record.final_error is not None and not record.shared_device and record.seconds_per_epoch > 0:
                device, precision, torch = (str(record.environment.get(name, "?")) for name in HARDWARE)
                found.setdefault((device, precision, f"torch {torch}"), []).append(record.seconds_per_epoch)
        return {kind: statistics.mean(seconds) for kind, seconds in found.items()}


HARDWARE = ("device", "precision", "torch")


@dataclass(frozen=True)
class Paired:
    """How much larger the error of `first` is than that of `second`, over the seeds both have."""

    first: Summary
    second: Summary

    @property
    def same_images(self) -> bool:
        """Whether both had the same extra images; random and restricted ones share a source."""
        first, second = self.first.images, self.second.images
        if self.first.cell.extra == self.second.cell.extra:
            return first == second
        return not first or not second or first["source"] == second["source"]

    @property
    def differences(self) -> list[float]:
        if not self.same_images:
            return []
        first, second = self.first.errors, self.second.errors
        return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]

    @property
    def same_labels(self) -> bool:
        """Whether both trained on the same labelled rows, seed by seed."""
        rows = {record.seed: record.labelled_rows for record in self.second.records}
        return all(rows.get(record.seed, record.labelled_rows) == record.labelled_rows for record in self.first.records)

    @property
    def paper(self) -> float | None:
        first, second = self.first.cell.mean, self.second.cell.mean
        return None if first is None or second is None else first - second


def summarize(cells: Iterable[Cell], records: Iterable[Record]) -> dict[str, Summary]:
    """A summary of every cell, run or not, by its key."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record)
    return {cell.key: Summary(cell, tuple(found.get(cell.key, ()))) for cell in cells}


def pairs(table: Table, summaries: dict[str, Summary]) -> list[Paired]:
    """Methods of one column, each with the ones below it in the table, if they have seeds in common."""
    mine = [summaries[cell.key] for cell in table.cells]
    both = [Paired(one, two) for number, one in enumerate(mine) for two in mine[number + 1 :]]
    return [pair for pair in both if pair.first.cell.column == pair.second.cell.column and pair.differences]


def in_words(summary: Summary) -> str:
    """Mean and deviation of the runs that did not diverge, and how many did."""
    words = [mean_and_deviation(list(summary.errors.values()))] if summary.errors else []
    words += [f"{summary.diverged} diverged"] if summary.diverged else []
    return ", ".join(words) or NOT_RUN


def paper_in_words(cell: Cell) -> str:
    return "" if cell.mean is None else f"{cell.mean:.2f} ± {cell.deviation:.2f}"


def mean_and_deviation(values: Sequence[float], signed: bool = False) -> str:
    """
    >>> mean_and_deviation([1.0, 2.0]), mean_and_deviation([0.5], signed=True)
    ('1.50 ± 0.71', '+0.50')
    """
    mean = f"{round(statistics.mean(values), 2) + 0.0:{'+' if signed else ''}.2f}"  # never -0.00
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def measured(claim: Claim, summaries: dict[str, Summary]) -> str:
    """What we found, in words; if nothing, which runs are missing."""
    first = summaries[claim.cell]
    second = summaries[claim.other] if claim.other else None
    missing = [each.cell.key for each in (first, second) if each is not None and not each.records]
    if missing:
        return f"{NOT_RUN}: {', '.join(missing)}"
    if second is None:
        return _accuracy(first)
    return _slowdown(first, second) if claim.measure == "slowdown" else _difference(first, second)


def _accuracy(summary: Summary) -> str:
    accuracies = [100 - error for error in summary.errors.values()]
    words = [f"{mean_and_deviation(accuracies)} %, n = {len(accuracies)}"] if accuracies else []
    return "; ".join([*words, f"{summary.diverged} diverged"] if summary.diverged else words)


def _slowdown(first: Summary, second: Summary) -> str:
    slow, fast = first.speeds, second.speeds
    if not slow or not fast:
        shared = ", ".join(summary.cell.key for summary in (first, second) if not summary.speeds)
        return f"{NOT_RUN} with a device to itself: {shared}"
    words = [
        f"{slow[kind] / fast[kind]:.2f} times ({slow[kind]:.3f} s against {fast[kind]:.3f} s per epoch, {', '.join(kind)})"
        for kind in sorted(slow.keys() & fast.keys())
    ]
    return "; ".join(words) or f"{NOT_RUN} on the same device with the same precision and torch"


def _difference(first: Summary, second: Summary) -> str:
    pair = Paired(first, second)
    differences = pair.differences
    words = [f"{mean_and_deviation(differences, signed=True)} points, n = {len(differences)}"] if differences else []
    words += [f"{each.cell.name}: {each.diverged} diverged" for each in (first, second) if each.diverged]
    others = {data.in_words(each.images) for each in (first, second) if each.has_stand_in}
    words += [f"with {images}, not the paper's" for images in sorted(others) if words]
    return "; ".join(words) or f"{NOT_RUN} with the same {'seeds' if pair.same_images else 'extra images'}"
