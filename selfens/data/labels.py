"""Which rows are labeled: drawn per class, drawn like the authors' code, or read from a file; optionally with noise.

The choice depends only on the labels of the dataset, the options and a seed. A run saves it as `labels.json`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from selfens.core.randomness import CORRUPTION, HELD_OUT, stream
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.label_files import label_names, read_several
from selfens.data.rows import Labels, Rows
from selfens.errors import ConfigError, DataError, listed
from selfens.settings import Section, setting

NO_ROWS: Rows = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class LabelsConfig(Section):
    """Which rows are labeled. Rows are training rows, numbered from 0."""

    section: ClassVar[str] = "labels"
    count: int | None = setting(
        None, "Number of labels to use, spread evenly over the classes; all: use every label.", none="all", at_least=1
    )
    choice: Literal["balanced", "original", "file", "added"] = setting(
        "balanced",
        "How labeled rows are chosen: drawn per class, drawn like the authors' code, read from labels.file, or drawn per "
        "class with those of labels.file added.",
    )
    file: tuple[str, ...] | None = setting(
        None, "Files of rows, or row,label pairs, to use as the labels (text or CSV).", is_path=True
    )
    prior: str | None = setting(
        None, "File of class probabilities or labels of the training rows, by another model (CSV or npz).", is_path=True
    )
    noise: float = setting(
        0.0, "Percentage of the labels in use that are redrawn uniformly over all classes.", at_least=0, at_most=100
    )
    validation: float = setting(
        0.0, "Fraction of the labeled rows held out, to estimate the error without the test set.", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        given: Any = self.file
        if isinstance(given, list) and not all(isinstance(each, str) for each in given):
            raise ConfigError(f"labels.file is {given!r}; expected paths.")
        if isinstance(given, str | list):
            object.__setattr__(self, "file", (given,) if isinstance(given, str) else tuple(given))
        super().__post_init__()
        if (self.choice in ("file", "added")) != (self.file is not None):
            both = f"labels.choice is '{self.choice}' and labels.file is {self.file!r}"
            raise ConfigError(f"{both}; set labels.file if labels.choice is file or added, and only then.")


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelChoice:
    """The labeled rows in use and the labels to train on, corrupted and held-out ones included."""

    rows: Rows
    labels: Labels
    """One per row of `rows`, corrupted ones included."""
    corrupted: Rows = field(default_factory=lambda: NO_ROWS)
    """Rows whose label was redrawn; by chance it may be the same."""
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
        """Return the SHA-256 of the training labels, written as lines `row,label` in ascending order of rows."""
        pairs = sorted(zip(self.rows.tolist(), self.labels.tolist(), strict=True))
        return hashlib.sha256("".join(f"{row},{label}\n" for row, label in pairs).encode()).hexdigest()

    def check(self, *, num_rows: int, num_classes: int) -> None:
        """Raise ValueError if this cannot be a choice of labels for this number of rows and classes."""
        for rows, labels in ((self.rows, self.labels), (self.validation, self.validation_labels)):
            inside = ((rows >= 0) & (rows < num_rows)).all() and ((labels >= 0) & (labels < num_classes)).all()
            if rows.ndim != 1 or rows.shape != labels.shape or not inside:
                raise ValueError("rows of the training set, with a label among the classes each")
        every = np.concatenate([self.rows, self.validation])
        if not len(self.rows) or len(np.unique(every)) < len(every) or not np.isin(self.corrupted, self.rows).all():
            raise ValueError("labeled rows, each once")

    def visited(self, num_rows: int, which: str) -> Rows:
        """Return the rows that training visits, by `training.rows`: all but the held-out ones, or only the labeled ones."""
        if which == "labeled":
            return np.sort(self.rows)
        return np.setdiff1d(np.arange(num_rows), self.validation, assume_unique=True)

    def training_labels(self, num_rows: int) -> Labels:
        """Return a label for every training row, -1 if unknown or unused."""
        labels = np.full(num_rows, UNLABELED, dtype=np.int64)
        labels[self.rows] = self.labels
        return labels

    def known_labels(self, num_rows: int) -> Labels:
        """Return the training labels, with those of the validation rows filled in."""
        labels = self.training_labels(num_rows)
        labels[self.validation] = self.validation_labels
        return labels


def with_classes(dataset: Dataset, options: LabelsConfig) -> Dataset:
    """Return the dataset with the classes that its labels files name, if it has none of its own."""
    if dataset.classes or options.file is None:
        return dataset
    names = {name for path in options.file for name in label_names(Path(path))}
    return replace(dataset, classes=tuple(sorted(names)))


def choose_labels(dataset: Dataset, options: LabelsConfig, *, label_seed: int, split_seed: int) -> LabelChoice:
    """Choose the labeled rows that the options ask for."""
    rows, labels = _chosen(dataset, options, label_seed) if dataset.num_classes else (NO_ROWS, NO_ROWS)
    counts = np.bincount(labels, minlength=dataset.num_classes)
    if not len(rows):
        raise DataError(f"no training row of {dataset.name} has a label; label at least one row per class.")
    if len(counts) < 2:
        raise DataError(f"all labels are of one class ('{dataset.classes[0]}'); expected at least two classes.")
    if empty := [f"'{name}'" for name, count in zip(dataset.classes, counts, strict=True) if not count]:
        has = f"class {empty[0]} has" if len(empty) == 1 else f"classes {listed(empty, 8)} have"
        raise DataError(f"{has} no labeled row; label at least one of each class, or leave the class out.")
    held_out = _held_out(labels, options.validation, split_seed)
    kept = np.setdiff1d(np.arange(len(rows)), held_out)
    corrupted, noisy = _corrupt(labels[kept], dataset.num_classes, options.noise, label_seed)
    return LabelChoice(
        rows=rows[kept],
        labels=noisy,
        corrupted=rows[kept][corrupted],
        validation=rows[held_out],
        validation_labels=labels[held_out],
    )


def _chosen(dataset: Dataset, options: LabelsConfig, seed: int) -> tuple[Rows, Labels]:
    known = dataset.train_labels
    if options.choice == "file":
        drawn = NO_ROWS
    elif options.count is None:
        drawn = np.flatnonzero(known != UNLABELED)
    else:
        draw = original_rows if options.choice == "original" else balanced_rows
        main = known[: dataset.num_main]  # the rows that a seed draws must not depend on the extra ones
        drawn = draw(main, dataset.classes, options.count, seed)
    labels = np.full(dataset.num_train, UNLABELED)
    labels[drawn] = known[drawn]
    if options.file is not None:
        given = read_several(map(Path, options.file), dataset)
        if all(labels[row] == label == UNLABELED for row, label in given.items()):
            raise DataError(f"the labels file {listed(options.file)} has no labels; fill in the column 'label'.")
        labels[list(given)] = list(given.values())
    rows = np.flatnonzero(labels != UNLABELED)
    return rows, labels[rows]


def balanced_rows(labels: Labels, classes: tuple[str, ...], count: int, seed: int) -> Rows:
    """Draw `count` labeled rows, equally many per class; a remainder goes to random classes, one each."""
    random = np.random.default_rng(seed)
    wanted = np.full(len(classes), count // len(classes))
    wanted[random.permutation(len(classes))[: count % len(classes)]] += 1
    _check_enough(labels, classes, wanted, count)
    picked = [random.choice(np.flatnonzero(labels == k), size, replace=False) for k, size in enumerate(wanted)]
    return np.sort(np.concatenate(picked))


def original_rows(labels: Labels, classes: tuple[str, ...], count: int, seed: int) -> Rows:
    """Draw the rows that the authors' code would label: two legacy shuffles composed, then the first k of each class.

    With the official CIFAR files, a seed gives the authors' own label set. As in their code, the remainder of count / classes
    is not used.
    """
    random = np.random.RandomState(seed)  # noqa: NPY002  the authors' generator
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
        raise DataError(
            f"labels.count is {count} and there are {len(classes)} classes; ask for at least one label per class."
        )
    have = np.bincount(labels[labels != UNLABELED], minlength=len(classes))
    short = np.flatnonzero(have < wanted)
    if len(short):
        number = int(short[0])
        raise DataError(
            f"{count} labels were asked for, {wanted[number]} of them of class '{classes[number]}', which has only "
            f"{have[number]}; ask for at most {int(have.min()) * len(classes)}, or for all."
        )


def _held_out(labels: Labels, fraction: float, seed: int) -> Rows:
    """Choose the positions of validation rows: `fraction` of each class, leaving at least one of each for training."""
    random = stream(seed, HELD_OUT)
    picked = []
    for number in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == number))
        picked.append(members[: min(round(fraction * len(members)), len(members) - 1)])
    held_out = np.sort(np.concatenate(picked))
    if fraction and not len(held_out):
        found = f"{fraction}, which holds out none of the {len(labels)} labeled rows"
        raise DataError(f"labels.validation is {found}; use a larger fraction.")
    return held_out


def _corrupt(labels: Labels, num_classes: int, percentage: float, seed: int) -> tuple[Rows, Labels]:
    """Redraw this percentage of the labels uniformly over all classes, as in the paper's last experiment."""
    count = int(0.01 * len(labels) * percentage)
    random = stream(seed, CORRUPTION)
    positions = np.sort(random.permutation(len(labels))[:count])
    noisy = labels.copy()
    noisy[positions] = random.integers(num_classes, size=count)
    return positions, noisy
