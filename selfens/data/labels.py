"""Which rows are labeled: drawn per class, drawn as the authors' code does, or read from a file; with noise if wanted.

The choice depends on the data set's labels, the options and a seed, and is written into the run as `labels.json`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.config import DataConfig
from selfens.core.randomness import CORRUPTION, HELD_OUT, stream
from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.label_files import named_rows
from selfens.errors import DataError

Rows = NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelChoice:
    """The labeled rows in use, the labels they are trained with, and what was done to them."""

    rows: Rows
    labels: Labels
    """One per row of `rows`, corrupted ones included."""
    corrupted: Rows = field(default_factory=lambda: NO_ROWS)
    """Rows whose label was redrawn; by chance it may have stayed the same."""
    validation: Rows = field(default_factory=lambda: NO_ROWS)
    """Labeled rows held out of training."""
    validation_labels: Labels = field(default_factory=lambda: NO_ROWS)

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name).tolist() for name in self.__dataclass_fields__}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> LabelChoice:
        raw = json.loads(text)
        lists = {name: np.array(raw[name]) for name in cls.__dataclass_fields__}
        if any(len(numbers) and numbers.dtype != np.int64 for numbers in lists.values()):
            raise ValueError("lists of whole numbers")
        return cls(**{name: numbers.astype(np.int64) for name, numbers in lists.items()})

    def digest(self) -> str:
        """SHA-256 of the lines `row,label` of the labeled rows as they are trained on, by ascending row."""
        pairs = sorted(zip(self.rows.tolist(), self.labels.tolist(), strict=True))
        return hashlib.sha256("".join(f"{row},{label}\n" for row, label in pairs).encode()).hexdigest()

    def check(self, *, num_rows: int, num_classes: int) -> None:
        """Raise ValueError if this cannot be a choice of labels for so many rows and classes."""
        for rows, labels in ((self.rows, self.labels), (self.validation, self.validation_labels)):
            inside = ((rows >= 0) & (rows < num_rows)).all() and ((labels >= 0) & (labels < num_classes)).all()
            if rows.ndim != 1 or rows.shape != labels.shape or not inside:
                raise ValueError("rows of the training set, with a label among the classes each")
        every = np.concatenate([self.rows, self.validation])
        if not len(self.rows) or len(np.unique(every)) < len(every) or not np.isin(self.corrupted, self.rows).all():
            raise ValueError("labeled rows, each once")

    def visited(self, num_rows: int, which: str) -> Rows:
        """The rows that training visits, by `training.rows`: all but the held-out ones, or only the labeled ones."""
        if which == "labeled":
            return np.sort(self.rows)
        return np.setdiff1d(np.arange(num_rows), self.validation, assume_unique=True)

    def training_labels(self, num_rows: int) -> Labels:
        """A label for every training row, -1 if it is not known or not used."""
        labels = np.full(num_rows, UNLABELED, dtype=np.int64)
        labels[self.rows] = self.labels
        return labels

    def known_labels(self, num_rows: int) -> Labels:
        """The same, with the labels of the validation rows."""
        labels = self.training_labels(num_rows)
        labels[self.validation] = self.validation_labels
        return labels


def choose_labels(dataset: Dataset, options: DataConfig, *, label_seed: int, split_seed: int) -> LabelChoice:
    """The labeled rows that `options` ask for."""
    rows, labels = _chosen(dataset, options, label_seed) if dataset.num_classes else (NO_ROWS, NO_ROWS)
    if len(rows) == 0:
        raise DataError(
            f"no training row of {dataset.name} has a label; give at least one per class "
            "(a label is a class; -1, None, NaN or an empty string mean unknown)."
        )
    _check_every_class(dataset, labels)
    held_out = _held_out(labels, options.validation, split_seed)
    kept = np.setdiff1d(np.arange(len(rows)), held_out)
    corrupted, noisy = _corrupt(labels[kept], dataset.num_classes, options.label_noise, label_seed)
    return LabelChoice(
        rows=rows[kept],
        labels=noisy,
        corrupted=rows[kept][corrupted],
        validation=rows[held_out],
        validation_labels=labels[held_out],
    )


def _chosen(dataset: Dataset, options: DataConfig, seed: int) -> tuple[Rows, Labels]:
    if options.labels_file is None:
        return _drawn(dataset, options, seed)
    labels = np.full(dataset.num_rows, UNLABELED, dtype=np.int64)
    if options.label_choice != "file":
        drawn, of_drawn = _drawn(dataset, options, seed)
        labels[drawn] = of_drawn
    named = named_rows(Path(options.labels_file), dataset)
    if all(labels[row] == label == UNLABELED for row, label in named.items()):
        raise DataError(f"the labels file {options.labels_file} has no labels; fill in its column label.")
    labels[list(named)] = list(named.values())
    rows = np.flatnonzero(labels != UNLABELED)
    return rows, labels[rows]


def _drawn(dataset: Dataset, options: DataConfig, seed: int) -> tuple[Rows, Labels]:
    main = dataset.labels[: dataset.main_rows]  # which rows a seed draws must not depend on the extra ones
    if options.labels is None:
        rows = np.flatnonzero(dataset.labels != UNLABELED)
    elif options.label_choice == "original":
        rows = original_rows(main, dataset.classes, options.labels, seed)
    else:
        rows = balanced_rows(main, dataset.classes, options.labels, seed)
    return rows, dataset.labels[rows]


def balanced_rows(labels: Labels, classes: tuple[str, ...], count: int, seed: int) -> Rows:
    """`count` labeled rows, equally many per class; a remainder goes to random classes, one each."""
    random = np.random.default_rng(seed)
    wanted = np.full(len(classes), count // len(classes))
    wanted[random.permutation(len(classes))[: count % len(classes)]] += 1
    _check_enough(labels, classes, wanted, count)
    picked = [
        random.choice(np.flatnonzero(labels == number), size=wanted[number], replace=False)
        for number in range(len(classes))
    ]
    return np.sort(np.concatenate(picked))


def original_rows(labels: Labels, classes: tuple[str, ...], count: int, seed: int) -> Rows:
    """The rows the authors' code would label: two legacy shuffles composed, then the first k of each class.

    With the official CIFAR files a seed gives the authors' own label set. A remainder of count / classes is left out, as there.
    """
    random = np.random.RandomState(seed)  # noqa: NPY002  the authors' generator is the point
    first, second = np.arange(len(labels)), np.arange(len(labels))
    random.shuffle(first)
    random.shuffle(second)
    order = first[second]
    each = count // len(classes)
    _check_enough(labels, classes, np.full(len(classes), each), count)
    picked = [order[labels[order] == number][:each] for number in range(len(classes))]
    return np.sort(np.concatenate(picked))


def _check_enough(labels: Labels, classes: tuple[str, ...], wanted: NDArray[Any], count: int) -> None:
    if count < len(classes):
        asked = "1 label was" if count == 1 else f"{count} labels were"
        raise DataError(f"{asked} asked for and there are {len(classes)} classes; ask for at least one each.")
    have = np.bincount(labels[labels != UNLABELED], minlength=len(classes))
    short = np.flatnonzero(have < wanted)
    if len(short):
        number = int(short[0])
        raise DataError(
            f"{count} labels were asked for, {wanted[number]} of them of class '{classes[number]}', which has only "
            f"{have[number]}; ask for at most {int(have.min()) * len(classes)}, or for all."
        )


def _check_every_class(dataset: Dataset, labels: Labels) -> None:
    counts = np.bincount(labels, minlength=dataset.num_classes)
    if dataset.num_classes < 2:
        raise DataError(
            f"the labels name one class only ('{dataset.classes[0]}'); expected at least two (-1, NaN and empty mean "
            "unlabeled)."
        )
    if (counts == 0).any():
        empty = dataset.classes[int(counts.argmin())]
        raise DataError(f"class '{empty}' has no labeled row; label at least one, or leave the class out.")


def _held_out(labels: Labels, fraction: float, seed: int) -> Rows:
    """Positions of the validation rows: `fraction` of each class, leaving at least one of each for training."""
    if fraction == 0:
        return NO_ROWS
    random = stream(seed, HELD_OUT)
    picked = []
    for number in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == number))
        picked.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    held_out = np.sort(np.concatenate(picked))
    if len(held_out) == 0:
        raise DataError(
            f"a validation fraction of {fraction} of {len(labels)} labeled rows leaves none to validate on; "
            "use more labels per class or a larger fraction."
        )
    return held_out


def _corrupt(labels: Labels, num_classes: int, percentage: float, seed: int) -> tuple[Rows, Labels]:
    """Redraw `percentage` of the labels uniformly over all classes, as in the paper's last experiment."""
    count = int(0.01 * len(labels) * percentage)
    random = stream(seed, CORRUPTION)
    positions = np.sort(random.permutation(len(labels))[:count])
    noisy = labels.copy()
    noisy[positions] = random.integers(num_classes, size=count)
    return positions, noisy
