"""Labels files: lines of `row` or `row,label`; or, under a header, a CSV with `row` or `file` and `label` among its columns.

So a corrected audit and filled-in suggestions are labels files.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.sources.images import read_cells
from selfens.errors import DataError, listed


def read_labels(path: Path, dataset: Dataset) -> dict[int, int]:
    """Return the label of each training row that a labels file names, UNLABELED if its cell is empty.

    Rows are found by their files if the file has such a column: row numbers shift when files are added. A file that is
    not a training image is passed over if it has no label.
    """
    lines, names = read_cells(path, "row,label"), ["row", "label"]
    if lines and {"row", "file"} & set(header := [name.lower() for name in lines[0][1]]):
        names, lines = header, lines[1:]
    if len(names) > 1 and "label" not in names:
        raise DataError(f"{path} has the columns {', '.join(names)}; expected one of them to be label.")
    (by, find), class_of = row_finder(names, dataset, path), class_finder(dataset)
    found: dict[int, int] = {}
    for number, cells in lines:
        line, where = dict(zip(names, cells, strict=False)), f"line {number} of {path}"
        key, label = line.get(by, ""), line.get("label")
        row, expected = find(key)
        if row is None and by == "file" and label == "":
            continue
        if row is None:
            raise DataError(f"{where} names '{key[:200]}'; expected {expected}.")
        if row in found:
            raise DataError(f"{where} names '{key}' twice; each row has one label.")
        known = int(dataset.train_labels[row]) if label is None else class_of(label)
        if known is None:
            raise DataError(f"{where} gives the label '{label}'; expected one of {listed(dataset.classes, 12)}.")
        if label is None and known == UNLABELED:
            raise DataError(
                f"{where} names '{key}' without a label, and the data set has none for it; write row,label."
            )
        found[row] = known
    return found


Found = tuple[int | None, str]
"""A row, if there is one, and what was expected."""


def row_finder(names: Sequence[str], dataset: Dataset, path: Path) -> tuple[str, Callable[[str], Found]]:
    """Return which of a file's columns tells the rows, `names` being these in lower case, and a function that finds a row."""
    header = dataset.id_header.lower()
    if header in names and dataset.ids:
        return header, _finder(dataset, path) if header == "file" else _ids(dataset)
    if "row" not in names:
        found = "a column file, but these data have no files" if "file" in names else "no column row"
        raise DataError(f"{path} has {found}; name their rows, in a column row.")
    return "row", _numbers(dataset)


def _ids(dataset: Dataset) -> Callable[[str], Found]:
    row_of = {name: row for row, name in enumerate(dataset.row_ids())}
    return lambda key: (row_of.get(key), f"an id of a training row, as in the column {dataset.id_header}")


def _numbers(dataset: Dataset) -> Callable[[str], Found]:
    row_of = {str(number): row for row, number in enumerate(dataset.row_numbers().tolist())}
    last = f", 0 to {dataset.num_train - 1}" if dataset.numbers is None else ""
    return lambda key: (row_of.get(key.lstrip("0") or key[:1]), f"the number of a training row{last}")


def _finder(dataset: Dataset, path: Path) -> Callable[[str], Found]:
    """Find a file by its path: full, or relative to here, to the data, or to the labels file; or by its name alone."""
    row_of = {os.path.abspath(name): row for row, name in enumerate(dataset.row_ids())}
    rows_called: dict[str, list[int]] = {}
    for name, row in row_of.items():
        rows_called.setdefault(os.path.basename(name), []).append(row)

    def find(key: str) -> Found:
        places = [os.path.abspath(folder / key) for folder in (Path(), Path(dataset.folder), path.parent)]
        row = next((row_of[place] for place in places if place in row_of), None)
        called = rows_called.get(key, [])
        if row is None and len(called) == 1:
            return called[0], ""
        if len(called) > 1:
            return row, f"more of its path, because {len(called)} training files have this name"
        where = f", full or relative to {dataset.folder}" if dataset.folder else ""
        return row, f"the path of a training file{where} (test rows get no labels)"

    return find


def class_finder(dataset: Dataset) -> Callable[[str], int | None]:
    """Find a class by its name, in any case if that is clear; by its number only if no class is called a number."""
    exact = {name: number for number, name in enumerate(dataset.classes)} | {"": UNLABELED}
    folded: dict[str, set[int]] = {}
    for number, name in enumerate(dataset.classes):
        folded.setdefault(name.casefold(), set()).add(number)
    numbered = (
        {} if any(map(_is_number, dataset.classes)) else {str(number): number for number in range(dataset.num_classes)}
    )

    def find(label: str) -> int | None:
        alike = folded.get(label.casefold(), set())
        return exact.get(label, min(alike) if len(alike) == 1 else numbered.get(label))

    return find


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
