"""The extra unlabeled images of a call of `selfens reproduce`: Tiny Images, or natural images that stand in for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfens.errors import ConfigError
from selfens.experiments.cells import Cell, Table

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset

TINY_IMAGES = "tiny_images.bin"
RANDOM_IMAGES = 500_000
RESTRICTED_IMAGES = 237_203


@dataclass(frozen=True)
class ExtraImages:
    """Where they come from, and the index that finds the restricted categories of Tiny Images."""

    source: str
    index: Path | None = None

    @property
    def name(self) -> str:
        """What a record calls them."""
        return Path(self.source).name

    def added_to(self, main: Dataset, cell: Cell, seed: int, data_dir: Path | None = None) -> Dataset:
        """The main set with the images that a cell asks for: the restricted ones, or up to 500,000 drawn by the seed."""
        from selfens.data import sources

        index = self.index if cell.extra == "restricted" else None
        found = sources.find_extra(main, self.source, data_dir=data_dir, index=index)
        count = RANDOM_IMAGES if cell.extra == "random" and len(found.inputs) > RANDOM_IMAGES else None
        return found.added_to(main, count=count, seed=seed)


def stand_in(cell: Cell, images: Mapping[str, Any]) -> bool:
    """Whether the extra images a run had are others than the paper's, so that its error is no reproduction."""
    asked = {"random": RANDOM_IMAGES, "restricted": RESTRICTED_IMAGES}
    return cell.extra is not None and images != {"source": TINY_IMAGES, "rows": asked[cell.extra]}


def needed(cell: Cell) -> str:
    """Which options a cell with extra images needs."""
    index = ", --extra-index" if cell.extra == "restricted" else ""
    return f"needs extra unlabeled images (--extra{index})"


def obstacle(cell: Cell, given: ExtraImages | None) -> str | None:
    """Why a cell cannot be run with what was given, if it cannot."""
    if cell.extra is None:
        return None
    if given is None:
        others = "" if cell.extra == "restricted" else ", or in its place any file or folder of natural images"
        return f"{needed(cell)}: {TINY_IMAGES}{others}"
    if cell.extra == "restricted" and given.index is None:
        return "needs --extra tiny_images.bin and --extra-index tiny_index.pkl, which finds the restricted categories in it"
    return None


def check_wanted(table: Table, given: ExtraImages | None) -> None:
    """Refuse images that no cell of the table asks for."""
    if given is not None and not any(cell.extra for cell in table.cells):
        raise ConfigError(f"--extra was given, but table {table.name} has no cell with extra images.")
