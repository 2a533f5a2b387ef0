"""The commands that use a run: evaluate, predict, report, export, audit."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfens import console
from selfens.cli.options import BaselinesOption, DataOption, Device, QuietOption, RunArgument, TrustOption
from selfens.console import complain, say
from selfens.errors import ConfigError, DataError, plural
from selfens.experiments.command import GpusOption, RayOption

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset
    from selfens.experiments.cluster import Cluster
    from selfens.runs.evidence import Evidence
    from selfens.runs.run import Run
    from selfens.training.progress import Progress


def evaluate(
    run: RunArgument,
    data: DataOption = None,
    folds: Annotated[int | None, typer.Option(help="Cross-validate on this many parts of the labels.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    ray: RayOption = None,
    gpus: GpusOption = None,
    trust_code: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Re-evaluate a run on its test set, or cross-validate with --folds."""
    from selfens.experiments.cluster import Cluster
    from selfens.report.page import write_report_or_warn
    from selfens.runs.directory import REPORT
    from selfens.runs.statistics import interval
    from selfens.tools.comparison import comparison_of
    from selfens.tools.folds import evidence_by_folds
    from selfens.tools.measure import copied_test_rows
    from selfens.training.progress import for_terminal

    if ray is not None and folds is None:
        raise ConfigError("--ray trains the folds on a cluster; add --folds, such as --folds 5.")
    if ray is None and gpus is not None:
        raise ConfigError("--gpus is for folds on a Ray cluster; add --ray.")
    trained = console.loaded(run, trust_code, device, again=folds is not None)
    if folds is not None:
        dataset, show = trained.data(source=data).dataset, for_terminal(quiet)
        with console.interruptible():
            if ray is None:
                found = evidence_by_folds(trained.config, dataset, folds, progress=show)
            else:
                found = _evidence_on_cluster(trained, dataset, folds, show, Cluster(ray, gpus, show.say))
            trained.keep_evidence(found)
        if (trained.path / REPORT).is_file():
            write_report_or_warn(trained, dataset, show.warn)
    if folds is not None or not trained.info.test_rows:
        if (comparison := comparison_of(trained)) is None:
            command = console.fold_command(trained)
            how = f"; to measure its error by cross-validation: {command}" if command else "."
            raise DataError(f"{run} has no test rows to evaluate on{how}")
        for line in comparison.lines:
            say(line)
        return
    trained.data(source=data)
    result = trained.evaluate()
    low, high = interval(result["errors"], result["rows"])
    counts = f"{result['errors']:,} of {result['rows']:,} rows; 90 % interval {low:.1f} to {high:.1f}"
    say(f"test error {result['test_error']:.2f} % ({counts})")
    if copied := int(copied_test_rows(trained).sum()):
        say(
            f"{copied:,} of these rows have copies or look-alikes among the training rows, which makes the error too small."
        )
    for name, error in result["per_class"].items():
        say(f"  {name:<20} {error:6.2f} %")
    say(f"balanced error {sum(result['per_class'].values()) / len(result['per_class']):.2f} %, the mean of the classes")


def _evidence_on_cluster(run: Run, dataset: Dataset, folds: int, show: Progress, cluster: Cluster) -> Evidence:
    """Train each fold in a task of a Ray cluster; the rows travel with it."""
    from selfens.tools.folds import evidence_by_folds

    with cluster:
        show.say(cluster.describe(folds, "fold"))
        threads = run.config.training.threads
        cluster.check([], threads)
        config = run.config.with_values("training", device="cuda" if cluster.gpus else "cpu")
        each = partial(cluster.map, threads=threads)
        return evidence_by_folds(config, dataset, folds, progress=show, each=each)


def predict(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The CSV to write: row or file, class, probability.")],
    inputs: Annotated[Path | None, typer.Argument(metavar="INPUT", help="Arrays, images or a table.")] = None,
    training_rows: Annotated[bool, typer.Option("--training-rows", help="The run's own training rows.")] = False,
    max_error: Annotated[
        float | None, typer.Option(metavar="PERCENT", help="Write 'not sure' where more answers might be wrong.")
    ] = None,
    all_classes: Annotated[bool, typer.Option("--all-classes", help="Write the probability of each class.")] = False,
    data: DataOption = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    trust_code: TrustOption = False,
) -> None:
    """Predict the class of each row of a file, or of each image of a folder."""
    from selfens.tools.predict import predict_file, predict_training_rows

    if training_rows == (inputs is not None):
        raise ConfigError("predict needs either an INPUT or --training-rows; see 'selfens predict --help'.")
    if training_rows and (max_error is not None or all_classes):
        raise ConfigError("--max-error and --all-classes are for an INPUT; leave out --training-rows.")
    trained = console.loaded(run, trust_code, device)
    remarks: list[str] = []
    if inputs is None:
        trained.data(source=data)
        count = predict_training_rows(trained, output)
    else:
        count, remarks = predict_file(
            trained, inputs, output, max_error=max_error, all_classes=all_classes, progress=True
        )
    for remark in remarks:
        complain(remark)
    say(f"predictions of {plural(count, 'row')} written to {output}")


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
    if data is not None:
        loaded[0].data(source=data)  # refused here; the page would only mention it in small print
    if len(loaded) == 1 and loaded[0].code and not trust_code:
        complain("note: what needs the run's own code is missing from the page; --trust-code adds it.")
    say(f"report written to {write_report(loaded, output, baselines=baselines)}")


def export(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    trust_code: TrustOption = False,
) -> None:
    """Write the network into one file that needs no selfens. Preprocessing, classes and a model card are in it."""
    from selfens.tools.export import export_run

    done = export_run(console.loaded(run, trust_code, "cpu"), output)
    say(f"{output} written; its probabilities match the run's to within {done.difference:.1g} on {done.checked_on}")
    if done.first:
        say(f"it takes {done.first}; its model card says under 'first' how to make them")


def audit(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The CSV to write.")] = Path("issues.csv"),
    folds: Annotated[
        int | None, typer.Option(help="How many models judge the labels that they were not trained on.")
    ] = None,
    in_sample: Annotated[
        bool, typer.Option("--in-sample", help="Judge by the run itself: at once, but it knows them.")
    ] = False,
    data: DataOption = None,
    trust_code: TrustOption = False,
    quiet: QuietOption = False,
) -> None:
    """Rank a run's labels by how much models disagree that were not trained on them."""
    from selfens.report.page import write_audit_page
    from selfens.tools import audit as auditing
    from selfens.tools.folds import default_folds, evidence_by_folds
    from selfens.training import progress

    page = page_for(output)
    if in_sample and folds is not None:
        raise ConfigError("--in-sample and --folds were both given; leave one of them out.")
    trained = console.loaded(run, trust_code, again=not in_sample)
    encoded = trained.data(source=data)
    dataset, evidence = encoded.dataset, trained.evidence
    auditing.check_audit_replaceable(output, trained, dataset)
    if in_sample:
        result = auditing.audit_run(trained)
        how = "in-sample: the network was trained on these labels, which hides mistakes"
    else:
        if evidence is None or not evidence.folds or folds not in (None, evidence.folds):
            with console.interruptible():
                number = default_folds(auditing.run_labels(trained)) if folds is None else folds
                show = progress.for_terminal(quiet)
                evidence = evidence_by_folds(trained.config, dataset, number, progress=show)
        result = auditing.audit_evidence(evidence)
        how = f"each judged by one of {evidence.folds} models that were not trained on it"
    auditing.write_audit(output, result, dataset)
    warning = auditing.warning(result, trained.test_error)
    write_audit_page(page, result, encoded, f"{how[0].upper()}{how[1:]}.", warning, is_in_sample=in_sample)
    disputed = f"{len(result.disputed):,} of {len(result.rows):,} labels are disputed"
    say(f"{disputed} ({how}); written to {output}; {page} shows them")
    for sentence in filter(None, [auditing.not_judged(result, auditing.run_labels(trained), trained.classes), warning]):
        say(sentence)


def page_for(output: Path) -> Path:
    """Return where the gallery of a CSV goes; refuse what cannot be written before any work is done."""
    page = output.with_suffix(".html")
    if page == output:
        raise ConfigError(f"{output} is the name of a page; give the CSV's name, such as {output.with_suffix('.csv')}.")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ConfigError(f"{output} cannot be written: {output.parent} is not a writable folder.")
    if page.exists() and not output.exists():  # it is another command's, such as a report
        raise ConfigError(f"{output} would be written together with {page}, which already exists; choose another name.")
    return page
