"""The command `selfens reproduce`. Imports only typer at the top: `selfens --help` must not wait for torch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfens.errors import ConfigError, RunError, unknown_name

# Here, because the tables themselves take time to import.
TABLE_NAMES = "cifar10, svhn, cifar100, tiny, noise, baseline or claims"

INCOMPLETE = 3
"""Exit code if runs are missing though nothing failed and nobody stopped it."""

if TYPE_CHECKING:
    from selfens.experiments.cells import Cell, Table, Task
    from selfens.experiments.data import Source
    from selfens.experiments.pool import Pool
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
        typer.Option(metavar="SOURCE", help="Extra unlabeled images for the table 'tiny'."),
    ] = None,
    results: Annotated[Path, typer.Option(file_okay=False, help="Where records and report are.")] = Path("results"),
) -> None:
    """Run what is missing of the paper's tables, or write the report."""
    from selfens.experiments import data
    from selfens.experiments.records import Store
    from selfens.experiments.tables import TABLES

    tables = {name: data.quick(each) if quick else each for name, each in TABLES.items()}
    store = Store(results / "quick" if quick else results)
    for_runs = (cells, seeds, devices, max_minutes, data_dir, extra)
    if table is None and any(option is not None for option in for_runs):
        names = "--cells, --seeds, --devices, --max-minutes, --data-dir and --extra"
        raise ConfigError(f"{names} are for the runs of a table; write 'selfens reproduce TABLE'.")
    if table is None and not report:
        _list(tables.values(), store)
    if report:
        from selfens.experiments.report import check_report, write_report

        check_report(store)  # before, not after days of training
    if table is not None:
        source = data.Source(data_dir, extra, quick)
        pool = _run(_tasks(tables, table, cells, seeds, source), store, source, devices, max_minutes)
    if report:
        _say("written: " + ", ".join(map(str, write_report(store, list(tables.values()), quick=quick))))
    if table is not None:
        _finish(pool)


# What is asked for


def _tasks(tables: dict[str, Table], table: str, cells: str | None, seeds: str | None, source: Source) -> list[Task]:
    """The runs asked for; one seed of every cell before the next seed of any, so that tables fill evenly."""
    from selfens.experiments.cells import Task

    if table not in tables:
        raise ConfigError(unknown_name("table", table, tables))
    chosen, numbers = choose_cells(tables[table], cells, source), None if seeds is None else parse_seeds(seeds)
    runs = {cell: 1 if source.quick else cell.runs or 1 for cell in chosen}
    tasks = [Task(cell, seed) for cell in chosen for seed in numbers or range(runs[cell])]
    return sorted(tasks, key=attrgetter("seed"))


def choose_cells(table: Table, names: str | None, source: Source) -> list[Cell]:
    """The cells named, separated by commas; without names, all that can be run with the extra images given."""
    if source.extra and (source.quick or not any(cell.extra for cell in table.cells)):
        reason = "--quick makes up its images" if source.quick else f"table {table.name} has no cell with extra images"
        raise ConfigError(f"--extra was given, but {reason}; leave it out.")
    known = {cell.name: cell for cell in table.cells}
    possible = [name for name, cell in known.items() if not _hindrance(cell, source)]
    chosen = [name.strip() for name in names.split(",")] if names is not None else possible or list(known)
    for name in chosen:
        if name not in known:
            raise ConfigError(unknown_name(f"{table.name} cell", name, known))
        if hindrance := _hindrance(known[name], source):
            raise ConfigError(f"{table.name}/{name} needs {hindrance}.")
    return [known[name] for name in dict.fromkeys(chosen)]


def _hindrance(cell: Cell, source: Source) -> str:
    """What a cell needs and does not have."""
    if source.quick or cell.extra is None:
        return ""
    if cell.extra == "restricted":
        return "categories of Tiny Images, which was withdrawn by its makers; only the random cells can be run"
    return "" if source.extra else "extra unlabeled images; add --extra with natural images"


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


def parse_devices(text: str | None, *, quick: bool) -> list[str]:
    """`0,1` or `cpu`. By default every GPU, else the CPU."""
    import torch

    gpus = torch.cuda.device_count()
    default = ["cpu"] * 2 if quick else [str(number) for number in range(gpus)] or ["cpu"]
    names = default if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != "cpu" and not name.isdecimal():
            raise ConfigError(f"--devices is '{text}'; expected numbers of GPUs such as 0,1, or cpu.")
        if name != "cpu" and int(name) >= gpus:
            raise ConfigError(
                f"GPU {name} was asked for, but torch sees {gpus} here, numbered from 0; name others, or cpu."
            )
    return names


# Running


def _run(tasks: list[Task], store: Store, source: Source, devices: str | None, max_minutes: float | None) -> Pool:
    from selfens.experiments.pool import Pool

    if max_minutes is not None and not max_minutes > 0:
        raise ConfigError(f"--max-minutes is {max_minutes:g}; expected more than 0.")
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    names = parse_devices(devices, quick=source.quick)
    store.read(dict.fromkeys(task.cell for task in tasks))  # a damaged record is found before, not after
    if source.quick:
        _say("quick: made-up images and a small network, to see that everything works; no error means anything.")
    elif devices is None and names == ["cpu"]:
        _say("warning: torch sees no GPU here, and on a CPU one run takes days; --quick tries everything out.")
    if not source.quick:
        check_data(tasks, store, source)
    pool = Pool(store, source, names, _say)
    pool.run(tasks, deadline)
    return pool


def check_data(tasks: Sequence[Task], store: Store, source: Source) -> None:
    """Read, and if need be download, each data set once before several processes want it. A cell whose records have other
    extra images is refused."""
    from selfens.experiments.records import Images

    needed = [task for task in tasks if task.cell.extra or not store.has(task)]
    for task in {(task.cell.config.data.name, task.cell.extra): task for task in reversed(needed)}.values():
        images = Images(source=Path(source.extra or "").name, rows=source.dataset(task, progress=True).extra_rows)
        for record in store.read({each.cell for each in needed if each.cell.extra == task.cell.extra is not None}):
            if record.extra != images:
                raise RunError(f"{record.key} has runs with {record.extra}, not {images}; use another results folder.")


def _finish(pool: Pool) -> None:
    """The last line, and the exit code."""
    missing = "1 run is missing" if pool.missing == 1 else f"{pool.missing} runs are missing"
    if pool.stopped:
        _say(f"stopped; {missing}. Call again to go on.")
        raise typer.Exit(130)
    if pool.missing and pool.failed:
        raise RunError(f"{missing}, {pool.failed} of them because of the errors above; call again to go on.")
    if pool.missing:
        reason = "the time is up" if pool.time_is_up else "another process is doing the rest"
        _say(f"{reason}; {missing}. Call again to go on.")
        raise typer.Exit(INCOMPLETE)
    _say("all runs asked for are done; --report writes a page of them.")


# Listing


def _list(tables: Iterable[Table], store: Store) -> None:
    """The tables, their cells, and what has been run."""
    from rich.table import Table as Grid

    from selfens.experiments.report import paper_error, summarize
    from selfens.training.progress import wide_console

    for table in tables:
        grid = Grid(box=None)
        for header in ("cell", "ours, error %", "runs", "paper, error %", "runs"):
            grid.add_column(header, min_width=31 if header == "cell" else None)
        for name, found in summarize(table.cells, store).items():
            runs = str(len(found.records)), str(found.cell.runs or "")
            grid.add_row(name.partition("/")[2], found.error, runs[0], paper_error(found.cell), runs[1])
        _say(f" {table.name}: {table.title}")
        wide_console(100).print(grid)
    _say("\nTo run what is missing of a table: selfens reproduce TABLE")


def _say(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, markup=False, soft_wrap=True)
