"""The command `selfens`. Each command builds a config and calls one library function.

Only typer is imported at the top: `selfens --help` must not wait for torch.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from selfens import console
from selfens.console import complain, say
from selfens.core import launcher
from selfens.errors import ConfigError, DataError, SelfensError
from selfens.experiments.command import reproduce
from selfens.methods import METHODS
from selfens.settings import seconds

if TYPE_CHECKING:
    from selfens.config import Config
    from selfens.runs.run import Run
    from selfens.training.progress import Progress

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help
    context_settings={"help_option_names": ["-h", "--help"]},
)

MistypedCommand: type[Exception] = typer.BadParameter.__bases__[0]  # click's UsageError, wherever typer keeps its click

START_UP = 1.0  # seconds from the start of the process to that of a command, and at its end
MIN_REPORT, REPORT_SHARE = 6.0, 0.1  # of a time limit, for baselines and report: seconds at least, and a share

Device = Literal["auto", "cpu", "cuda"]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]
TensorBoardOption = Annotated[
    bool, typer.Option("--tensorboard", help="Write the history for TensorBoard too, into RUN/tensorboard.")
]
BaselinesOption = Annotated[
    bool | None,
    typer.Option(
        "--baselines/--no-baselines",
        help="Compare with simple methods on the same labels; by default on your own data.",
    ),
]
ReportOption = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html into the run at the end.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="PATH", help="Where the run's data is now, if it was moved.")
]
TrustOption = Annotated[
    bool, typer.Option("--trust-code", help="Import the code that the run names for its network or backbone.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Any field of the config.")
]


@app.command()
def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A preset such as digits, an .npz file, a folder or CSV of images, a table."
        ),
    ],
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A table's column of labels; empty: unlabeled.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="A table's column that identifies rows.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="How many labels to use, or 'all'.")] = None,
    labels_file: Annotated[Path | None, typer.Option(help="The labels to use, such as a corrected audit.")] = None,
    add_labels: Annotated[Path | None, typer.Option(help="More labels, such as suggestions filled in.")] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(METHODS)}; see 'selfens methods'.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="N", help="Seed for labels, split and training.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="N", help="Number of epochs; ramps scale with it.")] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 90s or 5m: as many epochs as fit, including the report.")
    ] = None,
    device: Annotated[Device | None, typer.Option(help="Where to train.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the official files are, or are downloaded to.")] = None,
    size: Annotated[int | None, typer.Option(help="Side in pixels that a folder's images are scaled to.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Train on features of a pretrained network: timm:NAME or module:factory."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="FILE", help="The backbone's weights; default: those it comes with.")
    ] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep features in the user's cache.")] = True,
    run: Annotated[
        Path | None, typer.Option("--run", "--run-dir", help="Where the run goes; default: in runs/.")
    ] = None,
    baselines: BaselinesOption = None,
    report: ReportOption = True,
    tensorboard: TensorBoardOption = False,
    quiet: QuietOption = False,
    overrides: SetOption = None,
) -> None:
    """Train, and leave everything in a run directory."""
    began = time.perf_counter()
    if labels is not None and labels_file is not None:
        raise ConfigError(
            "--labels and --labels-file were both given; the file already says which labels to use, so leave one of them out."
        )
    if labels == "none":
        raise ConfigError("--labels is 'none'; expected a whole number or 'all'.")
    if labels_file is not None and add_labels is not None:
        raise ConfigError("--labels-file and --add-labels were both given; put the lines of both into one file.")
    limit = None if time_limit is None else seconds("--time-limit", time_limit)
    if limit is not None and (epochs or any(text.strip().startswith("schedule.epochs") for text in overrides or [])):
        raise ConfigError(
            "a time limit and a number of epochs were both given; one decides the other, so leave one of them out."
        )
    for field, option in (("method.name", "--method"), ("data.backbone", "--backbone")):
        if any(text.partition("=")[0].strip() == field for text in overrides or []):
            raise ConfigError(
                f"{field} was set; use {option} instead, which also applies the settings that go with it."
            )
    from selfens import named
    from selfens.training import loop

    named_file = labels_file or add_labels
    flags = {
        "data.labels": "none" if labels == "all" else labels,
        "data.label_choice": None if named_file is None else "file" if labels_file else "added",
        "data.labels_file": named_file,
        "data.folder": data_dir,
        "data.id_column": id_column,
        "data.backbone_weights": weights,
        "data.feature_cache": None if cache else False,
        "schedule.epochs": epochs,
        "training.device": device,
        "seed.base": seed,
    }
    given = [f"{field}={value}" for field, value in flags.items() if value is not None]
    chosen = named.config_for(source, method, size, device or "auto", label, backbone)
    config = named.with_absolute_paths(chosen.with_overrides([*given, *(overrides or [])]))
    note = named.note(source, chosen, config, timed=limit is not None)
    directory = run or _new_directory(config)

    def begin(show: Progress) -> Run:
        if limit is None:
            return loop.train(config, directory, progress=show, note=note)
        afterward = max(MIN_REPORT, REPORT_SHARE * limit) if report or baselines is not False else 0.0
        spent = time.perf_counter() - began + START_UP + afterward
        if spent >= limit:
            raise ConfigError(
                f"--time-limit is {limit:g} s, and starting, comparing and reporting take {spent:.0f} s; allow more, or leave "
                "out what you do not need (--no-report, --no-baselines)."
            )
        return loop.train(config, directory, progress=show, time_limit=limit - spent, note=note)

    console.train(begin, directory, baselines, report, tensorboard, quiet)


@app.command()
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
    from selfens.runs.run import Run
    from selfens.tools.baselines import stored
    from selfens.training import loop
    from selfens.training.progress import for_terminal

    before = load_run(run, trust_code=trust_code)
    if before.finished:
        verdict = stored(before)
        lacks = report or (verdict is None and baselines is not False)
        lacks = lacks and not (before.path / REPORT).is_file() and not before.about["own_data"]  # the page comes last
        if not quiet:
            say(f"{run} is complete; {'writing what is missing' if lacks else 'there is nothing to resume'}.")
        if lacks:
            show = for_terminal(quiet)
            try:
                whole = Run(run, dataset=before.dataset(source=data), trust_code=trust_code)
                console.finish(whole, show, baselines, report, quiet)
                return
            except SelfensError as error:
                show.warn(f"this could not be written: {error}")
        console.say_result(before, quiet, repr(verdict).splitlines() if verdict else [])
        return
    moved = before.dataset(source=data) if data else None

    def go_on(show: Progress) -> Run:
        return loop.resume(run, dataset=moved, progress=show, trust_code=trust_code)

    console.train(go_on, run, baselines, report, tensorboard, quiet)


@app.command()
def evaluate(
    run: RunArgument,
    data: DataOption = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Cross-validate in this many folds: hold out part of the labels each time and test on it."),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    trust_code: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compute a run's test error again, over every test row; or by cross-validation, compared with simple methods."""
    from selfens.report.page import write_report_or_warn
    from selfens.runs.directory import REPORT
    from selfens.tools.baselines import store
    from selfens.tools.folds import compare_folds
    from selfens.training.progress import for_terminal

    trained = console.loaded(run, trust_code, device, again=folds is not None)
    if folds is not None:
        dataset, show = trained.dataset(source=data), for_terminal(quiet)
        verdict = console.until_stopped(lambda: compare_folds(trained.config, dataset, folds, progress=show))
        if not trained.about["test_rows"]:  # else the run has a verdict on those
            store(trained, verdict)
            if (trained.path / REPORT).is_file():
                write_report_or_warn(trained, dataset, show.warn)
        for line in repr(verdict).splitlines():
            say(line)
        return
    if not trained.about["test_rows"]:
        command = console.fold_command(trained)
        how = f"; to evaluate by cross-validation: {command}" if command else "."
        raise DataError(f"{run} has no test rows to evaluate on{how}")
    result = trained.evaluate(trained.dataset(source=data))
    say(f"test error {result['test_error']:.2f} % ({result['errors']:,} of {result['rows']:,} rows)")
    for name, error in result["per_class"].items():
        say(f"  {name:<20} {error:6.2f} %")
    say(f"balanced error {sum(result['per_class'].values()) / len(result['per_class']):.2f} %, the mean of the classes")


@app.command()
def predict(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The CSV to write: row or file, class, probability.")],
    inputs: Annotated[
        Path | None,
        typer.Argument(metavar="INPUT", help="An .npz or .npy file, an image, a folder or CSV of images, or a table."),
    ] = None,
    training_rows: Annotated[
        bool, typer.Option("--training-rows", help="The run's own training rows, from its ensemble.")
    ] = False,
    data: DataOption = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    trust_code: TrustOption = False,
) -> None:
    """Predict the class of each row of a file, or of each image of a folder."""
    from selfens.tools.predict import predict_file, predict_training_rows

    if training_rows == (inputs is not None):
        raise ConfigError("predict needs either an INPUT or --training-rows; see 'selfens predict --help'.")
    trained = console.loaded(run, trust_code, device)
    remarks: list[str] = []
    if inputs is None:
        count = predict_training_rows(trained, trained.dataset(source=data), output)
    else:
        count, remarks = predict_file(trained, inputs, output, progress=True)
    for remark in remarks:
        complain(remark)
    say(f"predictions of {count:,} row{'s' * (count != 1)} written to {output}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs; several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    data: DataOption = None,
    baselines: BaselinesOption = None,
    trust_code: TrustOption = False,
) -> None:
    """Write a page about a run, or about several side by side."""
    from selfens import load_run
    from selfens.report.page import write_report

    if data is not None and len(runs) > 1:
        raise ConfigError(f"--data is for one run, and {len(runs)} were given; a comparison reads no data.")
    loaded = [load_run(run, trust_code=trust_code) for run in runs]
    # A page would only say in small print that the data does not fit.
    dataset = None if data is None else loaded[0].dataset(source=data)
    if len(loaded) == 1 and loaded[0].code and not trust_code:
        complain("note: what needs the run's own code is missing from the page; --trust-code adds it.")
    say(f"report written to {write_report(loaded, output, dataset=dataset, baselines=baselines)}")


@app.command()
def export(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    trust_code: TrustOption = False,
) -> None:
    """Write the network into one file that needs no selfens. Preprocessing, classes and a model card are in it."""
    from selfens.tools.export import export_run

    done = export_run(console.loaded(run, trust_code, "cpu"), output)
    say(f"{output} written; its probabilities match the run's to within {done.difference:.1g} on {done.checked_on}")


@app.command()
def audit(
    run: RunArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The CSV to write, most suspicious rows first.")
    ] = Path("issues.csv"),
    folds: Annotated[
        int | None,
        typer.Option(help="Cross-validate in this many folds: judge each label by a run that did not see it."),
    ] = None,
    data: DataOption = None,
    trust_code: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Rank a run's labels by how much its predictions disagree."""
    from selfens.report.page import write_audit_page
    from selfens.tools import audit as auditing
    from selfens.tools import folds as folding
    from selfens.training import progress

    page = _page_beside(output)
    trained = console.loaded(run, trust_code, again=folds is not None)
    dataset = trained.dataset(source=data)
    auditing.check_audit_replaceable(output, trained, dataset)
    if folds is None:
        result = auditing.audit_run(trained, dataset)
        how = "in-sample: the network was trained on these labels, which hides some mistakes; --folds K avoids that"
    else:
        show = progress.for_terminal(quiet)
        result = console.until_stopped(lambda: folding.audit_folds(trained.config, dataset, folds, progress=show))
        how = f"each judged by one of {folds} runs that did not see it"
    auditing.write_audit(output, result, trained.classes, dataset)
    doubt = auditing.doubt(result, trained.test_error)
    write_audit_page(page, result, dataset, f"{how[0].upper()}{how[1:]}.", doubt)
    disputed = f"{len(result.disputed):,} of {len(result.rows):,} labels are disputed"
    say(f"{disputed} ({how}); written to {output}; {page} shows them")
    if doubt:
        say(doubt)


@app.command()
def suggest(
    run: RunArgument,
    count: Annotated[int, typer.Option("-n", help="How many rows.")] = 50,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The CSV to write, with an empty column to fill in.")
    ] = Path("suggestions.csv"),
    data: DataOption = None,
    trust_code: TrustOption = False,
) -> None:
    """Say which unlabeled rows to label next. The least certain, spread over the predicted classes."""
    from selfens.files.tables import check_replaceable
    from selfens.report.page import write_suggestions_page
    from selfens.tools import audit as auditing

    page = _page_beside(output)
    check_replaceable(output, auditing.OF_SUGGESTIONS, labels={})
    trained = console.loaded(run, trust_code)
    dataset = trained.dataset(source=data)
    result = auditing.suggest_run(trained, count, dataset)
    auditing.write_suggestions(output, result, trained.classes, dataset)
    write_suggestions_page(page, result, dataset)
    all_there_are = ", all there are," if len(result.rows) < count else ""
    say(f"{len(result.rows):,} rows to label next{all_there_are} written to {output}; {page} shows them")


@app.command()
def presets(name: Annotated[str | None, typer.Argument(help="Print this preset's whole config.")] = None) -> None:
    """List the presets, or print one."""
    from selfens.presets import PRESETS, about, get

    if name is not None:
        for line in get(name).to_json().splitlines():
            say(line)
        return
    for preset in PRESETS:
        say(f"{preset:<20} {about(preset)}")
    say("To train one: selfens train NAME")


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="List this method's options.")] = None) -> None:
    """List the methods, or the options of one. Set them by --set method.OPTION=VALUE."""
    from selfens.methods import find

    if name is None:
        for method in METHODS:
            say(f"{method:<14} {_summary(find(method))}")
        return
    options = find(name).Options.describe()
    say(f"{name}: {_summary(find(name))}")
    for option, default, expected, doc in options:
        say(f"  method.{option} = {default}   ({expected})")
        say(f"      {doc}")
    if not options:
        say("  no options")


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Option("--runs", help="Where the runs go; finished ones are not repeated.")
    ] = Path("runs/demo"),
    jobs: Annotated[
        int | None, typer.Option(help="Parallel processes of one thread each; default: one per core.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 5,
) -> None:
    """Compare four methods on real digits with 50 labels."""
    from selfens.demo import run_demo

    run_demo(directory, jobs=jobs, num_seeds=seeds)


@app.command()
def bench(
    device: Annotated[Device, typer.Option(help="Where to measure.")] = "auto",
    methods: Annotated[str, typer.Option(help="Which, separated by commas.")] = "temporal,pi,supervised",
    modes: Annotated[
        str | None,
        typer.Option(help="Such as plain,compiled,compiled+captured+kernels; default: all that fit the device."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="CIFAR-10's files, to use real images on a GPU.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to time; by default 500 on a GPU, 60 on a CPU.")] = None,
    batch: Annotated[int, typer.Option(help="Rows per step.")] = 100,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write all figures there as JSON.")] = None,
) -> None:
    """Measure the speed of training steps on this machine."""
    from selfens import bench as measuring
    from selfens.bench import print_table, write_json

    result = measuring.bench(
        device,
        methods=[name.strip() for name in methods.split(",")],
        modes=None if modes is None else [name.strip() for name in modes.split(",")],
        data_dir=str(data_dir) if data_dir else None,
        steps=steps,
        batch=batch,
        say=complain,
    )
    print_table(result)
    if output is not None:
        write_json(output, result)
        say(f"all figures written to {output}")


app.command()(reproduce)


def _print_version(wanted: bool) -> None:
    if wanted:
        from selfens import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train classifiers from few labels and much unlabeled data, by self-ensembling."""


def _summary(kind: type) -> str:
    """The first line of the docstring of a class's file, or of the class."""
    text = sys.modules[kind.__module__].__doc__ or kind.__doc__ or ""
    return next(iter(text.strip().splitlines()), "")


def _new_directory(config: Config) -> Path:
    """runs/DATA-METHOD-seedN, or the first free name after it."""
    from selfens.runs.directory import free_directory

    if launcher.world_size() > 1:
        raise ConfigError(
            "several processes train together and must agree on a directory; name it with --run-dir DIRECTORY."
        )
    return free_directory(Path("runs") / f"{Path(config.data.name).stem}-{config.method.name}-seed{config.seed.base}")


def _page_beside(output: Path) -> Path:
    """Where the gallery of a CSV goes; what cannot be written is refused before any work is done."""
    page = output.with_suffix(".html")
    if page == output:
        raise ConfigError(f"{output} is the name of a page; give the CSV's name, such as {output.with_suffix('.csv')}.")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ConfigError(f"{output} cannot be written: {output.parent} is not a writable folder.")
    if page.exists() and not output.exists():  # of another command, such as a report
        raise ConfigError(f"{output} would be written together with {page}, which already exists; choose another name.")
    return page


def main(arguments: list[str] | None = None) -> None:
    """The command line: a refusal is one sentence on stderr and exit code 1, or 2 for a mistyped command; never a box."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # characters that the terminal cannot show
    try:
        words = sys.argv[1:] if arguments is None else arguments
        code = app(words or ["--help"], prog_name="selfens", standalone_mode=False)
        if code == 130:  # typer has swallowed an interrupt
            raise KeyboardInterrupt
    except SelfensError as error:
        complain(f"error: {error}")
        code = 1
    except MistypedCommand as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "selfens")
        complain(f"error: {error.format_message()} (see '{command} --help')")  # type: ignore[attr-defined]
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        complain("stopped.")
        code = 130
    sys.exit(code)
