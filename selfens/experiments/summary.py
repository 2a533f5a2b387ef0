"""Ours against the paper's: means and deviations over seeds, differences paired by seed, the claims.

Deviations are those of a sample (n - 1); with one run there is none, and only the paper's counts. "Within the joint
deviation" means that the difference of the means is at most the root of the sum of both squared deviations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfens.experiments.cells import Cell, Table
from selfens.experiments.claims import Claim
from selfens.experiments.records import Record

NOT_RUN = "not run"


@dataclass(frozen=True)
class Summary:
    """The records of one cell."""

    cell: Cell
    records: tuple[Record, ...]

    @property
    def errors(self) -> dict[int, float]:
        """By seed, of the runs that came to their end."""
        return {record.seed: record.final_error for record in self.records if record.final_error is not None}

    @property
    def diverged(self) -> int:
        return len(self.records) - len(self.errors)

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.errors.values()) if self.errors else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.errors.values()) if len(self.errors) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.cell.mean is None else self.mean - self.cell.mean

    @property
    def joint_deviation(self) -> float:
        return math.hypot(self.deviation or 0.0, self.cell.deviation or 0.0)

    @property
    def within_joint(self) -> bool | None:
        return None if self.difference is None else abs(self.difference) <= self.joint_deviation

    @property
    def within_two(self) -> bool | None:
        """Within twice the paper's own deviation."""
        return None if self.difference is None else abs(self.difference) <= 2 * (self.cell.deviation or 0.0)

    @property
    def seconds_per_epoch(self) -> float | None:
        """Over the runs that had their device for themselves."""
        alone = [record.seconds_per_epoch for record in self.records if not record.shared_device]
        return statistics.mean(alone) if alone else None

    @property
    def devices(self) -> set[str]:
        return {record.environment.get("device", "?") for record in self.records if not record.shared_device}


@dataclass(frozen=True)
class Paired:
    """How much larger the error of `first` is than that of `second`, over the seeds both have."""

    first: Summary
    second: Summary

    @property
    def differences(self) -> list[float]:
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
    """Methods of one column, each with the ones below it in the table, where they have seeds in common."""
    mine = [summaries[cell.key] for cell in table.cells]
    both = [Paired(one, two) for number, one in enumerate(mine) for two in mine[number + 1 :]]
    return [pair for pair in both if pair.first.cell.column == pair.second.cell.column and pair.differences]


def spread(values: Sequence[float], signed: bool = False) -> str:
    """
    >>> spread([1.0, 2.0]), spread([0.5], signed=True)
    ('1.50 ± 0.71', '+0.50')
    """
    mean = f"{statistics.mean(values):{'+' if signed else ''}.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def measured(claim: Claim, summaries: dict[str, Summary]) -> str:
    """What we found, in words; which runs are missing where we found nothing."""
    first = summaries[claim.cell]
    second = summaries[claim.other] if claim.other else None
    missing = [each.cell.key for each in (first, second) if each is not None and not each.records]
    if missing:
        return f"{NOT_RUN}: {', '.join(missing)}"
    if second is None:
        return f"{100 - first.mean:.2f} %, n = {len(first.errors)}" if first.mean is not None else "diverged"
    return _slowdown(first, second) if claim.measure == "slowdown" else _difference(first, second)


def _slowdown(first: Summary, second: Summary) -> str:
    slow, fast = first.seconds_per_epoch, second.seconds_per_epoch
    if slow is None or fast is None:
        return f"{NOT_RUN} with a device for each run alone"
    if first.devices != second.devices:
        return f"{NOT_RUN} on the same device"
    return f"{slow / fast:.2f} times ({slow:.3f} s against {fast:.3f} s per epoch, {', '.join(first.devices)})"


def _difference(first: Summary, second: Summary) -> str:
    differences = Paired(first, second).differences
    words = [f"{spread(differences, signed=True)} points, n = {len(differences)}"] if differences else []
    words += [f"{each.cell.name}: {each.diverged} diverged" for each in (first, second) if each.diverged]
    return "; ".join(words) or f"{NOT_RUN} with the same seeds"
