"""The report: results/README.md, results/report.html and the label-noise figure, from the records and nothing else.

Its content is assembled once, as sections of text with one grid each; two templates write it as Markdown and as a page
that needs no other file. Nothing in it depends on the time or the machine that writes it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfens.errors import RunError
from selfens.experiments.cells import Cell, Table
from selfens.experiments.records import Record, Store, writable
from selfens.experiments.tables import CLAIMS
from selfens.report.figures import epochs_chart
from selfens.report.render import mean_and_deviation, render, shown

TEMPLATES = Path(__file__).parent / "templates"
FIGURE = "label-noise.svg"
MARK = re.compile("Written by (`|<code>)?selfens reproduce")
"""Each file of a report contains it, and nobody else's file does."""


@dataclass(frozen=True)
class Summary:
    """The records of one cell."""

    cell: Cell
    records: tuple[Record, ...]

    @property
    def errors(self) -> list[float]:
        """Of the runs that did not diverge."""
        return [record.final_error for record in self.records if record.final_error is not None]

    @property
    def error(self) -> str:
        """Mean and deviation, how many diverged, and with which extra images."""
        diverged = len(self.records) - len(self.errors)
        words = [mean_and_deviation(self.errors)] if self.errors else []
        words += [f"{diverged} diverged"] if diverged else []
        words += [f"with {shown(str(self.records[0].extra))}"] if self.records and self.cell.extra else []
        return ", ".join(words) or "not run"


def summarize(cells: Iterable[Cell], store: Store) -> dict[str, Summary]:
    """A summary of every cell, run or not, by its key."""
    return {cell.key: Summary(cell, tuple(store.read([cell]))) for cell in cells}


def paper_error(cell: Cell) -> str:
    return "" if cell.mean is None else f"{cell.mean:.2f} ± {cell.deviation:.2f}"


# The files


@dataclass(frozen=True)
class Section:
    title: str
    notes: tuple[str, ...]
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    has_figure: bool = False


def write_report(store: Store, tables: Sequence[Table], *, quick: bool = False) -> list[Path]:
    """Write all files of the report and return their paths."""
    from selfens.files.tensors import write_atomically

    check_report(store)
    summaries = summarize((cell for table in tables for cell in table.cells), store)
    figure = _noise_figure(summaries)
    path = store.root / "notes.md"
    notes = path.read_text(errors="replace") if path.is_file() else ""
    texts = {"notes": notes.strip(), "quick": quick, "figure": figure}
    sections = [*(_comparison(table, summaries) for table in tables), _claims(summaries), _runs(summaries)]
    contents = {
        "README.md": render("report.md", folder=TEMPLATES, sections=sections, **texts),
        "report.html": render("report.html", folder=TEMPLATES, sections=sections, **texts),
    }
    if figure is not None:
        contents[FIGURE] = f"{figure.rstrip()}\n<!-- Written by selfens reproduce -->\n"
    with writable(store.root):
        (store.root / FIGURE).unlink(missing_ok=True)
        for name, text in contents.items():
            write_atomically(store.root / name, text.encode())
    return [store.root / name for name in contents]


def check_report(store: Store) -> None:
    """Refuse to replace a page that somebody else has written."""
    for path in (store.root / name for name in ("README.md", "report.html", FIGURE)):
        if path.exists() and not (path.is_file() and MARK.search(path.read_text(errors="replace"))):
            raise RunError(f"{path} exists and is not a report of ours; choose another results folder.")


def _comparison(table: Table, summaries: dict[str, Summary]) -> Section:
    """Ours beside the paper's; columns that are empty for the whole table are left out."""
    ours, paper = ("ours, error %", "n, ours"), ("paper, error %", "n, paper")
    titles = ("method", table.column_title, *ours, *paper, "difference", "in the paper's deviations")
    rows = [_comparison_row(summaries[cell.key]) for cell in table.cells]
    filled = [number for number in range(len(titles)) if any(row[number] for row in rows)]
    headers = tuple(titles[number] for number in filled)
    grid = tuple(tuple(row[number] for number in filled) for row in rows)
    return Section(table.title, table.notes, headers, grid, has_figure=table.name == "noise")


def _comparison_row(summary: Summary) -> tuple[str, ...]:
    cell, compared = summary.cell, ("", "")
    if summary.errors and cell.mean is not None and cell.deviation:
        difference = statistics.mean(summary.errors) - cell.mean
        deviations = "" if cell.extra else f"{difference / cell.deviation:+.1f}"  # the images may be others
        compared = (f"{difference:+.2f}", deviations)
    ours, paper = (summary.error, str(len(summary.errors) or "")), (paper_error(cell), str(cell.runs or ""))
    return (cell.row, cell.column, *ours, *paper, *compared)


def _claims(summaries: dict[str, Summary]) -> Section:
    note = "Ours are test errors in percent; the setting that should be better comes first."
    rows = tuple((claim.text, claim.paper, _measured([summaries[key] for key in claim.cells])) for claim in CLAIMS)
    return Section("Claims in the paper's text", (note,), ("claim", "paper", "ours"), rows)


def _measured(cells: Sequence[Summary]) -> str:
    missing = ", ".join(each.cell.key for each in cells if not each.records)
    return f"not run: {missing}" if missing else " against ".join(each.error for each in cells)


def _runs(summaries: dict[str, Summary]) -> Section:
    rows = tuple(_run_row(record) for summary in summaries.values() for record in summary.records)
    headers = ("run", "seed", "error %", "seconds", "s per epoch", "hardware", "precision", "torch", "commit", "note")
    note = (
        "One line per record under `runs/`; the error is the last epoch's, never the best one's. Seconds include "
        "tests and checkpoints; if the device was shared they are in brackets and say nothing about speed."
    )
    return Section("All runs", (note if rows else "No run has been recorded yet.",), headers, rows)


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
    """The paper's figure, accuracy per epoch, as the text of an <svg>; None if none of its cells has been run."""
    curves = {
        f"{summary.cell.name.partition('-')[0]}, {summary.cell.column} random": [
            [100 - error for error in record.test_error] for record in summary.records
        ]
        for summary in summaries.values()
        if summary.cell.table == "noise" and summary.records
    }
    return epochs_chart("", curves, "correct on the test set, %").svg if curves else None
