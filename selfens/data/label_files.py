"""Labels files: lines of `row` or `row,label`; or, under a header, a CSV with `row` or `file` and `label` among its columns.

So a corrected audit and filled-in suggestions are labels files.
"""

from __future__ import annotations

import os
from pathlib import Path

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.sources.images import is_csv, read_cells
from selfens.errors import DataError, listed


def read_labels(path: Path, dataset: Dataset) -> dict[int, int]:
    """Return the label of each training row that a labels file names, UNLABELED if its cell is empty.

    Rows are found by their files if the file has such a column: row numbers shift when files are added.
    """
    lines = read_cells(path, "row,label")
    header = [name.lower() for name in lines[0]] if lines else []
    has_header = "row" in header or "file" in header
    names, lines = (header, lines[1:]) if has_header else (["row", "label"], lines)
    if len(names) > 1 and "label" not in names:
        raise DataError(f"{path} has the columns {', '.join(names)}; expected one of them to be label.")
    by_file: dict[str, int] | None = None
    if "file" in names and dataset.ids and dataset.id_header == "file":
        by_file = {os.path.abspath(name): row for row, name in enumerate(dataset.row_ids())}
    elif "row" not in names:
        raise DataError(f"{path} has a column file, but these data have no files; name their rows, in a column row.")
    row_of = {int(number): row for row, number in enumerate(dataset.row_numbers())}
    numbers = {str(number): number for number in range(dataset.num_classes)}
    known = numbers | {name: number for number, name in enumerate(dataset.classes)} | {"": UNLABELED}
    found: dict[int, int] = {}
    for cells in lines:
        line = dict(zip(names, cells, strict=False))
        if by_file is None:
            number = _number(line.get("row", ""), path)
            if number not in row_of:
                raise DataError(f"{path} names row {number}; {_training_rows(dataset)}.")
            row = row_of[number]
        else:
            by_name = _row_of_file(line, by_file, dataset, path)
            if by_name is None:
                continue
            row = number = by_name
        if row in found:
            raise DataError(f"{path} names row {number} twice; each row has one label.")
        found[row] = _class_number(line.get("label"), row, dataset, known, path)
    return found


def _training_rows(dataset: Dataset) -> str:
    if dataset.numbers is None:
        return f"the training set has rows 0 to {dataset.num_train - 1}"
    return f"{dataset.name} has no such row, or has it for testing"


def _class_number(label: str | None, row: int, dataset: Dataset, known: dict[str, int], path: Path) -> int:
    """Return the class of a label, UNLABELED if it is empty; if there is none, the data set's own."""
    if label is None and dataset.train_labels[row] == UNLABELED:
        number = dataset.row_numbers()[row]
        raise DataError(
            f"{path} names row {number} without a label, and the data set has none for it; write row,label."
        )
    if label is None:
        return int(dataset.train_labels[row])
    if label not in known:
        raise DataError(f"{path} gives the label '{label}'; expected one of {listed(dataset.classes, 12)}.")
    return known[label]


def _number(text: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise DataError(f"{path} names '{text[:80]}'; expected a row number.")
    return int(text)


def _row_of_file(line: dict[str, str], rows: dict[str, int], dataset: Dataset, path: Path) -> int | None:
    """Return the row of a file, given by its full path or relative to the data's folder; None if unlabeled and gone."""
    name = line.get("file", "")
    folder = Path(dataset.name).parent if is_csv(dataset.name) else Path(dataset.name)
    for known in (os.path.abspath(name), os.path.abspath(folder / name)):
        if known in rows:
            return rows[known]
    if line.get("label") == "":
        return None
    raise DataError(
        f"{path} names the file '{name}', which is not among the training images; expected a full path, or one relative to "
        f"{folder}. (Which images are for testing depends on the config field seed.split.)"
    )
