"""Labels files: a JSON list of rows, a run's labels.json, or lines of `row` or `row,label`.

Under a header, a CSV may have more columns in any order, and `file` instead of `row` if the data are files: an audit that was
corrected, suggestions that were filled in.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.folder import csv_reader, is_csv
from selfens.errors import DataError

Pairs = list[tuple[int, Any]]
"""Rows and their labels: None if the data set's own is meant, "" if the row has none."""


def named_rows(path: Path, dataset: Dataset) -> dict[int, int]:
    """The label of each row that a labels file names, UNLABELED if it is left empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")  # names of files need not be UTF-8
    except OSError as error:
        raise DataError(f"the labels file {path} cannot be read ({error}).") from None
    if "\0" in text:
        raise DataError(f"the labels file {path} cannot be read: it is not text in UTF-8.")
    pairs = _json_pairs(text, path) if text.lstrip()[:1] in ("[", "{") else _csv_pairs(text, path, dataset)
    named: dict[int, int] = {}
    for row, label in pairs:
        if not 0 <= row < dataset.num_rows:
            raise DataError(f"{path} names row {row}; the training set has rows 0 to {dataset.num_rows - 1}.")
        if row in named:
            raise DataError(f"{path} names row {row} twice; each row has one label.")
        named[row] = _class_number(label, row, dataset, path)
    return named


def _class_number(label: Any, row: int, dataset: Dataset, path: Path) -> int:
    """A class by its name or, if no class has that name, by its number."""
    if label == "":
        return UNLABELED
    if label is None and dataset.labels[row] == UNLABELED:
        raise DataError(f"{path} names row {row} without a label, and the data set has none for it; write row,label.")
    if label is None:
        return int(dataset.labels[row])
    if str(label) in dataset.classes:
        return dataset.classes.index(str(label))
    text = str(label).strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else UNLABELED
    if not 0 <= number < dataset.num_classes:
        raise DataError(f"{path} gives the label '{label}'; expected one of {', '.join(dataset.classes[:12])}.")
    return number


def _json_pairs(text: str, path: Path) -> Pairs:
    try:
        raw = json.loads(text)
        rows, labels = (raw["rows"], raw["labels"]) if isinstance(raw, dict) else (raw, [None] * len(raw))
        if not all(type(row) is int for row in rows):
            raise ValueError("a row is not a whole number")
        return list(zip(rows, labels, strict=True))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not a list of rows nor a run's labels.json ({error!r}).") from None


def _csv_pairs(text: str, path: Path, dataset: Dataset) -> Pairs:
    """Rows are found by their files if there is such a column: row numbers shift when files are added."""
    try:
        lines = [
            (number, cells) for number, cells in enumerate(csv_reader(text), start=1) if any(map(str.strip, cells))
        ]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV of row,label ({error}).") from None
    names = [name.strip().lower() for name in lines[0][1]] if lines else []
    has_header = not {"row", "file"}.isdisjoint(names) and not names[0].isdigit()
    names, lines = (names, lines[1:]) if has_header else (["row", "label"], lines)
    by_file = "file" in names and len(dataset.row_names) > 0
    _check_header(names, by_file, path)
    files = _Files(dataset) if by_file else None
    pairs: Pairs = []
    for number, cells in lines:
        line = dict(zip(names, map(str.strip, cells), strict=False))
        if files is None:
            pairs.append((_row_number(line.get("row", ""), number, path), line.get("label")))
        elif line.get("label") != "" or line.get("file", "") in files:  # an unlabeled file may be gone
            pairs.append((files.row(line.get("file", ""), number, path), line.get("label")))
    return pairs


def _check_header(names: list[str], by_file: bool, path: Path) -> None:
    if not by_file and "row" not in names:
        raise DataError(f"{path} names a column file, but these data have no files; name their rows, in a column row.")
    if "label" not in names and len(names) > 1:
        raise DataError(f"{path} names the columns {', '.join(names)}; expected one of them to be label.")


def _row_number(text: str, line: int, path: Path) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(f"line {line} of {path} begins with '{text[:80]}'; expected a row number.") from None


class _Files:
    """The rows of a data set by their files, named by whole paths or relative to the data's folder."""

    def __init__(self, dataset: Dataset) -> None:
        self.folder = Path(dataset.name).parent if is_csv(dataset.name) else Path(dataset.name)
        self.rows = {os.path.abspath(name): row for row, name in enumerate(dataset.row_names)}
        self.test = {os.path.abspath(name) for name in dataset.test_row_names}

    def _paths(self, name: str) -> set[str]:
        return {os.path.abspath(name), os.path.abspath(self.folder / name)}

    def __contains__(self, name: str) -> bool:
        return not self._paths(name).isdisjoint(self.rows)

    def row(self, name: str, line: int, path: Path) -> int:
        for known in self._paths(name):
            if known in self.rows:
                return self.rows[known]
        if not self._paths(name).isdisjoint(self.test):
            raise DataError(
                f"line {line} of {path} names the file '{name}', which is a test image here; delete the line, or, if test "
                "images are drawn, draw the same as in the run that the line comes from (config field seed.split)."
            )
        raise DataError(
            f"line {line} of {path} names the file '{name}', which is not among the training images; expected a whole path, or "
            f"one relative to {self.folder}."
        )
