"""The command `selfens reproduce`. Only typer is imported at the top, so that `selfens --help` does not wait for torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfens.errors import ConfigError, RunError, unknown_name

if TYPE_CHECKING:
    from selfens.experiments.data import DataLocation
    from selfens.experiments.pool import Job
    from selfens.experiments.records import Store
    from selfens.experiments.tables import Cell, Table, Task

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Use the Ray cluster at HOST:PORT; without an address, the one of RAY_ADDRESS or of this machine.",
    ),
]
GpusOption = Annotated[
    float | None,
    typer.Option(metavar="PART", help="With --ray: GPUs for each run, such as 0.5. Default: 1 if there are any."),
]


def with_ray_address(words: Sequence[str]) -> list[str]:
    """Replace `--ray` without an address by `--ray=auto`, so that the next word is not taken for the address.

    >>> with_ray_address(["reproduce", "--ray", "noise"]), with_ray_address(["--ray", "10.0.0.1:6379", "noise"])
    (['reproduce', '--ray=auto', 'noise'], ['--ray', '10.0.0.1:6379', 'noise'])
    """
    following = [*words[1:], ""]
    return [
        "--ray=auto" if word == "--ray" and ":" not in after and after != "auto" else word
        for word, after in zip(words, following, strict=True)
    ]


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="Do the missing runs of this table; without one, list the tables."),
    ] = None,
    cells: Annotated[str | None, typer.Option(help="Only these cells, separated by commas.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds such as 0-9 or 0,3; default: as many as the table has.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the official files.")] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="cpu, or GPU numbers such as 0,1; 0,0 does two runs at a time on GPU 0. Default: all GPUs."),
    ] = None,
    ray: RayOption = None,
    gpus: GpusOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Try everything out, with small runs on digits.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write README.md from the records.")] = False,
    extra: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Extra unlabeled images for the table 'tiny'.")
    ] = None,
    results: Annotated[Path, typer.Option(file_okay=False, help="Folder of the records and the report.")] = Path(
        "results"
    ),
) -> None:
    """Do the missing runs of one of the paper's tables, or write the report."""
    from selfens.experiments import data
    from selfens.experiments.records import Store
    from selfens.experiments.report import check_report, write_report
    from selfens.experiments.tables import TABLES, Task

    tables = {name: data.quick(each) if quick else each for name, each in TABLES.items()}
    store = Store(results / "quick" if quick else results)
    location = data.DataLocation(data_dir and data_dir.absolute(), extra and os.path.abspath(extra), quick)
    if ray is None and gpus is not None:
        raise ConfigError("--gpus is for runs on a Ray cluster; add --ray, or choose --devices.")
    if ray is not None and devices is not None:
        raise ConfigError("--ray and --devices were both given; on a cluster, --gpus says what a run gets.")
    if report:
        check_report(store)  # fail now, not after days of training
    if table is not None:
        if table not in tables:
            raise ConfigError(unknown_name("table", table, tables))
        numbers = None if seeds is None else parse_seeds(seeds)
        tasks = [
            Task(cell, seed)
            for cell in choose_cells(tables[table], cells, location)
            for seed in numbers or range(1 if quick else cell.seeds or cell.runs or 1)
        ]
        tasks.sort(key=lambda task: task.seed)  # every cell once before any cell twice
        failed, stopped = _run(tasks, store, location, devices, ray, gpus)
    elif any(option is not None for option in (cells, seeds, devices, data_dir, extra, ray)):
        names = "--cells, --seeds, --devices, --ray, --data-dir and --extra"
        raise ConfigError(f"{names} are for the runs of a table; write 'selfens reproduce TABLE'.")
    elif not report:
        _list(tables.values(), store)
    if report:
        typer.echo("written: " + ", ".join(map(str, write_report(store, list(tables.values()), quick=quick))))
    if table is not None:
        _finish(sum(not store.has(task) for task in tasks), failed, stopped)


def choose_cells(table: Table, names: str | None, location: DataLocation) -> list[Cell]:
    """Return the cells of these names, separated by commas; by default all that can run with the extra images given."""
    known = {cell.name: cell for cell in table.cells}
    possible = [name for name, cell in known.items() if not _missing_images(cell, location)]
    chosen = [name.strip() for name in names.split(",")] if names is not None else possible or list(known)
    for name in chosen:
        if name not in known:
            raise ConfigError(unknown_name(f"{table.name} cell", name, known))
        if missing := _missing_images(known[name], location):
            raise ConfigError(f"{table.name}/{name} needs {missing}.")
    if location.extra and (location.quick or not any(known[name].extra for name in chosen)):
        raise ConfigError("--extra is for cells with extra images without --quick; leave it out.")
    return [known[name] for name in dict.fromkeys(chosen)]


def _missing_images(cell: Cell, location: DataLocation) -> str:
    """Return the extra images that a cell needs and does not have, or ""."""
    if location.quick or cell.extra is None:
        return ""
    if cell.extra == "restricted":
        return "categories of Tiny Images, which its authors have withdrawn; only the random cells can be run"
    return "" if location.extra else "extra unlabeled images; add --extra with natural images"


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in ascending order.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        numbers = range(int(first), int(last or first) + 1) if re.fullmatch(r"\d{1,3}(-\d{1,3})?", part.strip()) else ()
        if not numbers:
            raise ConfigError(f"--seeds is '{text}'; expected numbers below 1000 and ranges such as 0-9 or 0,3,5.")
        seeds.update(numbers)
    return sorted(seeds)


def parse_devices(text: str | None, *, quick: bool) -> list[str]:
    """Return the devices; by default every GPU, or the CPU if there is none."""
    import torch

    gpus = torch.cuda.device_count()
    default = ["cpu"] * 2 if quick else [str(number) for number in range(gpus)] or ["cpu"]
    names = default if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != "cpu" and not (name.isdecimal() and int(name) < gpus):
            expected = f"cpu, or numbers such as 0,1 of the GPUs; torch sees {gpus}"
            raise ConfigError(f"--devices is '{text}'; expected {expected}.")
    return names


def _run(
    tasks: list[Task], store: Store, location: DataLocation, devices: str | None, ray: str | None, gpus: float | None
) -> tuple[int, bool]:
    from selfens.experiments.cluster import Cluster
    from selfens.experiments.pool import Processes, run_all
    from selfens.experiments.worker import CellRun

    jobs: list[Job] = [CellRun(task, location) for task in tasks]
    names = parse_devices(devices, quick=location.quick) if ray is None else []
    store.read(dict.fromkeys(task.cell for task in tasks))  # find a damaged record now, not after training
    slow = "and on a CPU one run takes days; --quick tries everything out."
    if location.quick:
        typer.echo("quick: small runs on digits, to check that everything works; their errors mean nothing.")
    elif ray is None:
        if devices is None and names == ["cpu"]:
            typer.echo(f"warning: torch sees no GPU here, {slow}")
        check_data(tasks, store, location)
    else:
        # The extra images must be the same in all runs.
        check_data([task for task in tasks if task.cell.extra], store, location)
    if ray is None:
        return run_all(jobs, store.root, Processes(names), typer.echo)
    with Cluster(ray, gpus, typer.echo) as cluster:
        typer.echo(cluster.describe(len(jobs)))
        if not location.quick and not cluster.gpus:
            typer.echo(f"warning: the runs get no GPU, {slow}")
        cluster.check([job for job in jobs if not job.is_done(store.root)])
        return run_all(jobs, store.root.absolute(), cluster, typer.echo)


def check_data(tasks: Sequence[Task], store: Store, location: DataLocation) -> None:
    """Read or download each data set once, before several processes do. Refuse a cell whose records had other extra images."""
    from selfens.data import sources
    from selfens.experiments.records import ExtraImages

    needed = [task for task in tasks if task.cell.extra or not store.has(task)]
    for task in {(task.cell.config.source.title, task.cell.extra): task for task in reversed(needed)}.values():
        images = ExtraImages(source=Path(location.extra or "").name, rows=location.load(task, progress=True).extra_rows)
        for record in store.read({each.cell for each in needed if each.cell.extra == task.cell.extra is not None}):
            if record.extra != images:
                raise RunError(f"{record.key} has runs with {record.extra}, not {images}; use another results folder.")
    for options in {location.config(task).source.changed({"extra": None}): None for task in needed}:
        if warning := sources.build(options).warning():
            typer.echo(f"warning: {warning}")


def _finish(missing: int, failed: int, stopped: bool) -> None:
    """Print the last line and set the exit code."""
    left = "1 run is missing" if missing == 1 else f"{missing} runs are missing"
    if stopped:
        typer.echo(f"stopped; {left}. Run it again to continue.")
        raise SystemExit(130)
    if missing and failed:
        raise RunError(f"{left}, {failed} of them because of the errors above; run it again to continue.")
    if missing:
        typer.echo(f"another process is doing the rest; {left}. Run it again to continue.")
        raise typer.Exit(3)
    typer.echo("all requested runs are done; --report writes a report on them.")


def _list(tables: Iterable[Table], store: Store) -> None:
    from selfens.experiments.report import summarize

    line, count = "  {:<30} {:<42} {:>4}  {:<14} {:>4}", 0
    for table in tables:
        typer.echo(f"{table.name}: {table.title}")
        typer.echo(line.format("cell", "ours, error %", "runs", "paper, error %", "runs"))
        for found in summarize(table.cells, store).values():
            cell, runs = found.cell, len(found.records)
            typer.echo(line.format(cell.name, found.error, runs, cell.error, cell.runs or "").rstrip())
            count += runs
    typer.echo(f"\n{count or 'no'} records in {store.root.resolve()}; another folder: --results")
    typer.echo("To do the missing runs of a table: selfens reproduce TABLE")
