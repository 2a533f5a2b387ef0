"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from selfens.errors import ConfigError

if TYPE_CHECKING:
    from selfens.encoders import EncoderOptions

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
LabelColumn = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="The label column of a table.")]
IdColumn = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="The id column of a table.")]
TextColumns = Annotated[
    list[str] | None, typer.Option("--text", metavar="COLUMN", help="A text column of a table; may be repeated.")
]
BackboneOption = Annotated[
    list[str] | None,
    typer.Option("--backbone", metavar="NAME", help="Use features of timm:NAME or module:factory; may be repeated."),
]
WeightsOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Load the weights of the backbone from this file.")
]
EncoderOption = Annotated[
    list[str] | None,
    typer.Option("--encoder", metavar="NAME", help="How to turn examples into inputs; may be repeated for text."),
]


def encoder_of(
    backbones: list[str] | None,
    weights: str | None,
    names: list[str] | None,
    *,
    cache: bool = True,
    size: int | None = None,
) -> EncoderOptions | None:
    """Return the encoder that the options name; None if they name none."""
    if backbones and names:
        raise ConfigError("--backbone and --encoder were both given; leave one of them out.")
    if not backbones and (weights is not None or not cache):
        raise ConfigError("--weights and --no-cache are for a backbone; name it with --backbone.")
    if weights is not None and len(backbones or []) > 1:
        raise ConfigError("--weights is for one backbone, but several were named; name one, or leave it out.")
    from selfens import auto

    if backbones:
        return auto.backbone_for(backbones, weights=weights, size=size, cache=cache)
    return auto.encoder_for(names) if names else None
