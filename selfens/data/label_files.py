"""Labels files: lines of `row` or `row,label`; or, under a header, a CSV with `row` or `file` and `label` among its columns;
or what another tool wrote (`selfens.data.interchange`).

So a corrected audit and filled-in suggestions are labels files.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.folders import folded
from selfens.data.interchange import find_rows, is_foreign, read_foreign
from selfens.data.sources.images import read_cells
from selfens.errors import DataError, listed


class _Given(NamedTuple):
    label: int
    key: str
    where: str


def read_labels(path: Path, dataset: Dataset) -> dict[int, int]:
    """Return the label of each training row that a labels file names, UNLABELED if its cell is empty."""
    return read_several([path], dataset)


def read_several(paths: Iterable[Path], dataset: Dataset) -> dict[int, int]:
    """Return what `read_labels` finds in several files, which may not contradict each other."""
    found: dict[int, _Given] = {}
    for path in paths:
        for row, given in _read(path, dataset).items():
            before = found.setdefault(row, given)
            if before.label != given.label:
                labels = [
                    "no label" if each.label == UNLABELED else f"the label '{dataset.classes[each.label]}'"
                    for each in (given, before)
                ]
                both = f"gives '{given.key}' {labels[0]}, and {before.where} {labels[1]}"
                raise DataError(f"{given.where} {both}; each row has one.")
    return {row: given.label for row, given in found.items()}


def _read(path: Path, dataset: Dataset) -> dict[int, _Given]:
    """Read one file.

    Rows are found by their files if the file has such a column: row numbers shift when files are added. A file that is
    not a training image is passed over if it has no label. Exports of other tools are read, too (`selfens.data.interchange`).
    """
    if is_foreign(path):
        return _read_foreign(path, dataset)
    lines, names = read_cells(path, "row,label"), ["row", "label"]
    has_header = bool(lines) and bool({"row", "file"} & set(header := [name.lower() for name in lines[0][1]]))
    if has_header:
        names, lines = header, lines[1:]
    if len(names) > 1 and "label" not in names:
        raise DataError(f"{path} has the columns {', '.join(names)}; expected one of them to be label.")
    names_files = bool(dataset.ids) and dataset.id_header == "file"
    (by, find), class_of = row_finder(names, dataset, path), class_finder(dataset)
    found: dict[int, _Given] = {}
    for number, cells in lines:
        line, where = dict(zip(names, cells, strict=False)), f"line {number} of {path}"
        key, label = line.get(by, ""), line.get("label")
        row, expected = find(key)
        if row is None and by == "file" and label == "":
            continue
        if row is None and not (has_header or found):
            expected += f", or a line {'file,label' if names_files else 'row,label'} before all others"
        if row is None:
            raise DataError(f"{where} names '{key[:200]}'; expected {expected}.")
        if row in found:
            first = found[row].where.partition(" of ")[0]
            raise DataError(f"{where} names '{key}' twice, first in {first}; each row has one label.")
        known = int(dataset.train_labels[row]) if label is None else class_of(label)
        if known is None:
            raise DataError(f"{where} gives the label '{label}'; expected one of {listed(dataset.classes, 12)}.")
        if label is None and known == UNLABELED:
            raise DataError(
                f"{where} names '{key}' without a label, and the data set has none for it; write row,label."
            )
        found[row] = _Given(known, key, where)
    return found


def _read_foreign(path: Path, dataset: Dataset) -> dict[int, _Given]:
    given, class_of = read_foreign(path), class_finder(dataset)
    if not given:
        raise DataError(f"{path} holds no labels; expected a CSV of row,label, a folder per class, or an export.")
    find = _finder(dataset, path) if dataset.ids and dataset.id_header == "file" else lambda key: (None, "")
    found: dict[int, _Given] = {}
    for each, rows in zip(given, find_rows(dataset, given, lambda name: find(name)[0]), strict=True):
        known, what = class_of(each.label), next(filter(None, (*each.files, each.text[:80], each.row)), "nothing")
        if known is None:
            raise DataError(
                f"{each.where} gives the label '{each.label}'; expected one of {listed(dataset.classes, 12)}."
            )
        if not rows:
            raise DataError(f"{each.where} names '{what}', which is no training row of {dataset.name}.")
        for row in rows:
            if found.setdefault(row, _Given(known, what, each.where)).label != known:
                raise DataError(f"{each.where} gives a row a second label, '{each.label}'; each row has one label.")
    return found


def label_names(path: Path) -> set[str]:
    """Return the labels that a labels file gives."""
    if is_foreign(path):
        return {each.label for each in read_foreign(path)}
    lines = read_cells(path, "row,label")
    header = [name.lower() for name in lines[0][1]] if lines else []
    place = header.index("label") if "label" in header else 1
    return {cells[place] for _, cells in lines["label" in header :] if len(cells) > place} - {""}


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
    called: dict[str, set[int]] = {}  # by their names alone, or in any case
    for name, row in row_of.items():
        for each in (os.path.basename(name), folded(name), folded(os.path.basename(name))):
            called.setdefault(each, set()).add(row)

    def find(key: str) -> Found:
        folders = (Path(), Path(dataset.folder), path.parent)
        places = [os.path.abspath(folder / key) for folder in folders]
        if exact := [row_of[place] for place in places if place in row_of]:
            return exact[0], ""
        slashed = key.replace("\\", "/")
        for tried in (key, *(folded(os.path.abspath(folder / slashed)) for folder in folders), folded(slashed)):
            if len(rows := called.get(tried, ())) == 1:
                return next(iter(rows)), ""
            if rows:
                case = "" if tried == key else " in some case"
                return None, f"more of its path, because {len(rows)} training files have this name{case}"
        where = f", full or relative to {dataset.folder}" if dataset.folder else ""
        return None, f"the path of a training file{where} (test rows get no labels)"

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
