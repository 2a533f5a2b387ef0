"""Labels files: lines of `row` or `row,label`; or, under a header, a CSV with `row` or `file` and `label` among its columns.

So an audit that was corrected and suggestions that were filled in are labels files.
"""

from __future__ import annotations

import os
from pathlib import Path

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.folder import is_csv, read_table
from selfens.errors import DataError


def named_rows(path: Path, dataset: Dataset) -> dict[int, int]:
    """The label of each row that a labels file names, UNLABELED if it is left empty.

    Rows are found by their files if there is such a column: row numbers shift when files are added.
    """
    lines = read_table(path, "row,label")
    header = [name.lower() for name in lines[0]] if lines else []
    has_header = "row" in header or "file" in header
    names, lines = (header, lines[1:]) if has_header else (["row", "label"], lines)
    if len(names) > 1 and "label" not in names:
        raise DataError(f"{path} has the columns {', '.join(names)}; expected one of them to be label.")
    files, rows = None, f"the training set has rows 0 to {dataset.num_rows - 1}"
    if dataset.row_numbers is not None:
        places = {int(number): row for row, number in enumerate(dataset.row_numbers)}
        rows = f"{dataset.name} has no such row, or has it for testing"
    elif "file" in names and dataset.row_names:
        files = {os.path.abspath(name): row for row, name in enumerate(dataset.row_names)}
    if files is None and "row" not in names:
        raise DataError(f"{path} has a column file, but these data have no files; name their rows, in a column row.")
    numbers = {str(number): number for number in range(dataset.num_classes)}
    known = numbers | {name: number for number, name in enumerate(dataset.classes)} | {"": UNLABELED}
    named: dict[int, int] = {}
    for cells in lines:
        line = dict(zip(names, cells, strict=False))
        row = _row(line.get("row", ""), path) if files is None else _row_of_file(line, files, dataset, path)
        if row is None:
            continue
        number, row = row, row if dataset.row_numbers is None else places.get(row, -1)
        if not 0 <= row < dataset.num_rows:
            raise DataError(f"{path} names row {number}; {rows}.")
        if row in named:
            raise DataError(f"{path} names row {number} twice; each row has one label.")
        named[row] = _class_number(line.get("label"), row, dataset, known, path)
    return named


def _class_number(label: str | None, row: int, dataset: Dataset, known: dict[str, int], path: Path) -> int:
    """The class of a label, empty if there is none; without a label, that of the data set."""
    if label is None and dataset.labels[row] == UNLABELED:
        raise DataError(f"{path} names row {row} without a label, and the data set has none for it; write row,label.")
    if label is None:
        return int(dataset.labels[row])
    if label not in known:
        raise DataError(f"{path} gives the label '{label}'; expected one of {', '.join(dataset.classes[:12])}.")
    return known[label]


def _row(text: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise DataError(f"{path} names '{text[:80]}'; expected a row number.")
    return int(text)


def _row_of_file(line: dict[str, str], rows: dict[str, int], dataset: Dataset, path: Path) -> int | None:
    """The row of a file named by its whole path or relative to the data's folder; None for one without a label that is gone."""
    name = line.get("file", "")
    folder = Path(dataset.name).parent if is_csv(dataset.name) else Path(dataset.name)
    for known in (os.path.abspath(name), os.path.abspath(folder / name)):
        if known in rows:
            return rows[known]
    if line.get("label") == "":
        return None
    raise DataError(
        f"{path} names the file '{name}', which is not among the training images; expected a whole path, or one relative to "
        f"{folder}. (Which images are for testing depends on the config field seed.split.)"
    )
