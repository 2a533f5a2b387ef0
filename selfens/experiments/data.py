"""What the runs are trained on: the official data sets, extra unlabeled images, or small made-up ones for quick runs.

A quick run keeps the method, the consistency, the flips, the preprocessing, the fraction of labelled rows and w_max of its
cell. The learning rate is larger, so that something is learned in so few steps.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from selfens.config import Config
from selfens.errors import DataError
from selfens.experiments.cells import Cell, Task
from selfens.experiments.tables import OFFICIAL_ROWS

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset

TINY_IMAGES = "tiny_images.bin"
RANDOM_IMAGES = 500_000
RESTRICTED_IMAGES = 237_203


@dataclass(frozen=True)
class Source:
    """Where the data of a command's runs comes from."""

    data_dir: Path | None = None
    """Of the official files; None: the usual folder."""
    extra: str | None = None
    """Extra unlabeled images: tiny_images.bin, or a file or folder of natural images that stand in for it."""
    extra_index: Path | None = None
    """tiny_index.pkl, which finds the restricted categories of Tiny Images."""
    quick: bool = False
    """Made-up images instead of all of these."""

    @property
    def extra_name(self) -> str:
        """What a record calls the extra images."""
        return Path(self.extra or "").name

    def dataset(self, task: Task, *, progress: bool = False) -> Dataset:
        """The data of a run: for extra images the restricted ones, or up to 500,000 drawn by the seed."""
        from selfens.data import sources

        if self.quick:
            return made_up(task.cell)
        main = official(task.cell.config.data.name, self.data_dir, progress)
        if task.cell.extra is None or self.extra is None:
            return main
        index = self.extra_index if task.cell.extra == "restricted" else None
        found = sources.find_extra(main, self.extra, data_dir=self.data_dir, index=index)
        count = RANDOM_IMAGES if task.cell.extra == "random" and len(found.inputs) > RANDOM_IMAGES else None
        return found.added_to(main, count=count, seed=task.seed)


@functools.lru_cache(maxsize=1)  # most runs of a process are on the same data set
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


def is_stand_in(cell: Cell, images: Mapping[str, Any]) -> bool:
    """Whether a run had other extra images than the paper's, so that its error does not reproduce the paper's."""
    rows = {"random": RANDOM_IMAGES, "restricted": RESTRICTED_IMAGES}
    return cell.extra is not None and images != {"source": TINY_IMAGES, "rows": rows[cell.extra]}


def in_words(images: Mapping[str, Any]) -> str:
    """Such as "120,000 images of natural.npy"."""
    rows = f"{images['rows']:,} " if "rows" in images else ""
    return f"{rows}images of {images['source']}" if images else "no extra images"


# Quick runs: a second each, to see that everything works

ROWS, TEST_ROWS, EXTRA_ROWS, SIDE, EPOCHS, BATCH, QUICK_SEEDS = 1000, 200, 2000, 8, 8, 40, 2
FASTER = 5  # times the learning rate
CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10}


def shrink(config: Config) -> Config:
    """A config of the paper, made small."""
    labels, extra, visits_all = _labels(config), config.data.extra_per_epoch, config.training.rows == "all"
    per_epoch = None if extra is None else extra * ROWS // OFFICIAL_ROWS[config.data.name][0]
    return (
        config.with_values("data", labels=labels, extra_per_epoch=per_epoch)
        .with_values("network", name="small", width=8, mean_momentum=0.9)
        .with_values("optimizer", learning_rate=FASTER * config.optimizer.learning_rate)
        .with_values("schedule", epochs=EPOCHS)
        .with_values("training", batch_size=BATCH if visits_all else min(BATCH, labels or BATCH))
    )


def _labels(config: Config) -> int | None:
    """In the same proportion, but at least one per class."""
    name, labels = config.data.name, config.data.labels
    if labels is None:
        return None
    per_class = round(labels * ROWS / OFFICIAL_ROWS[name][0] / CLASSES[name])
    return CLASSES[name] * max(1, per_class)


def made_up(cell: Cell) -> Dataset:
    """Small color images as bytes; a class is a color under noise, which flips and shifts do not change."""
    from selfens.data.dataset import Dataset

    name = cell.config.data.name
    random, classes = np.random.default_rng(0), CLASSES[name]
    labels = np.arange(ROWS + TEST_ROWS) % classes
    images = _images(_colors(classes, random)[labels], random)
    main = Dataset(
        inputs=images[:ROWS],
        labels=labels[:ROWS].astype(np.int64),
        test_inputs=images[ROWS:],
        test_labels=labels[ROWS:].astype(np.int64),
        classes=tuple(f"class {number}" for number in range(classes)),
        name=f"made-up {name}",
    )
    if cell.extra is None:
        return main
    random = np.random.default_rng(1)
    return main.with_extra(_images(_colors(EXTRA_ROWS, random), random), name="made-up images")


def _colors(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    return random.integers(40, 200, size=(count, 3, 1, 1))


def _images(colors: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.uint8]:
    noise = random.normal(scale=10, size=(len(colors), 3, SIDE, SIDE))
    return (colors + noise).clip(0, 255).astype(np.uint8)
