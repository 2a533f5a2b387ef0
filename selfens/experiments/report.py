"""The report: results/README.md and results/report.html, from the records alone.

What is said is put together once, as sections of text and one grid each; two templates write it as Markdown and as a page
that needs no other file. Nothing in it depends on the time or the machine that writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfens.errors import RunError
from selfens.experiments.cells import Table
from selfens.experiments.claims import CLAIMS, Claim
from selfens.experiments.extra_images import needed
from selfens.experiments.figure import noise_figure
from selfens.experiments.records import Record, Store, extra_words, make_folder
from selfens.experiments.summary import (
    Paired,
    Summary,
    in_words,
    measured,
    pairs,
    paper_in_words,
    spread,
    summarize,
)
from selfens.experiments.tables import CELLS, TABLES
from selfens.report.render import render, shown

TEMPLATES = Path(__file__).parent / "templates"
FIGURE_FILE = "label-noise.svg"
COMPARISON = (
    *("ours, error %", "n, ours", "paper, error %", "n, paper", "difference"),
    *("within joint deviation", "within paper ± 2 deviations"),
)
OTHER_IMAGES = "other images"
NOTES_FILE = "notes.md"
# What each file of a report has and a file of somebody else's has not.
MARKS = {
    "README.md": "\nWritten by `selfens reproduce --report` from the records in `runs/`",
    "report.html": "<p>Written by <code>selfens reproduce --report</code> from the records in <code>runs/</code>",
    FIGURE_FILE: "<!-- Written by selfens reproduce (report) -->",
}
OF_THE_FIGURE = tuple(claim for claim in CLAIMS if claim.cell.startswith("noise/"))


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
    from selfens.files.tensors import write_atomically

    _check_pages(store)
    summaries = summarize(CELLS.values(), store.read(CELLS.values()))
    figure = noise_figure(summaries)
    contents = {"README.md": _render("report.md", summaries, store, figure)}
    contents["report.html"] = _render("report.html", summaries, store, figure)
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
    """Refuse to write over a page that somebody else has written."""
    for name, mark in MARKS.items():
        path = store.root / name
        if path.exists() and not (path.is_file() and mark in path.read_text(errors="replace")):
            raise RunError(f"{path} is there already and not a report of ours; choose another --results.")


def _notes(store: Store) -> list[str]:
    """What people have to say about these records, a paragraph each."""
    path = store.root / NOTES_FILE
    text = path.read_text(errors="replace") if path.is_file() else ""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _render(template: str, summaries: dict[str, Summary], store: Store, figure: str | None) -> str:
    return render(
        template,
        folder=TEMPLATES,
        sections=sections(summaries),
        notes=_notes(store),
        quick=store.quick,
        figure=figure,
        figure_file=FIGURE_FILE,
    )


def sections(summaries: dict[str, Summary]) -> list[Section]:
    """Everything the report says."""
    parts = [part for table in TABLES.values() for part in _table_sections(table, summaries)]
    others = [claim for claim in CLAIMS if claim not in OF_THE_FIGURE]
    return [*parts, _claims("Claims in the paper's text", 2, others, summaries), _runs(summaries)]


def _table_sections(table: Table, summaries: dict[str, Summary]) -> list[Section]:
    parts = [_comparison(table, summaries)]
    if table.name == "noise":
        parts.append(_claims("What the paper says of the figure", 3, OF_THE_FIGURE, summaries))
    paired = pairs(table, summaries) if table.name != "claims" else []  # of those, the claims say which belong together
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
    cell = summary.cell
    ours = needed(cell) if cell.extra and not summary.records else in_words(summary)
    count = str(len(summary.errors) or "")
    difference = "" if summary.difference is None else spread([summary.difference], signed=True)
    within = (_yes_or_no(summary.within_joint), _yes_or_no(summary.within_two))
    if difference and summary.has_stand_in:
        within = (OTHER_IMAGES, OTHER_IMAGES)
    elif difference and summary.diverged:
        within = (f"{within[0]}, of those that ended", f"{within[1]}, of those that ended")
    return (cell.row, cell.column, ours, count, paper_in_words(cell), str(cell.runs or ""), difference, *within)


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
    paper = "" if pair.paper is None else spread([pair.paper], signed=True)
    ours, count = spread(differences, signed=True), str(len(differences))
    return (first.column, first.row, second.row, ours, count, paper, _yes_or_no(pair.same_labels))


def _earlier(table: Table) -> Section:
    rows = [(each.system, each.column, each.figure, each.remark) for each in table.earlier]
    note = "Figures of earlier systems as the paper quotes them; none of them is ours."
    return Section("Earlier systems, as published", 3, (note,), ("system", "labels", "error %", ""), tuple(rows))


def _claims(title: str, level: int, claims: Sequence[Claim], summaries: dict[str, Summary]) -> Section:
    rows = [(claim.text, claim.paper, measured(claim, summaries)) for claim in claims]
    note = "Points are points of test error by which the setting said to be worse is above the other, paired by seed."
    return Section(title, level, (note,), ("claim", "paper", "ours"), tuple(rows))


def _runs(summaries: dict[str, Summary]) -> Section:
    rows = [_run_row(record) for summary in summaries.values() for record in summary.records]
    headers = ("run", "seed", "error %", "seconds", "s per epoch", "hardware", "precision", "torch", "commit", "note")
    notes: tuple[str, ...] = (
        "One line per record under `runs/`; the error is the last epoch's, never the best one's. Seconds include "
        "tests and checkpoints; where the device was shared they are in brackets and say nothing about speed.",
    )
    notes += tuple(_different_files(summaries))
    return Section("All runs", 2, notes if rows else ("No run has been recorded yet.",), headers, tuple(rows))


def _different_files(summaries: dict[str, Summary]) -> Iterator[str]:
    """A sentence for each data set that was not the same in all runs."""
    hashes: dict[str, set[str]] = {}
    for summary in summaries.values():
        for record in summary.records:
            if not record.extra:  # which are in the hash
                hashes.setdefault(record.config.data.name, set()).add(record.data)
    for name, found in hashes.items():
        if len(found) > 1:
            yield f"The runs on {name} were trained on {len(found)} different versions of its files, by their hashes (`data`)."


def _run_row(record: Record) -> tuple[str, ...]:
    times = (f"{record.seconds:.0f}", f"{record.seconds_per_epoch:.2f}")
    environment = record.environment
    return (
        record.key,
        str(record.seed),
        "diverged" if record.final_error is None else f"{record.final_error:.2f}",
        *(f"({time})" if record.shared_device else time for time in times),
        *(shown(str(environment.get(name, "?"))) for name in ("device", "precision", "torch")),
        (record.commit or "not recorded").partition("-")[0][:12]
        + ("-dirty" if "dirty" in (record.commit or "") else ""),
        "; ".join(filter(None, [extra_words(record.extra) if record.extra else "", shown(record.note)])),
    )
