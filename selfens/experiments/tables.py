"""All tables by name, and the choice of cells and seeds that a person types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfens.errors import ConfigError, unknown_name
from selfens.experiments import baseline, cifar10, cifar100, claims, noise, svhn, tiny
from selfens.experiments.cells import Cell, Table
from selfens.experiments.extra_images import ExtraImages, obstacle

TABLES: dict[str, Table] = {
    module.TABLE.name: module.TABLE for module in (cifar10, svhn, cifar100, tiny, noise, baseline, claims)
}
CELLS: dict[str, Cell] = {cell.key: cell for table in TABLES.values() for cell in table.cells}

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Task:
    """A run: a cell and a seed."""

    cell: Cell
    seed: int

    def __str__(self) -> str:
        return f"{self.cell.key} seed {self.seed}"


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise ConfigError(unknown_name("table", name, TABLES))
    return TABLES[name]


def choose_cells(table: Table, names: str | None, extra: ExtraImages | None = None) -> tuple[Cell, ...]:
    """The cells named, separated by commas; without names, all that can be run with the extra images given."""
    if names is None:
        cells = tuple(cell for cell in table.cells if obstacle(cell, extra) is None)
    else:
        cells = tuple(dict.fromkeys(_find_cell(table, name.strip()) for name in names.split(",")))
    for cell in cells or table.cells:
        if reason := obstacle(cell, extra):
            raise ConfigError(f"{cell.key} cannot be run: it {reason}.")
    return cells


def _find_cell(table: Table, name: str) -> Cell:
    cells = {cell.name: cell for cell in table.cells}
    if name not in cells:
        raise ConfigError(unknown_name(f"{table.name} cell", name, cells))
    return cells[name]


def parse_seeds(text: str) -> list[int]:
    """
    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(f"--seeds is '{text}'; expected whole numbers and ranges such as 0-9 or 0,3,5.")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST_SEEDS:
            raise ConfigError(f"--seeds has '{part.strip()}'; expected a rising range of seeds below {MOST_SEEDS}.")
        seeds.update(range(low, high + 1))
    return sorted(seeds)


def tasks(seeds: Mapping[Cell, Sequence[int]]) -> list[Task]:
    """The runs of some cells, a seed of every cell before the next seed of any, so that tables fill evenly."""
    return sorted((Task(cell, seed) for cell in seeds for seed in seeds[cell]), key=lambda task: task.seed)
