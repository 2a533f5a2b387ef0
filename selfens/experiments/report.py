"""The report: results/README.md and results/report.html, from the records alone.

What is said is put together once, as sections of text and one grid each; two templates write it as Markdown and as a page
that needs no other file. Nothing in it depends on the time or the machine that writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from selfens.experiments.cells import Cell, Table
from selfens.experiments.claims import CLAIMS
from selfens.experiments.extras import needed
from selfens.experiments.figure import noise_figure
from selfens.experiments.records import Record, Store, extra_words, make_folder
from selfens.experiments.summary import NOT_RUN, Paired, Summary, measured, pairs, spread, summarize
from selfens.experiments.tables import CELLS, TABLES
from selfens.report.render import render

TEMPLATES = Path(__file__).parent / "templates"
FIGURE_FILE = "label-noise.svg"
COMPARISON = (
    *("ours, error %", "n", "paper, error %", "n", "difference"),
    *("within joint deviation", "within paper ± 2 deviations"),
)
OTHER_IMAGES = "other images"


@dataclass(frozen=True)
class Section:
    title: str
    level: int = 2
    notes: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    has_figure: bool = False


def write_report(store: Store) -> list[Path]:
    """Write all files of the report, and say which."""
    from selfens.tensorfile import write_atomically

    summaries = summarize(CELLS.values(), store.read(CELLS.values()))
    figure = noise_figure(summaries)
    contents = {"README.md": _render("report.md", summaries, store, figure)}
    contents["report.html"] = _render("report.html", summaries, store, figure)
    if figure is not None:
        contents[FIGURE_FILE] = figure
    make_folder(store.root)
    for name, text in contents.items():
        write_atomically(store.root / name, text.encode())
    return [store.root / name for name in contents]


def _render(template: str, summaries: dict[str, Summary], store: Store, figure: str | None) -> str:
    return render(
        template,
        folder=TEMPLATES,
        sections=sections(summaries),
        quick=store.quick,
        figure=figure,
        figure_file=FIGURE_FILE,
    )


def sections(summaries: dict[str, Summary]) -> list[Section]:
    """Everything the report says."""
    parts = [part for table in TABLES.values() for part in _table_sections(table, summaries)]
    return [*parts, _claims(summaries), _runs(summaries)]


def _table_sections(table: Table, summaries: dict[str, Summary]) -> list[Section]:
    parts = [_comparison(table, summaries)]
    paired = pairs(table, summaries)
    if paired:
        parts.append(_paired(table, paired))
    if table.earlier:
        parts.append(_earlier(table))
    return parts


def _comparison(table: Table, summaries: dict[str, Summary]) -> Section:
    titles = ("method", table.column_title, *COMPARISON)
    rows = [_comparison_row(summaries[cell.key]) for cell in table.cells]
    filled = [number for number in range(len(titles)) if any(row[number] for row in rows)]
    return Section(
        table.title,
        notes=(*table.notes, *_extra_images(table, summaries)),
        headers=tuple(titles[number] for number in filled),
        rows=tuple(tuple(row[number] for number in filled) for row in rows),
        has_figure=table.name == "noise",
    )


def _extra_images(table: Table, summaries: dict[str, Summary]) -> list[str]:
    """What our runs of a table took for the extra images."""
    found = dict.fromkeys(extra_words(images) for cell in table.cells if (images := summaries[cell.key].images))
    return [f"Ours have {words} as the extra images." for words in found]


def _comparison_row(summary: Summary) -> tuple[str, ...]:
    cell, errors = summary.cell, list(summary.errors.values())
    found = [spread(errors)] if errors else []
    found += [f"{summary.diverged} diverged"] if summary.diverged else []
    ours = ", ".join(found) or (needed(cell) if cell.extra else NOT_RUN)
    count = str(len(errors) or "")
    difference = "" if summary.difference is None else f"{summary.difference:+.2f}"
    within = (_yes_or_no(summary.within_joint), _yes_or_no(summary.within_two))
    if difference and summary.has_stand_in:
        within = (OTHER_IMAGES, OTHER_IMAGES)
    return (cell.row, cell.column, ours, count, _paper(cell), str(cell.runs or ""), difference, *within)


def _paper(cell: Cell) -> str:
    return "" if cell.mean is None else f"{cell.mean:.2f} ± {cell.deviation:.2f}"


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _paired(table: Table, paired: list[Paired]) -> Section:
    headers = (
        table.column_title,
        "method",
        "less the error of",
        "ours, points",
        "n",
        "paper, points",
        "same labelled rows",
    )
    return Section("Differences between methods, paired by seed", 3, (), headers, tuple(map(_paired_row, paired)))


def _paired_row(pair: Paired) -> tuple[str, ...]:
    first, second, differences = pair.first.cell, pair.second.cell, pair.differences
    paper = "" if pair.paper is None else f"{pair.paper:+.2f}"
    ours, count = spread(differences, signed=True), str(len(differences))
    return (first.column, first.row, second.row, ours, count, paper, _yes_or_no(pair.same_labels))


def _earlier(table: Table) -> Section:
    rows = [(each.system, each.column, each.figure, each.remark) for each in table.earlier]
    note = "Figures of earlier systems as the paper quotes them; none of them is ours."
    return Section("Earlier systems, as published", 3, (note,), ("system", "labels", "error %", ""), tuple(rows))


def _claims(summaries: dict[str, Summary]) -> Section:
    rows = [(claim.text, claim.paper, measured(claim, summaries)) for claim in CLAIMS]
    note = "Points are points of test error by which the setting said to be worse is above the other, paired by seed."
    return Section("Claims in the paper's text", 2, (note,), ("claim", "paper", "ours"), tuple(rows))


def _runs(summaries: dict[str, Summary]) -> Section:
    rows = [_run_row(record) for summary in summaries.values() for record in summary.records]
    headers = ("run", "seed", "error %", "seconds", "s per epoch", "hardware", "precision", "torch", "commit", "note")
    notes = (
        "One line per record under `runs/`; the error is the last epoch's, never the best one's. Seconds include "
        "tests and checkpoints; where the device was shared they are in brackets and say nothing about speed.",
    )
    return Section("All runs", 2, notes if rows else ("No run has been recorded yet.",), headers, tuple(rows))


def _run_row(record: Record) -> tuple[str, ...]:
    times = (f"{record.seconds:.0f}", f"{record.seconds_per_epoch:.2f}")
    environment = record.environment
    return (
        record.key,
        str(record.seed),
        "diverged" if record.final_error is None else f"{record.final_error:.2f}",
        *(f"({time})" if record.shared_device else time for time in times),
        *(str(environment.get(name, "?")) for name in ("device", "precision", "torch")),
        (record.commit or "not recorded").partition("-")[0][:12]
        + ("-dirty" if "dirty" in (record.commit or "") else ""),
        "; ".join(filter(None, [extra_words(record.extra) if record.extra else "", record.note])),
    )
