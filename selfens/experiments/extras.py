"""The extra unlabeled images of a call of `selfens reproduce`: Tiny Images, or natural images that stand in for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from selfens.errors import ConfigError
from selfens.experiments.cells import Cell, Table

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset

RANDOM_IMAGES = 500_000
NEEDED = "needs extra unlabeled images (--extra)"


@dataclass(frozen=True)
class ExtraImages:
    """Where they come from, and the index that finds the restricted categories of Tiny Images."""

    source: str
    index: Path | None = None

    def added_to(self, main: Dataset, cell: Cell, seed: int, data_dir: Path | None = None) -> Dataset:
        """The main set with the images that a cell asks for: the restricted ones, or up to 500,000 drawn by the seed."""
        from selfens.data import sources

        index = self.index if cell.extra == "restricted" else None
        found = sources.find_extra(main, self.source, data_dir=data_dir, index=index)
        count = RANDOM_IMAGES if cell.extra == "random" and len(found.inputs) > RANDOM_IMAGES else None
        return found.added_to(main, count=count, seed=seed)


def obstacle(cell: Cell, given: ExtraImages | None) -> str | None:
    """Why a cell cannot be run with what was given, if it cannot."""
    if cell.extra is None:
        return None
    if given is None:
        return f"{NEEDED}: tiny_images.bin, or in its place any file or folder of natural images"
    if cell.extra == "restricted" and given.index is None:
        return "needs --extra tiny_images.bin and --extra-index tiny_index.pkl, which finds the restricted categories in it"
    return None


def check_wanted(table: Table, given: ExtraImages | None) -> None:
    """Refuse images that no cell of the table asks for."""
    if given is not None and not any(cell.extra for cell in table.cells):
        raise ConfigError(f"--extra was given, but table {table.name} has no cell with extra images.")
