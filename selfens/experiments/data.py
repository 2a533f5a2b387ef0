"""What the runs are trained on: the official data sets, with extra unlabeled images, or digits for quick runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from selfens.errors import DataError
from selfens.experiments.tables import Cell, Table, Task

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset

OFFICIAL_ROWS = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032)}
"""Training and test images of each data set."""
RANDOM_IMAGES = 500_000


@dataclass(frozen=True)
class Source:
    """Where the data of a command's runs comes from."""

    data_dir: Path | None = None
    """Of the official files; None: the usual folder."""
    extra: str | None = None
    """Extra unlabeled images: a file or folder of natural images that stand in for Tiny Images."""
    quick: bool = False
    """The cells are those of `quick`, with digits instead of all of these."""

    def dataset(self, task: Task, *, progress: bool = False) -> Dataset:
        """The data of a run, downloaded if need be, with its extra images."""
        from selfens.data import sources

        name = task.cell.config.data.name
        main = sources.load(name, data_dir=self.data_dir, progress=progress)
        _check_official(name, main)
        if task.cell.extra is None:
            return main
        if self.quick:
            return main.with_extra(main.inputs, name="digits again")
        if self.extra is None:
            raise DataError(f"{task} needs extra unlabeled images, and none were given.")
        extended = sources.with_extra(main, self.extra, data_dir=self.data_dir)
        if extended.extra_rows > RANDOM_IMAGES:
            raise DataError(
                f"{self.extra} has {extended.extra_rows:,} images; the paper has {RANDOM_IMAGES:,} random ones, so expected at "
                "most that many: save some of them to a file of their own."
            )
        return extended


def _check_official(name: str, data: Dataset) -> None:
    """Refuse a data set that cannot be the paper's."""
    found, expected = (data.main_rows, len(data.test_labels)), OFFICIAL_ROWS.get(name)
    if expected and found != expected:
        raise DataError(
            f"{name} has {found[0]:,} training and {found[1]:,} test images here; the official files, which the paper's "
            f"tables are about, have {expected[0]:,} and {expected[1]:,}. Choose the folder that holds them as data folder."
        )


def quick(table: Table) -> Table:
    """A table whose cells keep their method, views, preprocessing and w_max, but take a second on scikit-learn's digits."""
    return replace(table, cells=tuple(map(_quick, table.cells)))


def _quick(cell: Cell) -> Cell:
    labels = None if cell.config.data.labels is None else 50
    config = (
        cell.config.with_values("data", name="digits", labels=labels, extra_per_epoch=1000 if cell.extra else None)
        .with_values("network", name="small", width=8, mean_momentum=0.9)
        .with_values("schedule", epochs=8, rampup_epochs=2, rampdown_epochs=2, weight_rampup_epochs=80)
        .with_values("training", batch_size=40, threads=1)  # too small for a second thread
    )
    return replace(cell, config=config)
