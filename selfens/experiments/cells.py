"""Cell: one number of the paper, with the config that should give it. Imports no torch."""

from __future__ import annotations

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
    """For seed 0; `Task.config` is that of another."""
    mean: float | None = None
    """Test error in percent; None if the paper gives no number."""
    deviation: float | None = None
    runs: int | None = None
    """None if the paper does not say; we do one."""
    extra: Literal["random", "restricted"] | None = None
    """Which images of Tiny Images are trained on besides the main set; other images may stand in for the random ones."""

    @property
    def key(self) -> str:
        return f"{self.table}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    column_title: str = "labels"
    """What distinguishes its columns."""
    notes: tuple[str, ...] = ()
    """What the paper leaves open and we chose, and what a reader must know."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's text, and the cells of any table that test it."""

    text: str
    paper: str
    """How large the effect is, in the paper's words."""
    cells: tuple[str, ...]
    """The better one first."""


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
