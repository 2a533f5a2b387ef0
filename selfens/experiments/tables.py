"""The paper's tables and figure as data, and some tables of our own. Every number is a cell, with the config that produces it.

CIFAR-10, SVHN and CIFAR-100 have the same five rows. Their settings are the presets'; a cell changes only the number of
labels and whether inputs are flipped and shifted. "Without augmentation" still has input noise and dropout.
"""

from dataclasses import dataclass, replace

from selfens import presets
from selfens.config import Config
from selfens.data.sources.official import TITLES


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table."""

    table: str
    name: str
    row: str
    column: str
    config: Config
    """With seed 0; see `Task.config`."""
    mean: float | None = None
    """Test error in percent; None if the paper gives no number."""
    deviation: float | None = None
    runs: int | None = None
    """Runs behind the paper's number; None if the paper does not say."""
    seeds: int | None = None
    """Runs we do by default; None: as many as the paper, or one."""
    extra: str | None = None
    """The kind of extra images from Tiny Images: `restricted`, or `random`, which other images may replace."""

    @property
    def key(self) -> str:
        return f"{self.table}/{self.name}"

    @property
    def error(self) -> str:
        return "" if self.mean is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of the paper, or a table of our own."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    column_title: str = "labels"
    """What the columns differ in."""


@dataclass(frozen=True)
class Task:
    """A run to do: a cell and a seed."""

    cell: Cell
    seed: int

    @property
    def config(self) -> Config:
        return self.cell.config.with_values("seed", base=self.seed)

    def __str__(self) -> str:
        return f"{self.cell.key} seed {self.seed}"


ROWS = {
    "supervised": "Supervised-only",
    "supervised-aug": "Supervised-only with augmentation",
    "pi": "Π-model",
    "pi-aug": "Π-model with augmentation",
    "temporal-aug": "Temporal ensembling with augmentation",
}
Errors = tuple[tuple[float, float], ...]
"""Mean and standard deviation of the test error in percent, for each column."""


def _config(data: str, row: str, column: str) -> Config:
    """Return the paper's settings; `column` is a number of labels, or a word for all of them."""
    method, _, augmented = row.partition("-")
    config = presets.get(f"{data}-{method}").with_values("labels", count=int(column) if column.isdecimal() else None)
    return config if augmented else config.with_values("views", flip=False, translation=0)


def _cells(table: str, columns: dict[str, str], errors: dict[str, Errors]) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            table=table,
            name=f"{row}-{column}",
            row=ROWS[row],
            column=columns[column],
            config=_config(table, row, column),
            mean=mean,
            deviation=deviation,
            runs=4 if column == "all" else 10,
        )
        for row, figures in errors.items()
        for column, (mean, deviation) in zip(columns, figures, strict=True)
    )


# fmt: off
CIFAR10 = Table(name="cifar10", title="CIFAR-10", cells=_cells("cifar10", {"4000": "4000", "all": "All (50000)"}, {
    "supervised":     ((35.56, 1.59), (7.33, 0.04)),
    "supervised-aug": ((34.85, 1.65), (6.05, 0.15)),
    "pi":             ((16.55, 0.29), (6.90, 0.07)),
    "pi-aug":         ((12.36, 0.31), (5.56, 0.10)),
    "temporal-aug":   ((12.16, 0.24), (5.60, 0.10)),
}))

SVHN = Table(name="svhn", title="SVHN", cells=_cells("svhn", {"500": "500", "1000": "1000", "all": "All (73257)"}, {
    "supervised":     ((35.18, 5.61), (20.47, 2.64), (3.05, 0.07)),
    "supervised-aug": ((31.59, 3.60), (19.30, 3.89), (2.88, 0.03)),
    "pi":             (( 7.05, 0.30), ( 5.43, 0.25), (2.78, 0.03)),
    "pi-aug":         (( 6.65, 0.53), ( 4.82, 0.17), (2.54, 0.04)),
    "temporal-aug":   (( 5.12, 0.13), ( 4.42, 0.16), (2.74, 0.06)),
}))

CIFAR100 = Table(name="cifar100", title="CIFAR-100", cells=_cells("cifar100", {"10000": "10000", "all": "All (50000)"}, {
    "supervised":     ((51.21, 0.33), (29.14, 0.25)),
    "supervised-aug": ((44.56, 0.30), (26.42, 0.17)),
    "pi":             ((43.43, 0.54), (29.06, 0.21)),
    "pi-aug":         ((39.19, 0.36), (26.32, 0.04)),
    "temporal-aug":   ((38.65, 0.51), (26.30, 0.15)),
}))

_EXTRA = _cells("cifar100", {"random": "Random 500k", "restricted": "Restricted 237k"}, {
    "pi-aug":       ((25.79, 0.17), (25.43, 0.32)),
    "temporal-aug": ((23.62, 0.23), (23.79, 0.24)),
})
# fmt: on


def _with_extra(cell: Cell) -> Cell:
    """Add to each epoch as many extra images as CIFAR-100 has labeled ones."""
    config = cell.config.with_values("training", unlabeled_per_epoch=50_000)
    config = config.with_values("method", weight_max=300.0 if config.method.name == "pi" else 1000.0)
    return replace(cell, table="tiny", config=config, extra=cell.name.rpartition("-")[2])


TINY = Table(
    name="tiny",
    title="CIFAR-100 with extra unlabeled images from Tiny Images",
    cells=tuple(map(_with_extra, _EXTRA)),
    column_title="extra images",
)


def _noise_cell(method: str, percentage: int) -> Cell:
    """A random label is drawn uniformly from all ten classes, so one in ten is right by chance."""
    config = _config("svhn", f"{method}-aug", "all").with_values("labels", noise=float(percentage))
    if method == "temporal":
        config = config.with_values("method", weight_max=300.0 if percentage < 50 else 3000.0)
    row = ROWS.get(method, "Temporal ensembling")
    return Cell(table="noise", name=f"{method}-{percentage}", row=row, column=f"{percentage} %", config=config)


NOISE = Table(
    name="noise",
    title="SVHN with a part of the labels random (the paper's figure)",
    cells=tuple(_noise_cell(method, part) for method in ("supervised", "temporal") for part in (0, 20, 50, 80, 90)),
    column_title="random labels",
)

BASELINE = Table(
    name="baseline",
    title="Supervised training on labeled rows only",
    cells=tuple(
        replace(
            cell,
            table="baseline",
            name=f"{table.name}-{cell.name}",
            column=f"{table.title}, {cell.column}",
            config=cell.config.with_values("training", rows="labeled"),
        )
        for table in (CIFAR10, SVHN, CIFAR100)
        for cell in table.cells
        if cell.config.method.name == "supervised" and cell.config.labels.count is not None
    ),
    column_title="data, labels",
)

WHITENING = Table(
    name="whitening",
    title="Supervised training on labeled rows only, with ZCA whitening fitted on them only",
    cells=tuple(
        replace(cell, table="whitening", seeds=3, config=cell.config.with_values("preprocess", rows="labeled"))
        for cell in BASELINE.cells
        if cell.config.preprocess.kind == "zca"
    ),
    column_title="data, labels",
)
"""This interpretation reproduces the paper's CIFAR-10 baseline; CIFAR-100 is the control."""


def _modern_cell(preset: str, labels: int, seeds: int, epochs: int | None = None) -> Cell:
    config, name = presets.get(preset).with_values("labels", count=labels), f"{preset}-{labels}"
    if epochs is not None:
        config, name = config.with_values("schedule", epochs=epochs), f"{name}-{epochs}-epochs"
    column = f"{TITLES[config.source.title]}, {labels}, {config.schedule.epochs} epochs"
    return Cell(table="modern", name=name, row="Temporal teacher", column=column, config=config, seeds=seeds)


MODERN = Table(
    name="modern",
    title="The temporal teacher (not in the paper)",
    cells=(
        _modern_cell("cifar10-modern", 4000, seeds=3),
        _modern_cell("cifar10-modern", 4000, seeds=1, epochs=420),
        _modern_cell("cifar10-fast", 4000, seeds=3),
        _modern_cell("cifar10-modern", 250, seeds=2),
        _modern_cell("cifar10-modern", 40, seeds=3),
        _modern_cell("svhn-modern", 1000, seeds=1),
        _modern_cell("cifar100-modern", 10_000, seeds=1),
    ),
    column_title="data, labels, epochs",
)

TABLES = {table.name: table for table in (CIFAR10, SVHN, CIFAR100, TINY, NOISE, BASELINE, WHITENING, MODERN)}
CELLS = {cell.key: cell for table in TABLES.values() for cell in table.cells}
