"""The application and its error messages."""

import io
import sys
from typing import Annotated

import typer

from selfens.cli import about, compare, label, train, use
from selfens.console import complain, say
from selfens.errors import SelfensError
from selfens.experiments.command import reproduce, with_ray_address

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(train.train, train.resume, compare.compare),
    *(use.evaluate, use.predict, use.report, use.export, use.audit),
    *(label.suggest, label.label),
    *(about.presets, about.methods, about.demo, about.bench),
    reproduce,
):
    app.command()(command)

UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's; typer may bundle its own click


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


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error prints one sentence to stderr and exits with code 1, a usage error with 2."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # for characters that the terminal cannot encode
    try:
        words = sys.argv[1:] if arguments is None else arguments
        code = app(with_ray_address(words) or ["--help"], prog_name="selfens", standalone_mode=False)
        if code == 130:  # typer swallowed a KeyboardInterrupt
            raise KeyboardInterrupt
    except SelfensError as error:
        complain(f"error: {error}")
        code = 1
    except UsageError as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "selfens")
        complain(f"error: {error.format_message()} (see '{command} --help')")  # type: ignore[attr-defined]
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        complain("stopped.")
        code = 130
    sys.exit(code)
