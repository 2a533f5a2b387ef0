"""Which rows are labelled: drawn per class, drawn as the authors' code does, or read from a file; and corrupted on request.

The choice is a function of the data set's labels, the options and a seed, and is written into the run as `labels.json`.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.config import DataConfig
from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.errors import DataError
from selfens.randomness import CORRUPTION, HELD_OUT, stream

Rows = NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelChoice:
    """The labelled rows in use, the labels they are trained with, and what was done to them."""

    rows: Rows
    labels: Labels
    """One per row of `rows`, corrupted ones included."""
    corrupted: Rows = field(default_factory=lambda: NO_ROWS)
    """Rows whose label was redrawn; by chance it may have stayed the same."""
    validation: Rows = field(default_factory=lambda: NO_ROWS)
    """Labelled rows held out of training."""
    validation_labels: Labels = field(default_factory=lambda: NO_ROWS)

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name).tolist() for name in self.__dataclass_fields__}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> LabelChoice:
        raw = json.loads(text)
        return cls(**{name: np.array(raw[name], dtype=np.int64) for name in cls.__dataclass_fields__})

    def check(self, *, num_rows: int, num_classes: int) -> None:
        """Raise ValueError where this cannot be a choice of labels for so many rows and classes."""
        for rows, labels in ((self.rows, self.labels), (self.validation, self.validation_labels)):
            if len(rows) != len(labels):
                raise ValueError("as many labels as rows")
            if len(rows) and not (rows.min() >= 0 and rows.max() < num_rows):
                raise ValueError("rows of the training set")
            if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
                raise ValueError("labels among the classes")

    def training_labels(self, num_rows: int) -> Labels:
        """A label for every training row, -1 where it is not known or not used."""
        labels = np.full(num_rows, UNLABELED, dtype=np.int64)
        labels[self.rows] = self.labels
        return labels

    def known_labels(self, num_rows: int) -> Labels:
        """The same with the labels of the rows held out."""
        labels = self.training_labels(num_rows)
        labels[self.validation] = self.validation_labels
        return labels


def choose_labels(dataset: Dataset, options: DataConfig, *, label_seed: int, split_seed: int) -> LabelChoice:
    """The labelled rows that `options` ask for."""
    rows, labels = _chosen(dataset, options, label_seed) if dataset.num_classes else (NO_ROWS, NO_ROWS)
    if len(rows) == 0:
        raise DataError(
            f"no row of {dataset.name} is labelled; give at least one labelled row per class "
            "(a label is a class; -1, None or an empty string mean unknown)."
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
    if options.label_choice == "file":
        assert options.labels_file is not None
        return read_labels_file(Path(options.labels_file), dataset)
    main = dataset.labels[: dataset.main_rows]  # extra rows must not change which of these a seed draws
    if options.labels is None:
        rows = np.flatnonzero(dataset.labels != UNLABELED)
    elif options.label_choice == "original":
        rows = original_rows(main, dataset.classes, options.labels, seed)
    else:
        rows = balanced_rows(main, dataset.classes, options.labels, seed)
    return rows, dataset.labels[rows]


def balanced_rows(labels: Labels, classes: tuple[str, ...], count: int, seed: int) -> Rows:
    """`count` labelled rows, equally many per class; a remainder goes to classes drawn at random, one each."""
    if count < len(classes):
        raise DataError(
            f"{count} labels were asked for and there are {len(classes)} classes; ask for at least one each."
        )
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

    With the official CIFAR files, in their order, a seed gives the authors' own label set. A remainder of count / classes
    is left out, as there.
    """
    if count < len(classes):
        raise DataError(
            f"{count} labels were asked for and there are {len(classes)} classes; ask for at least one each."
        )
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
    have = np.bincount(labels[labels != UNLABELED], minlength=len(classes))
    short = np.flatnonzero(have < wanted)
    if len(short):
        number = int(short[0])
        raise DataError(
            f"{count} labels were asked for, {wanted[number]} of them of class '{classes[number]}', which has only "
            f"{have[number]}; ask for at most {int(have.min()) * len(classes)}."
        )


def _check_every_class(dataset: Dataset, labels: Labels) -> None:
    counts = np.bincount(labels, minlength=dataset.num_classes)
    if dataset.num_classes < 2:
        raise DataError(f"the labels name one class only ('{dataset.classes[0]}'); expected at least two.")
    if (counts == 0).any():
        empty = dataset.classes[int(counts.argmin())]
        raise DataError(f"class '{empty}' has no labelled row; label at least one, or leave the class out.")


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
            f"a validation fraction of {fraction} of {len(labels)} labelled rows leaves none to validate on; "
            "use more labels or a larger fraction."
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


def read_labels_file(path: Path, dataset: Dataset) -> tuple[Rows, Labels]:
    """Rows and their labels from a file: a JSON list of rows, a run's labels.json, or lines of `row` or `row,label`.

    A row without a label of its own takes the data set's.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the labels file {path} cannot be read ({error}).") from None
    pairs = _json_pairs(text, path) if text.lstrip()[:1] in ("[", "{") else _csv_pairs(text, path, dataset)
    if not pairs:
        raise DataError(f"the labels file {path} names no labelled rows; expected lines of row,label.")
    seen: dict[int, int] = {}
    for row, label in pairs:
        if not 0 <= row < dataset.num_rows:
            raise DataError(f"{path} names row {row}; the training set has rows 0 to {dataset.num_rows - 1}.")
        if row in seen:
            raise DataError(f"{path} names row {row} twice; each row has one label.")
        seen[row] = int(dataset.labels[row]) if label is None else _class_number(label, dataset, path)
        if seen[row] == UNLABELED:
            raise DataError(
                f"{path} names row {row} without a label, and the data set has none for it; write row,label."
            )
    rows = np.array(sorted(seen), dtype=np.int64)
    return rows, np.array([seen[int(row)] for row in rows], dtype=np.int64)


def _json_pairs(text: str, path: Path) -> list[tuple[int, Any]]:
    try:
        raw = json.loads(text)
        if isinstance(raw, dict):
            return list(zip([_whole(row) for row in raw["rows"]], raw["labels"], strict=True))
        return [(_whole(row), None) for row in raw]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a list of rows nor a run's labels.json ({error!r}).") from None


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _csv_pairs(text: str, path: Path, dataset: Dataset) -> list[tuple[int, Any]]:
    """Lines of `row` or `row,label`; a line whose label is left empty is passed over.

    With a header that names a column `file`, as an audit of a folder has, a row is found by its file: row numbers shift when
    files are added.
    """
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV of row,label ({error}).") from None
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    row_of = {name: row for row, name in enumerate(dataset.row_names)} if "file" in header else {}
    pairs: list[tuple[int, Any]] = []
    for number, cells in enumerate(lines, start=1):
        if not cells or (number == 1 and "row" in header):
            continue
        if len(cells) > 1 and not cells[1].strip():
            continue
        if row_of:
            pairs.append((_row_of_file(cells, header, row_of, number, path), cells[1].strip()))
            continue
        try:
            pairs.append((int(cells[0]), cells[1].strip() if len(cells) > 1 else None))
        except ValueError:
            raise DataError(f"line {number} of {path} begins with '{cells[0]}'; expected a row number.") from None
    return pairs


def _row_of_file(cells: list[str], header: list[str], row_of: dict[str, int], number: int, path: Path) -> int:
    name = cells[header.index("file")] if header.index("file") < len(cells) else ""
    if name not in row_of:
        raise DataError(f"line {number} of {path} names the file '{name}', which is not among the training images.")
    return row_of[name]


def _class_number(label: Any, dataset: Dataset, path: Path) -> int:
    """A class given by its name or, where no class has that name, by its number."""
    if str(label) in dataset.classes:
        return dataset.classes.index(str(label))
    digits = str(label).strip()
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else UNLABELED
    if not 0 <= number < dataset.num_classes:
        raise DataError(f"{path} gives the label '{label}'; expected one of {', '.join(dataset.classes[:12])}.")
    return number
