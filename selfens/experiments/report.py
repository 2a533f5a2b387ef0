"""The report: results/README.md and the label-noise figure. They depend only on the records."""

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfens.errors import RunError
from selfens.experiments.records import Record, Store, writable
from selfens.experiments.tables import Cell, Table
from selfens.files.tensors import write_atomically
from selfens.report.figures import epochs_chart
from selfens.report.render import mean_and_deviation, render, shown

FIGURE = "label-noise.svg"
MARK = "Written by selfens reproduce"
"""Marks the files that the report may replace; in Markdown it has backticks."""


@dataclass(frozen=True)
class Summary:
    """The records of one cell."""

    cell: Cell
    records: tuple[Record, ...]

    @property
    def errors(self) -> list[float]:
        """Final errors of the runs that did not diverge."""
        return [record.final_error for record in self.records if record.final_error is not None]

    @property
    def error(self) -> str:
        """The mean and deviation as text, with the number of diverged runs and the extra images, if any."""
        diverged = len(self.records) - len(self.errors)
        words = [mean_and_deviation(self.errors)] if self.errors else []
        words += [f"{diverged} diverged"] if diverged else []
        words += [f"with {shown(str(self.records[0].extra))}"] if self.records and self.cell.extra else []
        return ", ".join(words) or "not run"

    def row(self) -> tuple[str, ...]:
        """A row of the report: our results next to the paper's."""
        cell, difference, deviations = self.cell, "", ""
        if self.errors and cell.mean is not None and cell.deviation:
            points = statistics.mean(self.errors) - cell.mean
            difference = f"{points:+.2f}"
            deviations = "" if cell.extra else f"{points / cell.deviation:+.1f}"  # our extra images differ
        ours, paper = (self.error, str(len(self.errors) or "")), (cell.error, str(cell.runs or ""))
        return (cell.row, cell.column, *ours, *paper, difference, deviations)


def summarize(cells: Iterable[Cell], store: Store) -> dict[str, Summary]:
    """Return a summary of every cell, run or not, by its key."""
    return {cell.key: Summary(cell, tuple(store.read([cell]))) for cell in cells}


def write_report(store: Store, tables: Sequence[Table], *, quick: bool = False) -> list[Path]:
    """Write the files of the report and return their paths."""
    check_report(store)
    summaries = summarize((cell for table in tables for cell in table.cells), store)
    figure, path = _noise_figure(summaries), store.root / "notes.md"
    values = {
        "tables": tables,
        "summaries": summaries,
        "runs": [_run_row(record) for summary in summaries.values() for record in summary.records],
        "notes": path.read_text(errors="replace").strip() if path.is_file() else "",
        "figure": figure,
    }
    contents = {"README.md": render("reproduce.md", **values, quick=quick)}
    if figure is not None:
        contents[FIGURE] = f"{figure.rstrip()}\n<!-- {MARK} -->\n"
    with writable(store.root):
        (store.root / FIGURE).unlink(missing_ok=True)
        for name, text in contents.items():
            write_atomically(store.root / name, text.encode())
    return [store.root / name for name in contents]


def check_report(store: Store) -> None:
    """Refuse to replace a file that is not a report."""
    for path in (store.root / "README.md", store.root / FIGURE):
        if path.exists() and not (path.is_file() and MARK in path.read_text(errors="replace").replace("`", "")):
            raise RunError(f"{path} exists and was not written by selfens reproduce; choose another results folder.")


def _run_row(record: Record) -> tuple[str, ...]:
    times = (f"{record.seconds:.0f}", f"{record.seconds_per_epoch:.2f}")
    return (
        record.key,
        str(record.seed),
        "diverged" if record.final_error is None else f"{record.final_error:.2f}",
        *(f"({time})" if record.shared_device else time for time in times),
        *(shown(str(record.environment.get(name, "?"))) for name in ("device", "precision", "torch")),
        shown(re.sub(r"\b([0-9a-f]{12})[0-9a-f]+", r"\1", record.commit or "not recorded")),
        shown("; ".join(filter(None, [str(record.extra or ""), record.note]))),
    )


def _noise_figure(summaries: dict[str, Summary]) -> str | None:
    """Return the paper's figure, accuracy per epoch, as an <svg>; None if none of its cells has been run."""
    curves = {
        f"{summary.cell.name.partition('-')[0]}, {summary.cell.column} random": [
            [100 - error for error in record.test_error] for record in summary.records
        ]
        for summary in summaries.values()
        if summary.cell.table == "noise" and summary.records
    }
    return epochs_chart("", curves, "correct on the test set, %").svg if curves else None
