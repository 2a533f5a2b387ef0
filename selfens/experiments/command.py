"""The command `selfens reproduce`. Imports only typer at the top: `selfens --help` must not wait for torch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfens.errors import ConfigError, RunError

# Here, because the tables themselves take time to import.
TABLE_NAMES = "cifar10, svhn, cifar100, tiny, noise, baseline or claims"

LIST_WIDTH = 100
DEFAULT_RESULTS = Path("results")

if TYPE_CHECKING:
    from rich.console import Console

    from selfens.experiments.cells import Cell
    from selfens.experiments.cells import Table as PaperTable
    from selfens.experiments.extra_images import ExtraImages
    from selfens.experiments.records import Store
    from selfens.experiments.runner import Outcome
    from selfens.experiments.tables import Task


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
    max_minutes: Annotated[float | None, typer.Option(help="Stop at a checkpoint then; call again to go on.")] = None,
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
    from rich.console import Console

    from selfens.experiments.records import Store
    from selfens.training.progress import wide_console

    _check_results(results)
    store, console = Store(results, quick=quick), Console()
    outcome = None
    for path in store.strays():
        _say(
            console,
            f"warning: {path} is not where the records of any cell are, seedNNN.json in its folder; not counted.",
        )
    if table is None:
        _refuse_without_table(
            cells=cells,
            seeds=seeds,
            devices=devices,
            max_minutes=max_minutes,
            data_dir=data_dir,
            extra=extra,
            extra_index=extra_index,
        )
        if not report:
            _list(store, wide_console(LIST_WIDTH))
    else:
        images = _extra_images(extra, extra_index, quick)
        tasks = _tasks(table, cells, seeds, images, quick)
        if quick:
            _say(
                console,
                "quick: made-up images and a small network, to see that everything works; no error means anything.",
            )
        if report:
            from selfens.experiments.report import check_report

            check_report(store)
        outcome = _run(tasks, store, console, devices, data_dir, images, max_minutes)
    if report:
        from selfens.experiments.report import write_report

        _say(console, "written: " + ", ".join(map(str, write_report(store))))
    if outcome is not None:
        _finish(outcome, console, reported=report)


def _check_results(folder: Path) -> None:
    try:
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise ConfigError(f"--results is {folder}, which cannot be read ({error.strerror}); choose another.") from None
    if is_file:
        raise ConfigError(f"--results is {folder}, which is a file; expected a folder, which may be new.")


def _refuse_without_table(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} was given without a table; write 'selfens reproduce TABLE'.")


def _extra_images(source: str | None, index: Path | None, quick: bool) -> ExtraImages | None:
    from selfens.experiments.extra_images import ExtraImages
    from selfens.experiments.quick import MADE_UP

    if quick and source is not None:
        raise ConfigError("--extra was given with --quick, whose images are all made up; leave one of the two out.")
    if source is None and index is not None:
        raise ConfigError("--extra-index was given without --extra; write --extra tiny_images.bin --extra-index FILE.")
    return MADE_UP if quick else None if source is None else ExtraImages(source, index)


def _tasks(table: str, cells: str | None, seeds: str | None, extra: ExtraImages | None, quick: bool) -> list[Task]:
    from selfens.experiments.extra_images import check_wanted
    from selfens.experiments.tables import choose_cells, find_table, parse_seeds, tasks

    if not quick:
        check_wanted(find_table(table), extra)
    chosen, named = choose_cells(find_table(table), cells, extra), None if seeds is None else parse_seeds(seeds)
    return tasks({cell: named or _default_seeds(cell, quick) for cell in chosen})


def _run(
    tasks: list[Task],
    store: Store,
    console: Console,
    devices: str | None,
    data_dir: Path | None,
    extra: ExtraImages | None,
    max_minutes: float | None,
) -> Outcome:
    from selfens.experiments.runner import parse_devices, run
    from selfens.experiments.view import Tally, for_console

    if max_minutes is not None and not max_minutes > 0:
        raise ConfigError(f"--max-minutes is {max_minutes:g}; expected more than 0.")
    store.read({task.cell.key: task.cell for task in tasks}.values())  # a damaged record is found before, not after
    places = parse_devices(devices, quick_runs=store.quick)
    if devices is None and not store.quick and places[0].device == "cpu":
        _say(console, "warning: torch sees no GPU here, and on a CPU one run takes days; --quick tries everything out.")
    view = for_console(Tally(tasks, store), console)
    return run(tasks, store, places=places, view=view, data_dir=data_dir, extra=extra, max_minutes=max_minutes)


def _finish(outcome: Outcome, console: Console, *, reported: bool) -> None:
    """The last line, and the exit code."""
    if outcome.failures:
        for sentence in outcome.failures[1:]:
            _say(console, sentence)
        raise RunError(outcome.failures[0])
    if outcome.stopped:
        _say(console, f"stopped; {_missing(outcome)}. Call again to go on.")
        raise typer.Exit(130)
    if outcome.missing:
        reason = "the time is up" if outcome.time_is_up else "another process has the rest"
        if outcome.time_is_up and not outcome.trained:
            reason = "the time was up before an epoch was trained; if that happens again, give --max-minutes more"
        _say(console, f"{reason}; {_missing(outcome)}. Call again to go on.")
    else:
        page = "" if reported else " The same command with --report writes a page of them."
        _say(console, f"all runs asked for are done.{page}")


def _missing(outcome: Outcome) -> str:
    return "1 run is missing" if outcome.missing == 1 else f"{outcome.missing} runs are missing"


def _list(store: Store, console: Console) -> None:
    """The tables, their cells, and how full they are."""
    from rich.table import Table

    from selfens.experiments.summary import in_words, paper_in_words, summarize
    from selfens.experiments.tables import CELLS, TABLES, Task

    summaries = summarize(CELLS.values(), store.read(CELLS.values()))
    for table in TABLES.values():
        wanted = {Task(cell, seed) for cell in table.cells for seed in _default_seeds(cell, store.quick)}
        done = {Task(cell, record.seed) for cell in table.cells for record in summaries[cell.key].records}
        _say(console, f" {table.name}: {table.title}; {_how_many(done, wanted)} runs")
        grid = Table(box=None)
        for header in ("cell", "runs", "ours, error %", "paper, error %"):
            grid.add_column(header, min_width=31 if header == "cell" else None)
        for cell in table.cells:
            mine = [{task for task in tasks if task.cell == cell} for tasks in (done, wanted)]
            grid.add_row(cell.name, _how_many(*mine), in_words(summaries[cell.key]), paper_in_words(cell))
        console.print(grid)
        _say(console, f" {_command(table, store)}\n")


def _how_many(done: set[Task], wanted: set[Task]) -> str:
    more = f" and {len(done - wanted)} more" if done - wanted else ""
    return f"{len(done & wanted)} of {len(wanted)}{more}"


def _default_seeds(cell: Cell, quick: bool) -> list[int]:
    from selfens.experiments.quick import SEEDS

    return list(range(SEEDS)) if quick else cell.default_seeds()


def _command(table: PaperTable, store: Store) -> str:
    """How to fill a table."""
    from selfens.experiments.extra_images import TINY_IMAGES

    extra = f" --extra {TINY_IMAGES} --extra-index tiny_index.pkl" if any(cell.extra for cell in table.cells) else ""
    where = "" if store.results == DEFAULT_RESULTS else f" --results {shlex.quote(str(store.results))}"
    return f"selfens reproduce {table.name}{' --quick' if store.quick else extra}{where}"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
