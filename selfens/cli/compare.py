"""The command that ranks methods on one's own data: compare."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from selfens import console
from selfens.cli.options import Device, QuietOption, ReportOption, SetOption
from selfens.console import say
from selfens.errors import ConfigError
from selfens.settings import parse
from selfens.settings import seconds as parse_seconds

STARTUP, REPORT_SECONDS = 1.0, 3.0  # not for training, if there is a time limit


def compare(
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="A preset, .npz file, folder of images or .txt files, table.")
    ],
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="See 'selfens methods'; default: those that suit the data.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="A table's column of labels.")] = None,
    id_column: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="A table's column of ids.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A table's column of text; may be repeated.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="How many labels to use, or 'all'.")] = None,
    labels_file: Annotated[Path | None, typer.Option(help="The labels to use, such as a corrected audit.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed for labels, split and training.")] = None,
    time_limit: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 5m, for all methods.")] = None,
    device: Annotated[Device | None, typer.Option(help="Where to train.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the official files are, or are downloaded to.")] = None,
    size: Annotated[int | None, typer.Option(help="Side in pixels that a folder's images are scaled to.")] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="How examples become inputs; may be repeated for text."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--run-dir", help="Folder for the runs; default: runs/DATA-compare.")
    ] = None,
    report: ReportOption = True,
    quiet: QuietOption = False,
    overrides: SetOption = None,
) -> None:
    """Train several methods on the same labels, judge them on the same rows, and rank them."""
    began = time.perf_counter()
    limit = None if time_limit is None else parse_seconds("--time-limit", time_limit)
    if labels is not None and labels_file is not None:
        raise ConfigError("--labels and --labels-file were both given; leave one of them out.")
    from selfens import auto
    from selfens.report.page import write_report
    from selfens.runs.directory import REPORT, free_directory
    from selfens.tools.ranking import rank, suitable_methods
    from selfens.training.progress import for_terminal

    named = {"label": label, "id": id_column, "text": tuple(text or ()) or None, "size": size}
    options: dict[str, Any] = {**named, "folder": data_dir and str(data_dir), "device": device or "auto"}
    options["encoder"] = auto.encoder_for(encoder) if encoder else None
    names = [*dict.fromkeys(filter(None, map(str.strip, (methods or "").split(","))))]
    if methods is None:
        names = [*suitable_methods(auto.config_for(source, **options)[0])]
    configs = {}
    for name in names:
        config, _ = auto.config_for(source, method=name, **options)
        if labels is not None:
            config = config.with_values("labels", count=parse("labels.count", labels, int | None, none="all"))
        if labels_file is not None:
            config = config.with_values("labels", choice="file", file=(str(labels_file),))
        config = config if device is None else config.with_values("training", device=device)
        config = config if seed is None else config.with_values("seed", base=seed)
        configs[name] = config.with_overrides(overrides or [])
    root = folder or free_directory(Path("runs") / f"{Path(source).stem}-compare")
    if limit is not None:
        spent = time.perf_counter() - began + STARTUP + (REPORT_SECONDS if report else 0.0)
        if spent >= limit:
            raise ConfigError(
                f"--time-limit is {limit:g} s, but starting and reporting take {spent:.0f} s; allow more."
            )
        limit -= spent
    with console.interruptible():
        ranking = rank(configs, root, seconds=limit, display=lambda: for_terminal(quiet))
    for line in ranking.lines:
        say(line)
    is_tested = not ranking.comparison.evidence.folds  # the page of several runs shows errors on test rows only
    if report and is_tested and len(ranking.runs) > 1:
        say(f"report in {write_report([*ranking.runs.values()], root / REPORT, baselines=False)}")
    winner = ranking.runs[ranking.best].path
    say(f"to predict with {ranking.best}: selfens predict {shlex.quote(str(winner))} INPUT -o out.csv")
