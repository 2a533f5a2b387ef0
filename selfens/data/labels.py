"""Which rows are labelled: drawn per class, drawn as the authors' code does, or read from a file; and corrupted on request.

The choice is a function of the data set's labels, the options and a seed, and is written into the run as `labels.json`.
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.config import DataConfig
from selfens.core.randomness import CORRUPTION, HELD_OUT, stream
from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.listing import is_csv, separator
from selfens.errors import DataError

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
    if options.labels_file is None:
        return _drawn(dataset, options, seed)
    path = Path(options.labels_file)
    if options.label_choice == "file":
        return read_labels_file(path, dataset)
    every = np.full(dataset.num_rows, UNLABELED, dtype=np.int64)
    chosen, drawn = _drawn(dataset, options, seed)
    every[chosen] = drawn
    for row, label in _named_rows(path, dataset).items():
        every[row] = label
    known = np.flatnonzero(every != UNLABELED)
    return known, every[known]


def _drawn(dataset: Dataset, options: DataConfig, seed: int) -> tuple[Rows, Labels]:
    main = dataset.labels[: dataset.main_rows]  # extra rows must not change which of these a seed draws
    if options.labels is None:
        rows = np.flatnonzero(dataset.labels != UNLABELED)
    elif options.label_choice == "original":
        rows = original_rows(main, dataset.classes, options.labels, seed)
    else:
        rows = balanced_rows(main, dataset.classes, options.labels, seed)
    return rows, dataset.labels[rows]


def unnamed_labels(dataset: Dataset, path: Path) -> int:
    """How many labels of a partly labelled data set a labels file does not name; those of a full one are hidden on purpose."""
    known = dataset.labels[: dataset.main_rows] != UNLABELED
    named = np.zeros(dataset.num_rows, dtype=bool)
    named[list(_named_rows(path, dataset))] = True
    return 0 if known.all() else int((known & ~named[: dataset.main_rows]).sum())


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
    """Rows and their labels from a file: a JSON list of rows, a run's labels.json, or lines of `row`, `row,label`
    or, under a header, of more columns, with `file` in place of `row` where rows have files.

    A row without a label of its own takes the data set's; one whose label is left empty has none.
    """
    seen = {row: label for row, label in _named_rows(path, dataset).items() if label != UNLABELED}
    if not seen:
        raise DataError(f"the labels file {path} names no labelled rows; expected lines of row,label.")
    rows = np.array(sorted(seen), dtype=np.int64)
    return rows, np.array([seen[int(row)] for row in rows], dtype=np.int64)


def _named_rows(path: Path, dataset: Dataset) -> dict[int, int]:
    """The label of each row that a labels file names, UNLABELED where it is left empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")  # names of files need not be UTF-8
    except OSError as error:
        raise DataError(f"the labels file {path} cannot be read ({error}).") from None
    if "\0" in text:
        raise DataError(f"the labels file {path} cannot be read: it is not text in UTF-8.")
    pairs = _json_pairs(text, path) if text.lstrip()[:1] in ("[", "{") else _csv_pairs(text, path, dataset)
    seen: dict[int, int] = {}
    for row, label in pairs:
        if not 0 <= row < dataset.num_rows:
            raise DataError(f"{path} names row {row}; the training set has rows 0 to {dataset.num_rows - 1}.")
        if label == "":
            seen.setdefault(row, UNLABELED)
            continue
        if seen.get(row, UNLABELED) != UNLABELED:
            raise DataError(f"{path} names row {row} twice; each row has one label.")
        seen[row] = int(dataset.labels[row]) if label is None else _class_number(label, dataset, path)
        if seen[row] == UNLABELED:
            raise DataError(
                f"{path} names row {row} without a label, and the data set has none for it; write row,label."
            )
    return seen


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


@dataclass(frozen=True)
class _Columns:
    """Where a line of a CSV has its row, or its file, and the label."""

    row: int = 0
    label: int | None = 1
    by_file: bool = False


@dataclass(frozen=True)
class _Line:
    number: int
    row: str
    label: str | None
    by_file: bool


def _csv_pairs(text: str, path: Path, dataset: Dataset) -> list[tuple[int, Any]]:
    """Rows and labels of the lines.

    A row is found by its file where a column has that: row numbers shift when files are added.
    """
    lines = _csv_lines(text, path, has_files=len(dataset.row_names) > 0)
    files = _Files(dataset, [line.row for line in lines if line.by_file])
    lines = [line for line in lines if line.label != "" or not line.by_file or files.has(line)]  # filed elsewhere since
    return [(files.row_of(line, path) if line.by_file else _number(line, path), line.label) for line in lines]


def _csv_lines(text: str, path: Path, has_files: bool) -> list[_Line]:
    """The lines that say something. A header holds until the next one, so files of different columns can be joined."""
    found, columns = [], _Columns()
    try:
        lines = text.splitlines()
        for number, cells in enumerate(csv.reader(lines, delimiter=separator(lines)), start=1):
            names = [cell.strip("\ufeff \t").lower() for cell in cells]
            if _is_header(names, first=number == 1):
                columns = _columns(names, f"line {number} of {path}", has_files)
            elif any(names):
                label = (
                    cells[columns.label].strip() if columns.label is not None and columns.label < len(cells) else None
                )
                row = cells[columns.row].strip() if columns.row < len(cells) else ""
                found.append(_Line(number, row, label, columns.by_file))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV of row,label ({error}).") from None
    return found


def _is_header(names: list[str], *, first: bool) -> bool:
    return not {"row", "file"}.isdisjoint(names) and ("label" in names or (first and not names[0].isdigit()))


def _columns(names: list[str], where: str, has_files: bool) -> _Columns:
    by_file = "file" in names and has_files
    if not by_file and "row" not in names:
        raise DataError(f"{where} names a column file, but these data have no files; name their rows, in a column row.")
    if "label" not in names and len(names) > 1:
        raise DataError(f"{where} names the columns {', '.join(names)}; expected one of them to be label.")
    label = names.index("label") if "label" in names else None
    return _Columns(names.index("file" if by_file else "row"), label, by_file)


def _number(line: _Line, path: Path) -> int:
    try:
        return int(line.row)
    except ValueError:
        raise DataError(f"line {line.number} of {path} begins with '{line.row}'; expected a row number.") from None


class _Files:
    """The rows of a data set by their files: by the whole path, or by that below the data's folder if it was moved since."""

    def __init__(self, dataset: Dataset, given: list[str]) -> None:
        self.folder = os.path.join(Path(dataset.name).parent if is_csv(dataset.name) else dataset.name, "")
        self.rows = {self._below(name): row for row, name in enumerate(dataset.row_names)} if given else {}
        self.tested = {self._below(name) for name in dataset.test_row_names}
        self.old_folder = self._old_folder([os.path.normpath(name) for name in given])

    def has(self, line: _Line) -> bool:
        return any(name in self.rows for name in self._names(line))

    def row_of(self, line: _Line, path: Path) -> int:
        for known in self._names(line):
            if known in self.rows:
                return self.rows[known]
            if known in self.tested:
                raise DataError(
                    f"line {line.number} of {path} names the file '{line.row}', which is a test image here; delete the line, "
                    "or, where test images are drawn, draw the same as the run that the line comes from (its --seed)."
                )
        raise DataError(
            f"line {line.number} of {path} names the file '{line.row}', which is not among the training images."
        )

    def _names(self, line: _Line) -> tuple[str, str]:
        """The file of a line as it may be called here."""
        name = os.path.normpath(line.row)
        return self._below(name), name.removeprefix(self.old_folder)

    def _below(self, name: str) -> str:
        return os.path.normpath(name).removeprefix(self.folder)

    def _old_folder(self, names: list[str]) -> str:
        """What the most names lie below like ours below our folder; that of the most levels, where several do."""
        parents = {os.path.join(parent, "") for name in names[:1] for parent in Path(name).parents}
        ours = self.rows.keys() | self.tested
        return max(["", *sorted(parents, key=len)], key=lambda old: sum(_rest(name, old) in ours for name in names))


def _rest(name: str, folder: str) -> str | None:
    return name[len(folder) :] if name.startswith(folder) else None


def _class_number(label: Any, dataset: Dataset, path: Path) -> int:
    """A class given by its name or, where no class has that name, by its number."""
    if str(label) in dataset.classes:
        return dataset.classes.index(str(label))
    digits = str(label).strip()
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else UNLABELED
    if not 0 <= number < dataset.num_classes:
        raise DataError(f"{path} gives the label '{label}'; expected one of {', '.join(dataset.classes[:12])}.")
    return number
