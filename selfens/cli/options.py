"""Arguments and options shared by several commands."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Device = Literal["auto", "cpu", "cuda"]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]
TensorBoardOption = Annotated[bool, typer.Option("--tensorboard", help="Also write the history for TensorBoard.")]
BaselinesOption = Annotated[
    bool | None, typer.Option(help="Compare with simple methods on the same labels; default: on your own data.")
]
ReportOption = Annotated[
    bool, typer.Option("--report/--no-report", help="Write report.html to the run's directory at the end.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
DataOption = Annotated[Path | None, typer.Option("--data", metavar="PATH", help="Where the run's data is now.")]
TrustOption = Annotated[bool, typer.Option("--trust-code", help="Import the code that the run's config names.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Set a field of the config.")
]
