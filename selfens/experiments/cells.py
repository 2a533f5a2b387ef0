"""Cell: one number of the paper, with the config that should give it. Imports no torch.

CIFAR-10, CIFAR-100 and SVHN have the same five rows. Their settings are the presets'; a cell changes only the number of
labels, and whether inputs are flipped and shifted. Two facts about them that the tables do not say:

- "Supervised-only" is the same loop with w = 0: rows without labels are still visited, fill the batches and feed the
  means of batch normalisation. The other reading, labelled rows alone, is the table `baseline`.
- "Without augmentation" still has the Gaussian noise on the inputs and dropout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from selfens import presets
from selfens.config import AugmentConfig, Config

OFFICIAL_ROWS = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032)}
"""Training and test images of each data set."""
Figure = tuple[float, float]
"""Mean and standard deviation of the test error, in percent."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of the paper."""

    table: str
    name: str
    row: str
    column: str
    config: Config
    """For seed 0, wherever it runs: `config_for` gives the others."""
    mean: float | None = None
    """Test error in percent; None where the paper gives no number."""
    deviation: float | None = None
    runs: int | None = None
    extra: Literal["random", "restricted"] | None = None
    """Which images of Tiny Images are trained on besides the main set, or in their place others that are given."""

    @property
    def key(self) -> str:
        return f"{self.table}/{self.name}"

    def config_for(self, seed: int) -> Config:
        return self.config.with_values("seed", base=seed)

    def default_seeds(self) -> list[int]:
        """As many as the paper ran; one where it does not say."""
        return list(range(self.runs or 1))


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A published figure of another system, for comparison."""

    system: str
    column: str
    figure: str
    """Error in percent, as printed: mean, or mean ± deviation."""
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    earlier: tuple[Earlier, ...] = ()
    column_title: str = "labels"
    """What tells its columns apart."""
    notes: tuple[str, ...] = ()
    """What the paper leaves open and we chose, and what a reader must know."""


@dataclass(frozen=True)
class Row:
    name: str
    label: str
    method: str
    augmented: bool


@dataclass(frozen=True)
class Column:
    name: str
    label: str
    labels: int | None
    runs: int


ROWS = (
    Row("supervised", "Supervised-only", "supervised", False),
    Row("supervised-aug", "Supervised-only with augmentation", "supervised", True),
    Row("pi", "Π-model", "pi", False),
    Row("pi-aug", "Π-model with augmentation", "pi", True),
    Row("temporal-aug", "Temporal ensembling with augmentation", "temporal", True),
)

BASELINE_NOTE = (
    "Supervised-only is the same loop with w = 0, as in the authors' code: rows without labels still fill the batches. "
    "The paper does not say which baseline it ran. This is the one that the authors' settings name. "
    "The other reading, labelled rows alone, has a table of its own further down (`selfens reproduce baseline`)."
)


def paper_cells(table: str, columns: Sequence[Column], figures: Mapping[str, Sequence[Figure]]) -> tuple[Cell, ...]:
    """The cells of a table with the five rows: `figures` holds, for each row, one figure per column."""
    return tuple(
        Cell(
            table=table,
            name=f"{row.name}-{column.name}",
            row=row.label,
            column=column.label,
            config=paper_config(table, row.method, column.labels, augmented=row.augmented),
            mean=mean,
            deviation=deviation,
            runs=column.runs,
        )
        for row in ROWS
        for column, (mean, deviation) in zip(columns, figures[row.name], strict=True)
    )


def paper_config(data: str, method: str, labels: int | None, *, augmented: bool = True) -> Config:
    """The paper's settings of a method on a data set."""
    config = presets.get(f"{data}-{method}").with_values("data", labels=labels)
    if augmented:
        return config
    plain = AugmentConfig()
    return config.with_values("augment", flip=plain.flip, translation=plain.translation)
