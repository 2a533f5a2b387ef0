"""A prior for the training rows: probabilities or labels by another model, from a file or from Python.

A CSV has a column `row`, `file`, or the data's column of ids, and a column for each class (NAME, or `probability of NAME`) or a
column `label` or `class`. So predictions of a run are a prior of another. An .npz file or a caller gives [rows, classes] or
[rows], a line for each training row. NaN, an empty cell or -1 says nothing about a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfens.data.dataset import UNLABELED, Dataset, label_values
from selfens.data.label_files import class_finder, row_finder
from selfens.data.labels import LabelChoice
from selfens.data.sources.images import read_cells
from selfens.errors import DataError, listed
from selfens.files import check_regular

TOLERANCE = 0.02  # of a sum of probabilities, which may have been rounded
LABELS = ("label", "class")


def with_prior(dataset: Dataset, given: ArrayLike | str | Path) -> Dataset:
    """Return the dataset with a prior: a path, or [training rows, classes] probabilities, or a label for each row."""
    if isinstance(given, str | Path):
        path, what = Path(given), f"the prior in {given}"
        found = _read_npz(path) if path.suffix.lower() == ".npz" else _read_csv(path, dataset)
    else:
        found, what = np.asarray(given), "the prior"
    if found.ndim == 1:
        found = _of_labels(found, dataset, what)
    return dataset.with_prior(_checked(found, dataset, what))


def remark(prior: NDArray[Any] | None, labels: LabelChoice) -> str:
    """Say in a line how many rows the prior is for, and how many of the labeled ones it gets wrong."""
    if prior is None:
        return ""
    known = ~np.isnan(prior).any(axis=1)
    judged = known[labels.rows]
    rows = labels.rows[judged]
    text = f"prior for {known.sum():,} of {len(prior):,} rows"
    if not len(rows):
        return f"{text}, none of them labeled, so its error is not known"
    wrong = int((prior[rows].argmax(axis=1) != labels.labels[judged]).sum())
    return f"{text}, wrong on {wrong:,} of {len(rows):,} labeled ones ({100 * wrong / len(rows):.0f} %)"


def _checked(found: NDArray[Any], dataset: Dataset, what: str) -> NDArray[np.float32]:
    """Return distributions that sum to 1, NaN for rows without one; refuse anything else."""
    rows, classes = dataset.num_train, dataset.num_classes
    if found.shape != (rows, classes):
        shape = " x ".join(map(str, found.shape)) or "a single value"
        expected = f"{rows:,} x {classes}, a line for each training row and a column for each class"
        raise DataError(f"{what} is {shape}; expected {expected} ({listed(dataset.classes, 12)}).")
    if found.dtype.kind not in "fiub":
        raise DataError(f"{what} is of type {found.dtype}; expected probabilities, or a label for each row.")
    values = found.astype(np.float64)
    known = ~np.isnan(values).all(axis=1)
    sums = values[known].sum(axis=1)
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(sums - 1) <= TOLERANCE) & (values[known] >= 0).all(axis=1))
    if wrong.any():
        place = int(wrong.argmax())
        row, line = dataset.row_numbers()[np.flatnonzero(known)[place]], values[known][place]
        numbers = listed([f"{value:.4g}" for value in line], 6)
        raise DataError(
            f"{what} gives row {row} the numbers {numbers}; expected probabilities from 0 that sum to 1, or nothing."
        )
    if not known.any():
        raise DataError(f"{what} says nothing about any training row; leave it out.")
    if known.sum() > 1 and np.ptp(values[known], axis=0).max() < 1e-6:
        raise DataError(f"{what} says the same about all of its rows, so it can teach nothing; leave it out.")
    values[known] /= sums[:, None]
    return values.astype(np.float32)


def _of_labels(labels: NDArray[Any], dataset: Dataset, what: str) -> NDArray[np.float32]:
    """Return certain distributions from a label for each row."""
    values = label_values(labels, rows=dataset.num_train, what="the labels of a prior")
    find, made = class_finder(dataset), np.full((len(values), dataset.num_classes), np.nan, np.float32)
    for row, label in enumerate(values):
        _set_label(made[row], "" if label is None else str(label), find, f"{what}: row {row}", dataset)
    return made


def _set_label(line: NDArray[np.float32], label: str, find: Any, where: str, dataset: Dataset) -> None:
    number = find(label)
    if number is None:
        raise DataError(f"{where} has the label '{label}'; expected one of {listed(dataset.classes, 12)}, or nothing.")
    if number != UNLABELED:
        line[:] = 0
        line[number] = 1


def _read_npz(path: Path) -> NDArray[Any]:
    try:
        check_regular(path)
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays)
            name = "prior" if "prior" in names else names[0] if len(names) == 1 else None
            if name is not None:
                return np.asarray(arrays[name])
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds
        raise DataError(f"{path} cannot be read as an .npz file ({error}).") from None
    raise DataError(f"{path} holds the arrays {listed(names)}; expected one of them to be called prior.")


def _read_csv(path: Path, dataset: Dataset) -> NDArray[np.float32]:
    (_, header), *lines = read_cells(path, "row and a column for each class") or [(0, [])]
    lowered = [name.lower() for name in header]
    by, find_row = row_finder(lowered, dataset, path)
    columns, label_at = _columns(path, header, dataset)
    find_class = class_finder(dataset)
    made = np.full((dataset.num_train, dataset.num_classes), np.nan, np.float32)
    seen, at = set[int](), lowered.index(by)
    for number, cells in lines:
        cells, where = [*cells, *[""] * (len(header) - len(cells))], f"line {number} of {path}"
        row, expected = find_row(cells[at])
        if row is None and by == "file" and cells[at]:
            continue  # predictions of a folder name its test files too
        if row is None:
            raise DataError(f"{where} names '{cells[at][:200]}'; expected {expected}.")
        if row in seen:
            raise DataError(f"{where} names '{cells[at]}' twice; each row has one prior.")
        seen.add(row)
        if label_at is not None:
            _set_label(made[row], cells[label_at], find_class, where, dataset)
        else:
            made[row] = _numbers([cells[column] for column in columns.values()], where)
    return made


def _columns(path: Path, header: Sequence[str], dataset: Dataset) -> tuple[Mapping[str, int], int | None]:
    """Return the column of each class, or else that of labels."""
    own = {name: place for place, name in reversed([*enumerate(header)])}
    columns = {
        name: place
        for name in dataset.classes
        if (place := own.get(f"probability of {name}", own.get(name))) is not None
    }
    beyond = [name for name in header if name.startswith("probability of ") and name[15:] not in dataset.classes]
    missing = [name for name in dataset.classes if name not in columns]
    if beyond:
        raise DataError(f"{path} has the column '{beyond[0]}'; the classes are {listed(dataset.classes, 12)}.")
    if not missing:
        return columns, None
    lowered = [name.lower() for name in header]
    label = next((lowered.index(name) for name in LABELS if name in lowered), None)
    if label is None:
        expected = f"one for each class ({listed(dataset.classes, 12)}), or a column label"
        raise DataError(f"{path} has no column '{missing[0]}'; expected {expected}.")
    return {}, label


def _numbers(cells: Sequence[str], where: str) -> NDArray[np.float32]:
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells], np.float32)
    except ValueError:
        wrong = next(cell for cell in cells if cell and not _is_number(cell))
        raise DataError(f"{where} has '{wrong[:100]}' among its probabilities; expected numbers.") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
