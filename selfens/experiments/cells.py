"""Cell: one number of the paper, with the config that should give it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from selfens.config import Config

MAX_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of the paper."""

    table: str
    name: str
    row: str
    column: str
    config: Config
    """For seed 0; `config_for` gives the others."""
    mean: float | None = None
    """Test error in percent; None if the paper gives no number."""
    deviation: float | None = None
    runs: int | None = None
    extra: Literal["random", "restricted"] | None = None
    """Which images of Tiny Images are trained on besides the main set; other images may stand in for the random ones."""

    @property
    def key(self) -> str:
        return f"{self.table}/{self.name}"

    def config_for(self, seed: int) -> Config:
        return self.config.with_values("seed", base=seed)

    def default_seeds(self) -> list[int]:
        """As many as the paper ran; one if it does not say."""
        return list(range(self.runs or 1))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    earlier: tuple[tuple[str, str, str, str], ...] = ()
    """Published results of other systems: system, column, error in percent as printed, remark."""
    column_title: str = "labels"
    """What distinguishes its columns."""
    notes: tuple[str, ...] = ()
    """What the paper leaves open and we chose, and what a reader must know."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's text and the cells of any table that test it, so nothing is run twice."""

    text: str
    paper: str
    """What the measured value should be, in the paper's words."""
    measure: Literal["difference", "slowdown", "accuracy"]
    """Points of error of `cell` above `other`, paired by seed; ratio of seconds per epoch; or accuracy of `cell`."""
    cell: str
    other: str | None = None


@dataclass(frozen=True)
class Task:
    """A run to do: a cell and a seed."""

    cell: Cell
    seed: int

    def __str__(self) -> str:
        return f"{self.cell.key} seed {self.seed}"


def tasks(seeds: Mapping[Cell, Sequence[int]]) -> list[Task]:
    """The runs of some cells; one seed of every cell before the next seed of any, so that tables fill evenly."""
    return sorted((Task(cell, seed) for cell in seeds for seed in seeds[cell]), key=lambda task: task.seed)
