"""The command `selfens reproduce`. Imports only typer at the top: `selfens --help` must not wait for torch."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfens.errors import ConfigError, RunError, unknown_name

# Here, because the tables themselves take time to import.
TABLE_NAMES = "cifar10, svhn, cifar100, tiny, noise, baseline or claims"

LIST_WIDTH = 100
DEFAULT_RESULTS = Path("results")
INCOMPLETE = 3
"""Exit code if runs are missing though nothing failed and nobody stopped it."""

if TYPE_CHECKING:
    from selfens.experiments.cells import Cell, Table, Task
    from selfens.experiments.data import Source
    from selfens.experiments.pool import Outcome
    from selfens.experiments.records import Store


def reproduce(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help=f"{TABLE_NAMES}; without one, list them.")
    ] = None,
    cells: Annotated[str | None, typer.Option(help="Only these cells, separated by commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Such as 0-9 or 0,3; default: as many as the paper ran.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the official files are, or go.")] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="Numbers of GPUs such as 0,1, or cpu; one named twice gets two runs; default: all GPUs."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Everything small, on made-up images, to try it out.")] = False,
    max_minutes: Annotated[
        float | None, typer.Option(help="Stop at a checkpoint then (exit code 3); call again to go on.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Write README.md and report.html from the records.")] = False,
    extra: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Extra unlabeled images for the table 'tiny': tiny_images.bin or others."),
    ] = None,
    extra_index: Annotated[
        Path | None, typer.Option(help="tiny_index.pkl, to find the restricted categories in tiny_images.bin.")
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Where records and report are.")] = DEFAULT_RESULTS,
) -> None:
    """Run what is missing of a table of the paper, list the tables, or write the report."""
    from selfens.experiments.data import Source
    from selfens.experiments.records import Store

    _check_results(results)
    store, outcome = Store(results, quick=quick), None
    for path in store.strays():
        _say(
            f"warning: {path} is not in the place of any cell's record (seedNNN.json in its folder) and does not count."
        )
    if table is not None:
        source = Source(data_dir, extra, extra_index, quick)
        outcome = _run(_tasks(table, cells, seeds, source), store, source, devices, max_minutes, report=report)
    else:
        needs_table = {"cells": cells, "seeds": seeds, "devices": devices, "max-minutes": max_minutes}
        for name, value in (needs_table | {"data-dir": data_dir, "extra": extra, "extra-index": extra_index}).items():
            if value is not None:
                raise ConfigError(f"--{name} was given without a table; write 'selfens reproduce TABLE'.")
        if not report:
            _list(store)
    if report:
        from selfens.experiments.report import write_report

        _say("written: " + ", ".join(map(str, write_report(store))))
    if outcome is not None:
        _finish(outcome, reported=report)


def _check_results(folder: Path) -> None:
    try:
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise ConfigError(f"--results is {folder}, which cannot be read ({error.strerror}); choose another.") from None
    if is_file:
        raise ConfigError(f"--results is {folder}, which is a file; expected a folder, which may be new.")


# What is asked for


def _check_extra(table: Table, source: Source) -> None:
    if source.quick and source.extra is not None:
        raise ConfigError("--extra was given with --quick, whose images are all made up; leave one of the two out.")
    if source.extra is None and source.extra_index is not None:
        raise ConfigError("--extra-index was given without --extra; write --extra tiny_images.bin --extra-index FILE.")
    if source.extra is not None and not any(cell.extra for cell in table.cells):
        raise ConfigError(f"--extra was given, but table {table.name} has no cell with extra images.")


def _tasks(name: str, cells: str | None, seeds: str | None, source: Source) -> list[Task]:
    """The runs asked for."""
    from selfens.experiments.cells import tasks
    from selfens.experiments.tables import TABLES

    if name not in TABLES:
        raise ConfigError(unknown_name("table", name, TABLES))
    _check_extra(TABLES[name], source)
    chosen, named = choose_cells(TABLES[name], cells, source), parse_seeds(seeds) if seeds is not None else None
    return tasks({cell: named or _default_seeds(cell, source.quick) for cell in chosen})


def choose_cells(table: Table, names: str | None, source: Source) -> list[Cell]:
    """The cells named, separated by commas; without names, all that can be run with the extra images given."""
    if names is None:
        cells = [cell for cell in table.cells if _obstacle(cell, source) is None]
    else:
        cells = list(dict.fromkeys(_find_cell(table, name.strip()) for name in names.split(",")))
    for cell in cells or table.cells:
        if reason := _obstacle(cell, source):
            raise ConfigError(f"{cell.key} cannot be run: it {reason}.")
    return cells


def _find_cell(table: Table, name: str) -> Cell:
    cells = {cell.name: cell for cell in table.cells}
    if name not in cells:
        raise ConfigError(unknown_name(f"{table.name} cell", name, cells))
    return cells[name]


def _obstacle(cell: Cell, source: Source) -> str | None:
    """Why a cell cannot be run with the extra images given, if it cannot."""
    given = source.extra_index if cell.extra == "restricted" else source.extra
    if cell.extra is None or given is not None or source.quick:
        return None
    if cell.extra == "restricted":
        return "needs --extra tiny_images.bin and --extra-index tiny_index.pkl, which finds the restricted categories in it"
    return "needs extra unlabeled images (--extra): tiny_images.bin, or any file or folder of natural images instead"


def parse_seeds(text: str) -> list[int]:
    """
    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    from selfens.experiments.cells import MAX_SEEDS

    seeds: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"--seeds is '{text}'; expected whole numbers and ranges such as 0-9 or 0,3,5.")
        low, high = int(first), int(last or first)
        if high < low or high >= MAX_SEEDS:
            raise ConfigError(f"--seeds has '{part.strip()}'; expected an ascending range of seeds below {MAX_SEEDS}.")
        seeds.update(range(low, high + 1))
    return sorted(seeds)


def _default_seeds(cell: Cell, quick: bool) -> list[int]:
    from selfens.experiments.data import QUICK_SEEDS

    return list(range(QUICK_SEEDS)) if quick else cell.default_seeds()


# Running


def _run(
    tasks: list[Task], store: Store, source: Source, devices: str | None, max_minutes: float | None, *, report: bool
) -> Outcome:
    from selfens.experiments.pool import Pool, check_data, parse_devices
    from selfens.experiments.report import check_report

    if max_minutes is not None and not max_minutes > 0:
        raise ConfigError(f"--max-minutes is {max_minutes:g}; expected more than 0.")
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    if report:
        check_report(store)
    store.read({task.cell.key: task.cell for task in tasks}.values())  # a damaged record is found before, not after
    places = parse_devices(devices, quick=store.quick)
    if store.quick:
        _say("quick: made-up images and a small network, to see that everything works; no error means anything.")
    elif devices is None and places[0].device == "cpu":
        _say("warning: torch sees no GPU here, and on a CPU one run takes days; --quick tries everything out.")
    images = {} if store.quick else check_data(tasks, store, source)
    outcome = Pool(store, source, places, _say).run(tasks, deadline)
    store.check_images(images)  # again: another command may have filled a cell with others meanwhile
    return outcome


def _finish(outcome: Outcome, *, reported: bool) -> None:
    """The last line, and the exit code."""
    missing = "1 run is missing" if outcome.missing == 1 else f"{outcome.missing} runs are missing"
    if outcome.failures:
        for sentence in outcome.failures[1:]:
            _say(sentence)
        raise RunError(outcome.failures[0])
    if outcome.stopped:
        _say(f"stopped; {missing}. Call again to go on.")
        raise typer.Exit(130)
    if outcome.missing:
        reason = "the time is up" if outcome.time_is_up else "another process is doing the rest"
        _say(f"{reason}; {missing}. Call again to go on.")
        raise typer.Exit(INCOMPLETE)
    page = "" if reported else " The same command with --report writes a page of them."
    _say(f"all runs asked for are done.{page}")


# Listing


def _list(store: Store) -> None:
    """The tables, their cells, and how full they are."""
    from rich.table import Table as Grid

    from selfens.experiments.summary import in_words, paper_in_words, summarize
    from selfens.experiments.tables import CELLS, TABLES
    from selfens.training.progress import wide_console

    summaries = summarize(CELLS.values(), store.read(CELLS.values()))
    for table in TABLES.values():
        wanted = {cell.key: set(_default_seeds(cell, store.quick)) for cell in table.cells}
        done = {cell.key: {record.seed for record in summaries[cell.key].records} for cell in table.cells}
        grid = Grid(box=None)
        for header in ("cell", "runs", "ours, error %", "paper, error %"):
            grid.add_column(header, min_width=31 if header == "cell" else None)
        for cell in table.cells:
            runs = _how_many({cell.key: done[cell.key]}, wanted)
            grid.add_row(cell.name, runs, in_words(summaries[cell.key]), paper_in_words(cell))
        _say(f" {table.name}: {table.title}; {_how_many(done, wanted)} runs")
        wide_console(LIST_WIDTH).print(grid)
        _say(f" {_command(table, store)}\n")


def _how_many(done: dict[str, set[int]], wanted: dict[str, set[int]]) -> str:
    """Runs of the cells of `done`; those beyond the ones wanted are counted separately."""
    needed = sum(len(wanted[key]) for key in done)
    found = sum(len(done[key] & wanted[key]) for key in done)
    more = sum(len(done[key] - wanted[key]) for key in done)
    return f"{found} of {needed}" + (f" and {more} more" if more else "")


def _command(table: Table, store: Store) -> str:
    """How to fill a table."""
    extra = " --extra tiny_images.bin --extra-index tiny_index.pkl" if any(cell.extra for cell in table.cells) else ""
    where = "" if store.results == DEFAULT_RESULTS else f" --results {shlex.quote(str(store.results))}"
    return f"selfens reproduce {table.name}{' --quick' if store.quick else extra}{where}"


def _say(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, markup=False, soft_wrap=True)
