"""The commands that train: train, resume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfens import console
from selfens.cli.options import (
    BaselinesOption,
    DataOption,
    Device,
    QuietOption,
    ReportOption,
    RunArgument,
    SetOption,
    TensorBoardOption,
    TrustOption,
)
from selfens.console import say
from selfens.core import launcher
from selfens.errors import ConfigError, SelfensError
from selfens.experiments.command import GpusOption, RayOption, parse_seeds
from selfens.settings import parse, seconds

if TYPE_CHECKING:
    from selfens.config import Config

STARTUP = 1.0  # seconds that a process takes to start and to exit
MIN_REPORT, REPORT_SHARE = 6.0, 0.1  # time reserved for baselines and report: seconds, or if more, share of the limit


def train(
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="A preset, .npz file, folder of images or .txt files, table.")
    ],
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="A table's column of labels.")] = None,
    id_column: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="A table's column of ids.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A table's column of text; may be repeated.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="How many labels to use, or 'all'.")] = None,
    labels_file: Annotated[Path | None, typer.Option(help="The labels to use, such as a corrected audit.")] = None,
    add_labels: Annotated[
        list[Path] | None, typer.Option(help="More labels, such as suggestions filled in; may be repeated.")
    ] = None,
    prior: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What another model says about the training rows (CSV, npz).")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'selfens methods'.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed for labels, split and training.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several runs, such as 0-9 or 0,3; beside each other.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Number of epochs; ramps scale with it.")] = None,
    time_limit: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 5m, including the report.")] = None,
    device: Annotated[Device | None, typer.Option(help="Where to train.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the official files are, or are downloaded to.")] = None,
    size: Annotated[int | None, typer.Option(help="Side in pixels that a folder's images are scaled to.")] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="timm:NAME or module:factory: train on features; may be repeated."),
    ] = None,
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Train the whole backbone, from what its frozen features teach.")
    ] = False,
    weights: Annotated[str | None, typer.Option(metavar="FILE", help="The backbone's weights, if not its own.")] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="How examples become inputs; may be repeated for text."),
    ] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep features in the user's cache.")] = True,
    run: Annotated[Path | None, typer.Option("--run", "--run-dir", help="Run directory; default: in runs/.")] = None,
    ray: RayOption = None,
    gpus: GpusOption = None,
    baselines: BaselinesOption = None,
    report: ReportOption = True,
    tensorboard: TensorBoardOption = False,
    quiet: QuietOption = False,
    overrides: SetOption = None,
) -> None:
    """Train, and leave everything in a run directory; with several seeds, in one for each."""
    began = time.perf_counter()
    limit = None if time_limit is None else seconds("--time-limit", time_limit)
    fields = {text.partition("=")[0].strip(): text for text in overrides or []}
    numbers = None if seeds is None else parse_seeds(seeds)
    several = None if seeds is None and ray is None else True
    for pair in (
        {"--seed": seed, "--seeds": seeds},
        {"--seeds or --ray": several, "--time-limit": limit},
        {"--seeds or --ray": several, "--tensorboard": tensorboard or None},
        {"a time limit": limit, "a number of epochs": fields.get("schedule.epochs", epochs)},
        {"--labels": labels, "--labels-file": labels_file},
        {"--labels-file": labels_file, "--add-labels": add_labels or None},
        {"--backbone": backbone or None, "--encoder": encoder or None},
        {"--method": method, "--finetune": finetune or None},
    ):
        if None not in pair.values():
            raise ConfigError(f"{' and '.join(pair)} were both given; leave one of them out.")
    for field, option in (("method.name", "--method"), ("encoder.name", "--encoder"), ("encoder.model", "--backbone")):
        if field in fields:
            raise ConfigError(f"{field} was set; use {option}, which also applies the settings that go with it.")
    if ray is None and gpus is not None:
        raise ConfigError("--gpus is for runs on a Ray cluster; add --ray.")
    if several and launcher.world_size() > 1:
        raise ConfigError("torchrun starts several processes for one run; leave it out, or --seeds and --ray.")
    if not backbone and (weights is not None or not cache):
        raise ConfigError("--weights and --no-cache are for a backbone; name it with --backbone.")
    if finetune and len(backbone or []) != 1:
        raise ConfigError("--finetune is for one backbone; name it with --backbone.")
    if labels is not None and labels.lower() == "none":
        raise ConfigError("--labels is 'none'; expected a whole number or 'all'.")
    from selfens import auto
    from selfens.training import loop

    chosen_encoder = auto.encoder_for(encoder) if encoder else None
    if backbone:
        if weights is not None and len(backbone) > 1:
            raise ConfigError("--weights is for one backbone, but several were named; name one, or leave it out.")
        chosen_encoder, size = auto.backbone_for(backbone, weights=weights, size=size, cache=cache), None
    named = {"label": label, "id": id_column, "text": tuple(text or ()) or None}
    options: dict[str, Any] = {**named, "folder": data_dir and str(data_dir), "size": size}
    of_source = {name.removeprefix("source."): given.partition("=")[2].strip() for name, given in fields.items()
                 if name.startswith("source.") and "=" in given and name != "source.name"}  # fmt: skip
    chosen, peek = auto.config_for(
        source,
        method=method,
        device=device or "auto",
        encoder=chosen_encoder,
        as_text=of_source,
        finetune=finetune,
        **options,
    )
    config = chosen
    if labels is not None:
        config = config.with_values("labels", count=parse("labels.count", labels, int | None, none="all"))
    for choice, files in (("file", labels_file and [labels_file]), ("added", add_labels)):
        if files:
            config = config.with_values("labels", choice=choice, file=tuple(map(str, files)))
    config = config if prior is None else config.with_values("labels", prior=str(prior))
    config = config if epochs is None else config.with_epochs(epochs)
    config = config if device is None else config.with_values("training", device=device)
    config = config if seed is None else config.with_values("seed", base=seed)
    config = config.with_overrides(overrides or [])
    note = "" if peek is None else auto.explain(peek, chosen, config, timed=limit is not None)
    if several:
        from selfens.cli.seeds import train_seeds

        numbers = numbers or [config.seed.base]
        gpus = (0.0 if device == "cpu" else 1.0 if device == "cuda" else None) if gpus is None else gpus
        train_seeds(config, numbers, run, note=note, baselines=baselines, report=report, ray=ray, gpus=gpus)
        return
    afterward = 0.0
    if limit is not None:
        afterward = max(MIN_REPORT, REPORT_SHARE * limit) if report or baselines is not False else 0.0
        spent = time.perf_counter() - began + STARTUP + afterward
        if spent >= limit:
            needed = f"but starting, comparing and reporting take {spent:.0f} s"
            raise ConfigError(f"--time-limit is {limit:g} s, {needed}; allow more, or add --no-report --no-baselines.")
        limit -= spent
    with _directory_for(config, run) as directory, console.interruptible(directory):
        show = console.display(directory, tensorboard, quiet)
        trained = loop.train(config, directory, progress=show, time_limit=limit, note=note)
    console.finish(trained, show, baselines, report, quiet, None if limit is None else afterward)


def resume(
    run: RunArgument,
    data: DataOption = None,
    baselines: BaselinesOption = None,
    report: ReportOption = True,
    tensorboard: TensorBoardOption = False,
    trust_code: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Continue a run from its last checkpoint."""
    from selfens import load_run
    from selfens.runs.directory import REPORT
    from selfens.training import loop

    before = load_run(run, trust_code=trust_code)
    if not before.finished:
        moved = before.data(source=data).dataset if data else None
        show = console.display(run, tensorboard, quiet)
        with console.interruptible(run):
            finished = loop.resume(run, dataset=moved, progress=show, trust_code=trust_code)
        console.finish(finished, show, baselines, report, quiet)
        return
    lacks = report and not (before.path / REPORT).is_file() and not before.was_passed_data  # the page comes last
    if not quiet:
        say(f"{run} is complete; {'writing what is missing' if lacks else 'there is nothing to resume'}.")
    if lacks:
        show = console.display(run, False, quiet)
        try:
            before.data(source=data)
            console.finish(before, show, baselines, report, quiet)
            return
        except SelfensError as error:
            show.warn(f"this could not be written: {error}")
    console.say_result(before, quiet, [])


@contextmanager
def _directory_for(config: Config, wanted: Path | None) -> Iterator[Path]:
    """Yield the directory that was asked for, or create runs/DATA-METHOD-seedN or the first free name after it."""
    from selfens.runs.directory import free_directory

    if wanted is not None:
        yield wanted
        return
    if launcher.world_size() > 1:
        raise ConfigError("several processes must agree on a directory; name it with --run-dir DIRECTORY.")
    name = Path(config.source.title).stem
    directory = free_directory(Path("runs") / f"{name}-{config.method.name}-seed{config.seed.base}")
    try:
        yield directory
    except BaseException:
        with suppress(OSError):  # unless they hold something
            directory.rmdir()
            directory.parent.rmdir()
        raise
