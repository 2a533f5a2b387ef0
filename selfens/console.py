"""Load and finish runs for the command line, and print what happened. torch is imported only when needed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from selfens.core import launcher
from selfens.errors import ConfigError, plural, root_cause, visible

if TYPE_CHECKING:
    from selfens.runs.run import Run
    from selfens.training.progress import Progress


def loaded(path: Path, trust_code: bool, device: str = "auto", *, again: bool = False) -> Run:
    """Load a run, and print a note if it is not finished. With `again`, raise unless its config is enough to repeat it."""
    from selfens import load_run

    run = load_run(path, device=device, trust_code=trust_code)
    if again:
        run.check_code()  # because new runs trust their config
        if run.info.custom_network or run.info.custom_method:
            raise ConfigError(f"{path} has a network or method of your own; cross-validate it in Python.")
    done, epochs = run.directory.position()[0], run.config.schedule.epochs
    if done < epochs:
        complain(f"note: {path} has done {done} of {epochs} epochs; '{_command('resume', run)}' completes it.")
    return run


def _command(name: str, run: Run, rest: str = "") -> str:
    """Return the command `selfens NAME` for this run."""
    return f"selfens {name} {shlex.quote(str(run.path))}{rest}{' --trust-code' if run.code else ''}"


def fold_command(run: Run) -> str:
    """Return the command that cross-validates a run, or "" if it has too few labels or its data were passed in Python."""
    from selfens.tools.folds import default_folds

    folds = 0 if run.was_passed_data else default_folds(run.labels.labels)
    return _command("evaluate", run, f" --folds {folds}") if folds > 1 else ""


def display(directory: Path, tensorboard: bool, quiet: bool) -> Progress:
    """Return the progress display for training into `directory`."""
    from selfens.tools.tensorboard import TensorBoard
    from selfens.training.progress import for_terminal

    return TensorBoard(directory, for_terminal(quiet)) if tensorboard else for_terminal(quiet)


def finish(
    run: Run, show: Progress, baselines: bool | None, report: bool, quiet: bool, limit: float | None = None
) -> None:
    """Measure the error of a complete run, write its report and print the result. Its data are in memory.

    `limit` is the number of seconds that cross-validation may take.
    """
    from selfens.report.page import write_report_or_warn
    from selfens.tools.comparison import one_class_of
    from selfens.tools.measure import measure, wants_measuring

    warnings: list[str] = []
    if launcher.rank() == 0:
        try:
            if not run.config.source.is_public:
                run.keep_novelty()
            if wants_measuring(run, baselines):
                with interruptible(run.path):
                    measure(run, limit=limit, progress=show)
            warnings = [*filter(None, [one_class_of(run)])]
        except Exception as error:  # must not fail the run
            show.warn(f"the run is complete, but its errors could not be measured ({root_cause(error)}).")
        if report:
            write_report_or_warn(run, None, show.warn, baselines)
    say_result(run, quiet, warnings)


@contextmanager
def interruptible(resumable: Path | None = None) -> Iterator[None]:
    """On Ctrl-C, print one sentence and exit with code 130. (typer would exit without the sentence.)"""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        from selfens import load_run

        hint = ""
        if resumable is not None and (resumable / "config.json").is_file():
            hint = f" To continue: {_command('resume', load_run(resumable))}"
        complain(f"{str(interrupt) or 'stopped.'}{hint}")
        sys.exit(130)


def say_result(run: Run, quiet: bool, warnings: list[str]) -> None:
    """Print the error of a run, and what can be done next."""
    from selfens.runs.directory import REPORT
    from selfens.runs.history import total_seconds
    from selfens.tools.comparison import comparison_of

    history, evidence = run.history, run.evidence
    spent = f"{plural(run.directory.position()[0], 'epoch')} in {total_seconds(history):.0f} s"
    result = f"trained {spent}; its error was not measured"
    if evidence is not None:
        low, high = evidence.error_interval
        how = f"by {evidence.folds}-fold cross-validation on" if evidence.folds else "on"
        rows = f"{len(evidence.wrong):,} {'labeled' if evidence.folds else 'test'} rows"
        result = f"error {evidence.error:.2f} % (90 % interval {low:.1f} to {high:.1f}), {how} {rows}; trained {spent}"
    elif run.test_error is not None:
        result = f"test error {run.test_error:.2f} % after {spent}"
    elif history and (held_out := history[-1].get("validation_error")) is not None:
        result = f"validation error {held_out:.2f} % after {spent}"
    say(f"{result}; run in {run.path}")
    if quiet:
        return
    comparison = comparison_of(run)
    for line in (*warnings, *(comparison.lines if comparison else [])):
        say(line)
    if evidence is None and not run.info.test_rows and (by_folds := fold_command(run)):
        say(f"to measure its error by cross-validation: {by_folds}")
    are_photos = run.config.views.flip and not run.config.source.is_public and run.frozen is None
    if are_photos and run.device.type == "cpu":
        say("features of a pretrained network usually do better on photos: --backbone timm:tf_efficientnet_lite0")
    if run.has_report:
        say(f"report in {run.path / REPORT}")
    say(f"to predict: {_command('predict', run, ' INPUT -o out.csv')}")


@contextmanager
def progress(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yield what to call with the number of rows that are done."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done: bar.update(task, completed=done)


def say(text: str) -> None:
    if launcher.rank() == 0:
        print(visible(text))  # noqa: T201


def complain(text: str) -> None:
    """Print one line to stderr, with control characters escaped, so that they cannot control the terminal."""
    name = f"process {launcher.rank()}: " if launcher.rank() else ""
    print(visible(f"{name}{text}"), file=sys.stderr)  # noqa: T201
