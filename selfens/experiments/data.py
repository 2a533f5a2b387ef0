"""The data of the runs: the official data sets, with extra unlabeled images, or digits for quick runs."""

from dataclasses import dataclass, replace
from pathlib import Path

from selfens.config import Config
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.sources.official import ROWS
from selfens.errors import DataError
from selfens.experiments.tables import Cell, Table, Task

RANDOM_IMAGES = 500_000


@dataclass(frozen=True)
class DataLocation:
    """Where the data of runs are."""

    folder: Path | None = None
    """Folder of the official files; None: the default one."""
    extra: str | None = None
    """A file or folder of natural images that replace Tiny Images."""
    quick: bool = False
    """Use digits, for the runs of `quick`."""

    def config(self, task: Task) -> Config:
        """Return the config of a run, reading from here."""
        values = {} if self.folder is None or self.quick else {"folder": str(self.folder)}
        if task.cell.extra is not None:
            values["extra"] = "digits" if self.quick else self.extra or ""
        return task.config.with_values("source", **values)

    def load(self, task: Task, *, progress: bool = False) -> Dataset:
        """Load (and download) the data of a run, and check that they are the paper's."""
        config = self.config(task)
        data = sources.load(config.source, seed=config.seed.of("split"), progress=progress)
        name, found = config.source.title, (data.num_main, len(data.test_rows))
        expected = ROWS.get(name, found)
        if found != expected:
            counts = "{:,} training and {:,} test images".format
            raise DataError(f"{name} has {counts(*found)} here; the official files have {counts(*expected)}.")
        if data.extra_rows > RANDOM_IMAGES:
            extra = f"{self.extra} has {data.extra_rows:,} images; the paper has {RANDOM_IMAGES:,} random ones"
            raise DataError(f"{extra}: save at most that many to another file.")
        return data


def quick(table: Table) -> Table:
    """Return the table with runs of a second on digits. Methods, views, preprocessing and w_max stay the same."""
    return replace(table, cells=tuple(map(_quick, table.cells)))


def _quick(cell: Cell) -> Cell:
    config = (
        cell.config.with_values("source", name="digits")
        .with_values("labels", count=None if cell.config.labels.count is None else 50)
        .with_values("network", name="small", width=8, mean_momentum=0.9)
        .with_values("schedule", epochs=8, rampup_epochs=2, rampdown_epochs=2, weight_rampup_epochs=80)
        .with_values("training", batch_size=40, threads=1, unlabeled_per_epoch=1000 if cell.extra else None)
    )
    return replace(cell, config=config)
