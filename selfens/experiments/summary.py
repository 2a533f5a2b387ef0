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

from selfens.experiments.cells import Cell, Table
from selfens.experiments.claims import Claim
from selfens.experiments.extra_images import stand_in
from selfens.experiments.records import Record, extra_words

NOT_RUN = "not run"
ROUNDING = 1e-9  # errors have two decimals, so a difference may be the deviation itself, but for the last bit


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
        """None where there is nothing to compare, and where other extra images stood in for the paper's."""
        if self.difference is None or self.has_stand_in:
            return None
        return abs(self.difference) <= self.joint_deviation + ROUNDING

    @property
    def within_two(self) -> bool | None:
        """Within twice the paper's own deviation."""
        if self.difference is None or self.has_stand_in:
            return None
        return abs(self.difference) <= 2 * (self.cell.deviation or 0.0) + ROUNDING

    @property
    def images(self) -> dict[str, Any]:
        """The extra images of all records, which are the same."""
        return self.records[0].extra if self.records else {}

    @property
    def has_stand_in(self) -> bool:
        return bool(self.records) and stand_in(self.cell, self.images)

    @property
    def speeds(self) -> dict[tuple[str, ...], float]:
        """Seconds per epoch by device, precision and torch, over the runs that had their device for themselves."""
        found: dict[tuple[str, ...], list[float]] = {}
        for record in self.records:
            if record.final_error is not None and not record.shared_device and record.seconds_per_epoch > 0:
                about = record.environment
                kind = (
                    *(str(about.get(name, "?")) for name in ("device", "precision")),
                    f"torch {about.get('torch', '?')}",
                )
                found.setdefault(kind, []).append(record.seconds_per_epoch)
        return {kind: statistics.mean(seconds) for kind, seconds in found.items()}


@dataclass(frozen=True)
class Paired:
    """How much larger the error of `first` is than that of `second`, over the seeds both have."""

    first: Summary
    second: Summary

    @property
    def same_images(self) -> bool:
        """Whether the extra images are no other in the one than in the other; random and restricted ones share a source."""
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
    """Methods of one column, each with the ones below it in the table, where they have seeds in common."""
    mine = [summaries[cell.key] for cell in table.cells]
    both = [Paired(one, two) for number, one in enumerate(mine) for two in mine[number + 1 :]]
    return [pair for pair in both if pair.first.cell.column == pair.second.cell.column and pair.differences]


def in_words(summary: Summary) -> str:
    """Mean and deviation of the runs that came to their end, and how many did not; "not run" where there is neither."""
    words = [spread(list(summary.errors.values()))] if summary.errors else []
    words += [f"{summary.diverged} diverged"] if summary.diverged else []
    return ", ".join(words) or NOT_RUN


def paper_in_words(cell: Cell) -> str:
    return "" if cell.mean is None else f"{cell.mean:.2f} ± {cell.deviation:.2f}"


def spread(values: Sequence[float], signed: bool = False) -> str:
    """
    >>> spread([1.0, 2.0]), spread([0.5], signed=True)
    ('1.50 ± 0.71', '+0.50')
    """
    mean = f"{round(statistics.mean(values), 2) + 0.0:{'+' if signed else ''}.2f}"  # never -0.00
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def measured(claim: Claim, summaries: dict[str, Summary]) -> str:
    """What we found, in words; which runs are missing where we found nothing."""
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
    words = [f"{spread(accuracies)} %, n = {len(accuracies)}"] if accuracies else []
    return "; ".join([*words, f"{summary.diverged} diverged"] if summary.diverged else words)


def _slowdown(first: Summary, second: Summary) -> str:
    slow, fast = first.speeds, second.speeds
    if not slow or not fast:
        shared = ", ".join(summary.cell.key for summary in (first, second) if not summary.speeds)
        return f"{NOT_RUN} alone on a device: {shared}"
    kinds = sorted(slow.keys() & fast.keys())
    return (
        "; ".join(
            f"{slow[kind] / fast[kind]:.2f} times ({slow[kind]:.3f} s against {fast[kind]:.3f} s per epoch, {', '.join(kind)})"
            for kind in kinds
        )
        or f"{NOT_RUN} on the same device with the same precision and torch"
    )


def _difference(first: Summary, second: Summary) -> str:
    pair = Paired(first, second)
    differences = pair.differences
    words = [f"{spread(differences, signed=True)} points, n = {len(differences)}"] if differences else []
    words += [f"{each.cell.name}: {each.diverged} diverged" for each in (first, second) if each.diverged]
    others = {extra_words(each.images) for each in (first, second) if each.has_stand_in}
    words += [f"with {images}, not the paper's" for images in sorted(others) if words]
    return "; ".join(words) or f"{NOT_RUN} with the same {'seeds' if pair.same_images else 'extra images'}"
