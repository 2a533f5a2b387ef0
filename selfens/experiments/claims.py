"""What the paper says in its text, as comparisons of cells. The cells that only a claim needs are a table of their own.

A claim compares cells of any table by `table/cell`, so nothing is run twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfens.config import Config
from selfens.experiments.cells import Cell, Table, paper_config


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper and the cells that test it."""

    text: str
    paper: str
    """What the measured value should be, in the paper's words."""
    measure: Literal["difference", "slowdown", "accuracy"]
    """Points of error of `cell` above `other`, paired by seed; times as many seconds per epoch; or accuracy alone."""
    cell: str
    other: str | None = None


def _cell(name: str, row: str, column: str, config: Config) -> Cell:
    return Cell(table="claims", name=name, row=row, column=column, config=config)


_PI = paper_config("cifar10", "pi", 4000)
_FEW = paper_config("svhn", "pi", 250)

TABLE = Table(
    name="claims",
    title="Runs that only the claims in the text need",
    cells=(
        _cell(
            "pi-aug-4000-independent-flips",
            "Π-model, each view flipped on its own",
            "CIFAR-10, 4000",
            _PI.with_values("augment", shared_flip=False),
        ),
        _cell(
            "pi-aug-4000-cross-entropy",
            "Π-model, cross-entropy as consistency",
            "CIFAR-10, 4000",
            _PI.with_values("method", consistency="cross_entropy"),
        ),
        _cell("pi-aug-250-beta2-0.999", "Π-model, β2 = 0.999", "SVHN, 250", _FEW),
        _cell("pi-aug-250-beta2-0.99", "Π-model, β2 = 0.99", "SVHN, 250", _FEW.with_values("optimizer", beta2=0.99)),
    ),
    column_title="data, labels",
    notes=(
        "The paper says neither with which method and data set it compared squared difference and cross-entropy, nor with "
        "which method it tried 250 labels; the Π-model with augmentation is our choice, and w_max stays 100.",
    ),
)

CLAIMS = (
    Claim(
        text="In the Π-model, one flip for both views is better than independent flips.",
        paper="about 0.5 points",
        measure="difference",
        cell="claims/pi-aug-4000-independent-flips",
        other="cifar10/pi-aug-4000",
    ),
    Claim(
        text="Squared difference is better than cross-entropy as the unsupervised loss.",
        paper="slightly but consistently",
        measure="difference",
        cell="claims/pi-aug-4000-cross-entropy",
        other="cifar10/pi-aug-4000",
    ),
    Claim(
        text="Temporal ensembling trains twice as fast as the Π-model.",
        paper="2 times",
        measure="slowdown",
        cell="cifar10/pi-aug-4000",
        other="cifar10/temporal-aug-4000",
    ),
    Claim(
        text="With 250 SVHN labels training tends to explode in the ramp-up; β2 = 0.99 instead of 0.999 helps.",
        paper="seems to help",
        measure="difference",
        cell="claims/pi-aug-250-beta2-0.999",
        other="claims/pi-aug-250-beta2-0.99",
    ),
    Claim(
        text="Temporal ensembling resists almost perfectly when half of the labels are random.",
        paper="almost perfect",
        measure="difference",
        cell="noise/temporal-50",
        other="noise/temporal-0",
    ),
    Claim(
        text="Temporal ensembling stays above ninety percent accuracy when 80 % of the labels are random.",
        paper="over 90 %",
        measure="accuracy",
        cell="noise/temporal-80",
    ),
    Claim(
        text="Supervised training suffers when even a small portion of the labels is random.",
        paper="suffers",
        measure="difference",
        cell="noise/supervised-20",
        other="noise/supervised-0",
    ),
    Claim(
        text="Supervised training becomes worse quickly as the portion of random labels rises to 50 %.",
        paper="worsens quickly",
        measure="difference",
        cell="noise/supervised-50",
        other="noise/supervised-20",
    ),
    Claim(
        text="On CIFAR-100 with all labels, temporal ensembling gains from random extra images.",
        paper="2.7 points",
        measure="difference",
        cell="cifar100/temporal-aug-all",
        other="tiny/temporal-aug-random",
    ),
    Claim(
        text="The Π-model gains much less from them.",
        paper="0.5 points by the tables",
        measure="difference",
        cell="cifar100/pi-aug-all",
        other="tiny/pi-aug-random",
    ),
    Claim(
        text="Extra images of CIFAR-100's categories alone are no better than random ones.",
        paper="no gain; -0.17 points by the table",
        measure="difference",
        cell="tiny/temporal-aug-random",
        other="tiny/temporal-aug-restricted",
    ),
    Claim(
        text="On SVHN with 500 labels, temporal ensembling is better than the Π-model.",
        paper="1.5 points",
        measure="difference",
        cell="svhn/pi-aug-500",
        other="svhn/temporal-aug-500",
    ),
)
