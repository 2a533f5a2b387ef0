"""Quick: the same experiments shrunk to a second each, on made-up images, to see that everything works. Not to measure.

Kept as they are: method, consistency, flips, preprocessing, which part of the rows is labelled, and w_max. The learning
rate is larger, so that something is learned in so few steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.config import Config
from selfens.data.dataset import Dataset
from selfens.experiments.cells import OFFICIAL_ROWS
from selfens.experiments.extra_images import ExtraImages

ROWS, TEST_ROWS, EXTRA_ROWS, SIDE, EPOCHS, BATCH, SEEDS = 1000, 200, 2000, 8, 8, 40, 2
FASTER = 5  # times the learning rate
CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10}
MADE_UP = ExtraImages("made-up images", index=Path("made-up index"))


def shrink(config: Config) -> Config:
    """A config of the paper, made small."""
    return (
        config.with_values("data", labels=_labels(config), extra_per_epoch=_extra_per_epoch(config))
        .with_values("network", name="small", width=8, mean_momentum=0.9)
        .with_values("optimizer", learning_rate=FASTER * config.optimizer.learning_rate)
        .with_values("schedule", epochs=EPOCHS)
        .with_values("training", batch_size=_batch(config))
    )


def _labels(config: Config) -> int | None:
    """In the same proportion, but at least one per class."""
    name, labels = config.data.name, config.data.labels
    if labels is None:
        return None
    per_class = round(labels * ROWS / OFFICIAL_ROWS[name][0] / CLASSES[name])
    return CLASSES[name] * max(1, per_class)


def _batch(config: Config) -> int:
    """No more than there are rows to visit."""
    return BATCH if config.training.rows == "all" else min(BATCH, _labels(config) or BATCH)


def _extra_per_epoch(config: Config) -> int | None:
    per_epoch = config.data.extra_per_epoch
    return None if per_epoch is None else per_epoch * ROWS // OFFICIAL_ROWS[config.data.name][0]


def made_up(name: str) -> Dataset:
    """Bytes in the shape of small color images; a class is a color under noise, which flips and shifts leave alone."""
    random, classes = np.random.default_rng(0), CLASSES[name]
    labels = np.arange(ROWS + TEST_ROWS) % classes
    images = _images(_colors(classes, random)[labels], random)
    return Dataset(
        inputs=images[:ROWS],
        labels=labels[:ROWS].astype(np.int64),
        test_inputs=images[ROWS:],
        test_labels=labels[ROWS:].astype(np.int64),
        classes=tuple(f"class {number}" for number in range(classes)),
        name=f"made-up {name}",
    )


def with_made_up_extra(main: Dataset) -> Dataset:
    """Made-up images of other colors besides."""
    random = np.random.default_rng(1)
    return main.with_extra(_images(_colors(EXTRA_ROWS, random), random), name=MADE_UP.source)


def _colors(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    return random.integers(40, 200, size=(count, 3, 1, 1))


def _images(colors: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.uint8]:
    noise = random.normal(scale=10, size=(len(colors), 3, SIDE, SIDE))
    return (colors + noise).clip(0, 255).astype(np.uint8)
