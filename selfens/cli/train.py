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
    BackboneOption,
    BaselinesOption,
    DataOption,
    Device,
    EncoderOption,
    IdColumn,
    LabelColumn,
    QuietOption,
    ReportOption,
    RunArgument,
    SetOption,
    TensorBoardOption,
    TextColumns,
    TrustOption,
    WeightsOption,
    encoder_of,
)
from selfens.console import say
from selfens.core import launcher
from selfens.errors import ConfigError, SelfensError
from selfens.experiments.command import GpusOption, RayOption, parse_seeds
from selfens.settings import parse, seconds

if TYPE_CHECKING:
    from selfens.config import Config
    from selfens.runs.run import Run

STARTUP = 1.0  # seconds that a process takes to start and to exit
MIN_REPORT, REPORT_SHARE = 6.0, 0.1  # time for baselines and report: at least 6 s, or a tenth of the limit


def train(
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="A preset, .npz file, table, or folder of images or .txt files.")
    ],
    label: LabelColumn = None,
    id_column: IdColumn = None,
    text: TextColumns = None,
    labels: Annotated[str | None, typer.Option(help="Number of labels to use, or 'all'.")] = None,
    labels_file: Annotated[
        Path | None, typer.Option(help="File of the labels to use, such as a corrected audit.")
    ] = None,
    add_labels: Annotated[
        list[Path] | None, typer.Option(help="File of more labels, such as labeled suggestions; may be repeated.")
    ] = None,
    prior: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What another model says about the training rows (CSV, npz).")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'selfens methods'.")] = None,
    class_shares: Annotated[
        str | None,
        typer.Option(metavar="SHARES", help="Of all rows: such as no=90,yes=10, or labels, equal, auto."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed for labels, split and training.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Train several runs in parallel, such as 0-9 or 0,3.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Number of epochs; ramps scale with it.")] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit such as 5m, including the report.")
    ] = None,
    device: Annotated[Device | None, typer.Option(help="Device to train on.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the official files; missing ones are downloaded.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Scale a folder's images to this side in pixels.")] = None,
    backbone: BackboneOption = None,
    finetune: Annotated[
        bool, typer.Option("--finetune", help="Train the whole backbone, from what its frozen features teach.")
    ] = False,
    weights: WeightsOption = None,
    encoder: EncoderOption = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep features in the user's cache.")] = True,
    run: Annotated[Path | None, typer.Option("--run", "--run-dir", help="Run directory; default: in runs/.")] = None,
    ray: RayOption = None,
    gpus: GpusOption = None,
    baselines: BaselinesOption = None,
    use_best: Annotated[
        bool, typer.Option("--use-best", help="If a simple method is clearly better, keep it as a run of its own too.")
    ] = False,
    report: ReportOption = True,
    tensorboard: TensorBoardOption = False,
    quiet: QuietOption = False,
    overrides: SetOption = None,
) -> None:
    """Train, and write everything to a run directory; with several seeds, to one for each."""
    began = time.perf_counter()
    limit = None if time_limit is None else seconds("--time-limit", time_limit)
    fields = {text.partition("=")[0].strip(): text for text in overrides or []}
    numbers = None if seeds is None else parse_seeds(seeds)
    several = None if seeds is None and ray is None else True
    for pair in (
        {"--seed": seed, "--seeds": seeds},
        {"--seeds or --ray": several, "--time-limit": limit},
        {"--seeds or --ray": several, "--tensorboard": tensorboard or None},
        {"--seeds or --ray": several, "--use-best": use_best or None},
        {"--no-baselines": True if baselines is False else None, "--use-best": use_best or None},
        {"a time limit": limit, "a number of epochs": fields.get("schedule.epochs", epochs)},
        {"--labels": labels, "--labels-file": labels_file},
        {"--labels-file": labels_file, "--add-labels": add_labels or None},
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
        raise ConfigError(
            "torchrun starts several processes for one run; leave out torchrun, or leave out --seeds and --ray."
        )
    if finetune and len(backbone or []) != 1:
        raise ConfigError("--finetune is for one backbone; name it with --backbone.")
    if labels is not None and labels.lower() == "none":
        raise ConfigError("--labels is 'none'; expected a whole number or 'all'.")
    from selfens import auto
    from selfens.training import loop

    chosen_encoder = encoder_of(backbone, weights, encoder, cache=cache, size=size)
    size = None if backbone else size
    columns = {"label": label, "id": id_column, "text": tuple(text or ()) or None}
    options: dict[str, Any] = {**columns, "folder": data_dir and str(data_dir), "size": size}
    source_fields = {name.removeprefix("source."): given.partition("=")[2].strip() for name, given in fields.items()
                 if name.startswith("source.") and "=" in given and name != "source.name"}  # fmt: skip
    chosen, peek = auto.config_for(
        source,
        method=method,
        device=device or "auto",
        encoder=chosen_encoder,
        as_text=source_fields,
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
    if class_shares is not None:
        if not hasattr(config.method, "class_shares"):
            raise ConfigError(f"--class-shares is for the method committee; {config.method.name} does not use them.")
        config = config.with_values("method", class_shares=class_shares)
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
    console.finish(trained, show, True if use_best else baselines, report, quiet, None if limit is None else afterward)
    if use_best:
        _keep_best(trained, report, quiet)


def _keep_best(run: Run, report: bool, quiet: bool) -> None:
    """Train the simple method that is clearly better than a run as a run of its own, beside it."""
    from selfens.runs.directory import free_directory
    from selfens.tools.comparison import comparison_of, config_of_best
    from selfens.training import loop

    comparison = comparison_of(run)
    if comparison is None:
        raise ConfigError(f"--use-best needs measured errors, but those of {run.path} could not be measured.")
    found = config_of_best(run, comparison)
    if found is None:
        say("--use-best: no simple method that can be kept is clearly better; use this run.")
        return
    name, config = found
    directory = free_directory(run.path.with_name(f"{run.path.name}-best"))
    show = console.display(directory, False, quiet)
    with console.interruptible(directory):
        best = loop.train(config, directory, progress=show, note=f"{name}, which was better than {run.path}")
    say(f"--use-best: {name} is clearly better, so it is kept as {directory}; use that run.")
    console.finish(best, show, True, report, quiet)


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
    from selfens.training import loop

    before = load_run(run, trust_code=trust_code)
    if not before.finished:
        moved = before.data(source=data).dataset if data else None
        show = console.display(run, tensorboard, quiet)
        with console.interruptible(run):
            finished = loop.resume(run, dataset=moved, progress=show, trust_code=trust_code)
        console.finish(finished, show, baselines, report, quiet)
        return
    lacks = report and not before.has_report and not before.was_passed_data  # the report is written last
    if not quiet:
        say(f"{run} is complete; {'writing what is missing' if lacks else 'there is nothing to resume'}.")
    if lacks:
        show = console.display(run, False, quiet)
        try:
            before.data(source=data)
            console.finish(before, show, baselines, report, quiet)
            return
        except SelfensError as error:
            show.warn(f"the missing files could not be written: {error}")
    console.say_result(before, quiet, [])


@contextmanager
def _directory_for(config: Config, wanted: Path | None) -> Iterator[Path]:
    """Yield the directory `wanted`, or create runs/DATA-METHOD-seedN, with -2, -3, ... if the name is taken."""
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
        with suppress(OSError):  # they are not empty
            directory.rmdir()
            directory.parent.rmdir()
        raise
