"""The report: results/README.md, results/report.html and the label-noise figure, from the records and nothing else.

Its content is assembled once, as sections of text with one grid each; two templates write it as Markdown and as a page
that needs no other file. Nothing in it depends on the time or the machine that writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfens.errors import RunError
from selfens.experiments import data
from selfens.experiments.cells import Claim, Table
from selfens.experiments.records import Record, Store, make_folder
from selfens.experiments.summary import (
    HARDWARE,
    Paired,
    Summary,
    in_words,
    mean_and_deviation,
    measured,
    pairs,
    paper_in_words,
    summarize,
)
from selfens.experiments.tables import CELLS, CLAIMS, NOISE, NOISE_CLAIMS, NOISE_PERCENTAGES, NOISE_ROWS, TABLES
from selfens.report.figures import COLORS, svg
from selfens.report.render import render, shown

TEMPLATES = Path(__file__).parent / "templates"
FIGURE_FILE = "label-noise.svg"
NOTES_FILE = "notes.md"
# Each file of a report contains its mark, and nobody else's file does.
MARKS = {
    "README.md": "\nWritten by `selfens reproduce --report` from the records in `runs/`",
    "report.html": "<p>Written by <code>selfens reproduce --report</code> from the records in <code>runs/</code>",
    FIGURE_FILE: "<!-- Written by selfens reproduce (report) -->",
}


@dataclass(frozen=True)
class Section:
    title: str
    level: int = 2
    notes: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    has_figure: bool = False


def write_report(store: Store) -> list[Path]:
    """Write all files of the report and return their paths."""
    from selfens.files.tensors import write_atomically

    _check_pages(store)
    summaries = summarize(CELLS.values(), store.read(CELLS.values()))
    figure = _noise_figure(summaries)
    contents = {name: _render(name, summaries, store, figure) for name in ("README.md", "report.html")}
    make_folder(store.root)
    if figure is not None:
        contents[FIGURE_FILE] = f"{figure.rstrip()}\n{MARKS[FIGURE_FILE]}\n"
    else:
        (store.root / FIGURE_FILE).unlink(missing_ok=True)
    for name, text in contents.items():
        write_atomically(store.root / name, text.encode())
    return [store.root / name for name in contents]


def check_report(store: Store) -> None:
    """Refuse now what would be refused when the report is written."""
    store.read(CELLS.values())
    _check_pages(store)


def _check_pages(store: Store) -> None:
    """Refuse to replace a page that somebody else has written."""
    for name, mark in MARKS.items():
        path = store.root / name
        if path.exists() and not (path.is_file() and mark in path.read_text(errors="replace")):
            raise RunError(f"{path} exists and is not a report of ours; choose another results folder.")


def _render(name: str, summaries: dict[str, Summary], store: Store, figure: str | None) -> str:
    return render(
        {"README.md": "report.md"}.get(name, name),
        folder=TEMPLATES,
        sections=sections(summaries),
        notes=_notes(store),
        quick=store.quick,
        figure=figure,
        figure_file=FIGURE_FILE,
    )


def _notes(store: Store) -> list[str]:
    """What people have to say about these records, one paragraph each."""
    path = store.root / NOTES_FILE
    text = path.read_text(errors="replace") if path.is_file() else ""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def sections(summaries: dict[str, Summary]) -> list[Section]:
    """Everything the report says."""
    parts = [part for table in TABLES.values() for part in _table_sections(table, summaries)]
    return [*parts, _claims("Claims in the paper's text", 2, CLAIMS, summaries), _runs(summaries)]


def _table_sections(table: Table, summaries: dict[str, Summary]) -> list[Section]:
    parts = [_comparison(table, summaries)]
    if table is NOISE:
        parts.append(_claims("What the paper says of the figure", 3, NOISE_CLAIMS, summaries))
    paired = pairs(table, summaries) if table.name != "claims" else []  # there, the claims say which belong together
    if paired:
        parts.append(_paired(table, paired))
    if table.earlier:
        parts.append(_earlier(table))
    return parts


def _comparison(table: Table, summaries: dict[str, Summary]) -> Section:
    """Ours beside the paper's; columns that are empty for the whole table are left out."""
    titles = (
        *("method", table.column_title, "ours, error %", "n, ours", "paper, error %", "n, paper", "difference"),
        *("within joint deviation", "within paper ± 2 deviations"),
    )
    rows = [_comparison_row(summaries[cell.key]) for cell in table.cells]
    filled = [number for number in range(len(titles)) if any(row[number] for row in rows)]
    images = dict.fromkeys(data.in_words(images) for cell in table.cells if (images := summaries[cell.key].images))
    return Section(
        table.title,
        notes=(*table.notes, *(f"Ours have {words} as the extra images." for words in images)),
        headers=tuple(titles[number] for number in filled),
        rows=tuple(tuple(row[number] for number in filled) for row in rows),
        has_figure=table is NOISE,
    )


def _comparison_row(summary: Summary) -> tuple[str, ...]:
    cell = summary.cell
    ours = "needs extra images" if cell.extra and not summary.records else in_words(summary)
    difference = "" if summary.difference is None else mean_and_deviation([summary.difference], signed=True)
    within = [_yes_or_no(summary.within_joint), _yes_or_no(summary.within_two)]
    if difference and summary.has_stand_in:
        within = ["other images"] * 2
    elif difference and summary.diverged:
        within = [f"{verdict}, of those that ended" for verdict in within]
    numbers = (ours, str(len(summary.errors) or ""), paper_in_words(cell), str(cell.runs or ""), difference)
    return (cell.row, cell.column, *numbers, *within)


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _paired(table: Table, paired: list[Paired]) -> Section:
    first = (table.column_title, "method", "less the error of")
    headers = (*first, "ours, points", "n", "paper, points", "same labelled rows")
    return Section("Differences between methods, paired by seed", 3, (), headers, tuple(map(_paired_row, paired)))


def _paired_row(pair: Paired) -> tuple[str, ...]:
    first, second, differences = pair.first.cell, pair.second.cell, pair.differences
    paper = "" if pair.paper is None else mean_and_deviation([pair.paper], signed=True)
    ours, count = mean_and_deviation(differences, signed=True), str(len(differences))
    return (first.column, first.row, second.row, ours, count, paper, _yes_or_no(pair.same_labels))


def _earlier(table: Table) -> Section:
    note = "Results of earlier systems as the paper quotes them; none of them is ours."
    return Section("Earlier systems, as published", 3, (note,), ("system", "labels", "error %", ""), table.earlier)


def _claims(title: str, level: int, claims: Sequence[Claim], summaries: dict[str, Summary]) -> Section:
    rows = [(claim.text, claim.paper, measured(claim, summaries)) for claim in claims]
    note = "Points are points of test error by which the setting said to be worse is above the other, paired by seed."
    return Section(title, level, (note,), ("claim", "paper", "ours"), tuple(rows))


def _runs(summaries: dict[str, Summary]) -> Section:
    rows = [_run_row(record) for summary in summaries.values() for record in summary.records]
    headers = ("run", "seed", "error %", "seconds", "s per epoch", "hardware", "precision", "torch", "commit", "note")
    note = (
        "One line per record under `runs/`; the error is the last epoch's, never the best one's. Seconds include "
        "tests and checkpoints; if the device was shared they are in brackets and say nothing about speed."
    )
    notes = (note, *_different_files(summaries)) if rows else ("No run has been recorded yet.",)
    return Section("All runs", 2, notes, headers, tuple(rows))


def _different_files(summaries: dict[str, Summary]) -> Iterator[str]:
    """A sentence for each data set that was not the same in all runs."""
    hashes: dict[str, set[str]] = {}
    for summary in summaries.values():
        for record in summary.records:
            if not record.extra:  # extra images would be in the hash
                hashes.setdefault(record.config.data.name, set()).add(record.data)
    for name, found in hashes.items():
        if len(found) > 1:
            yield f"The runs on {name} were trained on {len(found)} different versions of its files, by their hashes (`data`)."


def _run_row(record: Record) -> tuple[str, ...]:
    times = (f"{record.seconds:.0f}", f"{record.seconds_per_epoch:.2f}")
    commit = (record.commit or "not recorded").partition("-")[0][:12]
    return (
        record.key,
        str(record.seed),
        "diverged" if record.final_error is None else f"{record.final_error:.2f}",
        *(f"({time})" if record.shared_device else time for time in times),
        *(shown(str(record.environment.get(name, "?"))) for name in HARDWARE),
        f"{commit}-dirty" if "dirty" in (record.commit or "") else commit,
        "; ".join(filter(None, [data.in_words(record.extra) if record.extra else "", shown(record.note)])),
    )


# The figure: accuracy per epoch, supervised on the left, temporal ensembling on the right


def _noise_figure(summaries: dict[str, Summary]) -> str | None:
    """The figure as the text of an <svg>; None if none of its cells has been run."""
    if not any(summaries[cell.key].records for cell in NOISE.cells):
        return None
    return svg(lambda figure: _draw(figure, summaries), "label-noise", (9, 3.8))


def _draw(figure: Any, summaries: dict[str, Summary]) -> None:
    both = figure.subplots(1, 2, sharey=True)
    for axes, (method, title) in zip(both, NOISE_ROWS.items(), strict=True):
        _panel(axes, method, title, summaries)
    both[0].set_ylabel("correct on the test set, %")
    curves = {curve.get_label(): curve for axes in both for curve in axes.get_lines()}  # one for each percentage
    labels = sorted(curves, key=lambda label: int(label.split()[0]))
    figure.legend([curves[label] for label in labels], labels, loc="outside lower center", ncols=len(labels))


def _panel(axes: Any, method: str, title: str, summaries: dict[str, Summary]) -> None:
    missing = []
    for percentage, color in zip(NOISE_PERCENTAGES, COLORS, strict=False):
        records = summaries[f"noise/{method}-{percentage}"].records
        for record in records:
            accuracy = [100 - error for error in record.test_error]
            axes.plot(range(1, len(accuracy) + 1), accuracy, color=color, linewidth=1.3, label=f"{percentage} % random")
        if not records:
            missing.append(f"{percentage} %")
    remark = f" (not run: {', '.join(missing)})" if missing else ""
    axes.set(title=title + remark, xlabel="epoch", ylim=(0, 100))
    axes.title.set_fontsize(10)
