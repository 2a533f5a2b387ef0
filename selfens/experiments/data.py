"""What the runs are trained on: the official data sets, extra unlabeled images, or small made-up ones for quick runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from selfens.config import Config
from selfens.errors import DataError
from selfens.experiments.cells import Cell, Table, Task
from selfens.experiments.tables import OFFICIAL_ROWS

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset

RANDOM_IMAGES = 500_000


@dataclass(frozen=True)
class Source:
    """Where the data of a command's runs comes from."""

    data_dir: Path | None = None
    """Of the official files; None: the usual folder."""
    extra: str | None = None
    """Extra unlabeled images: a file or folder of natural images that stand in for Tiny Images."""
    quick: bool = False
    """Made-up images instead of all of these."""

    def dataset(self, task: Task, *, progress: bool = False) -> Dataset:
        """The data of a run, with its extra images."""
        from selfens.data import sources

        if self.quick:
            return made_up(task.cell)
        main = official(task.cell.config.data.name, self.data_dir, progress)
        if task.cell.extra is None or self.extra is None:
            return main
        extended = sources.with_extra(main, self.extra, data_dir=self.data_dir)
        if extended.extra_rows > RANDOM_IMAGES:
            raise DataError(
                f"{self.extra} has {extended.extra_rows:,} images; the paper has {RANDOM_IMAGES:,} random ones, so expected at "
                "most that many: save some of them to a file of their own."
            )
        return extended


def official(name: str, data_dir: Path | None = None, progress: bool = False) -> Dataset:
    """A data set, downloaded if need be; refused if it cannot be the paper's."""
    from selfens.data import sources

    data = sources.load(name, data_dir=data_dir, progress=progress)
    found, expected = (data.main_rows, len(data.test_labels)), OFFICIAL_ROWS.get(name)
    if expected and found != expected:
        raise DataError(
            f"{name} has {found[0]:,} training and {found[1]:,} test images here; the official files, which the paper's "
            f"tables are about, have {expected[0]:,} and {expected[1]:,}. Choose the folder that holds them as data folder."
        )
    return data


# Quick runs: a second each, to see that everything works

ROWS, TEST_ROWS, EXTRA_ROWS, SIDE, CLASSES, EPOCHS, BATCH = 1000, 200, 2000, 8, 10, 8, 40
FASTER = 5  # times the learning rate, so that something is learned in so few steps


def quick(table: Table) -> Table:
    """A table whose cells keep their method, augmentation, preprocessing and w_max, but are small."""
    return replace(table, cells=tuple(replace(cell, config=_small(cell)) for cell in table.cells))


def _small(cell: Cell) -> Config:
    config, labels = cell.config, cell.config.data.labels
    if labels is not None:
        labels = CLASSES * max(1, round(labels * ROWS / OFFICIAL_ROWS[config.data.name][0] / CLASSES))
    batch = BATCH if config.training.rows == "all" else min(BATCH, labels or BATCH)
    return (
        config.with_values("data", labels=labels, extra_per_epoch=ROWS if cell.extra else None)
        .with_values("network", name="small", width=8, mean_momentum=0.9)
        .with_values("optimizer", learning_rate=FASTER * config.optimizer.learning_rate)
        .with_values("schedule", epochs=EPOCHS)
        .with_values("training", batch_size=batch, threads=1)  # too small for a second thread
    )


def made_up(cell: Cell) -> Dataset:
    """Small color images as bytes; a class is a color under noise, which flips and shifts do not change."""
    from selfens.data.dataset import Dataset

    random = np.random.default_rng(0)

    def images(colors: NDArray[np.int64]) -> NDArray[np.uint8]:
        return (colors + random.normal(scale=10, size=(len(colors), 3, SIDE, SIDE))).clip(0, 255).astype(np.uint8)

    labels = np.arange(ROWS + TEST_ROWS) % CLASSES
    pixels = images(random.integers(40, 200, size=(CLASSES, 3, 1, 1))[labels])
    arrays = (pixels[:ROWS], labels[:ROWS], pixels[ROWS:], labels[ROWS:])
    main = Dataset.from_arrays(*arrays, layout="NCHW", name=f"made-up {cell.config.data.name}")
    if cell.extra is None:
        return main
    return main.with_extra(images(random.integers(40, 200, size=(EXTRA_ROWS, 3, 1, 1))), name="made-up images")
