"""Labels files: lines of `row` or `row,label`; or, under a header, a CSV with `row` or `file` and `label` among its columns.

So a corrected audit and filled-in suggestions are labels files.
"""

import os
from pathlib import Path

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.sources.images import read_cells
from selfens.errors import DataError, listed


def read_labels(path: Path, dataset: Dataset) -> dict[int, int]:
    """Return the label of each training row that a labels file names, UNLABELED if its cell is empty.

    Rows are found by their files if the file has such a column: row numbers shift when files are added. A file that is
    not a training image is passed over if it has no label.
    """
    lines = read_cells(path, "row,label")
    names, numbers = ["row", "label"], dataset.row_numbers()
    if lines and {"row", "file"} & set(header := [name.lower() for name in lines[0]]):
        names, lines = header, lines[1:]
    if len(names) > 1 and "label" not in names:
        raise DataError(f"{path} has the columns {', '.join(names)}; expected one of them to be label.")
    by_file = "file" in names and bool(dataset.ids) and dataset.id_header == "file"
    if by_file:
        row_of = {os.path.abspath(name): row for row, name in enumerate(dataset.row_ids())}
    elif "row" in names:
        row_of = {str(number): row for row, number in enumerate(numbers.tolist())}
    else:
        raise DataError(f"{path} has a column file, but these data have no files; name their rows, in a column row.")
    known = {str(number): number for number in range(dataset.num_classes)}
    known |= {name: number for number, name in enumerate(dataset.classes)} | {"": UNLABELED}
    found: dict[int, int] = {}
    for cells in lines:
        line = dict(zip(names, cells, strict=False))
        key, label = line.get("file" if by_file else "row", ""), line.get("label")
        if by_file:
            places = [os.path.abspath(key), os.path.abspath(Path(dataset.folder) / key)]
            row = next((row_of[place] for place in places if place in row_of), None)
            if row is None and label == "":
                continue
            where = f", full or relative to {dataset.folder}" if dataset.folder else ""
            expected = f"the path of a training file{where} (test images follow from seed.split)"
        else:
            row, expected = row_of.get(key.lstrip("0") or key[:1]), "the number of a training row"
            if dataset.numbers is None:
                expected += f", 0 to {dataset.num_train - 1}"
        if row is None:
            raise DataError(f"{path} names '{key[:200]}'; expected {expected}.")
        if row in found:
            raise DataError(f"{path} names '{key}' twice; each row has one label.")
        if label is not None and label not in known:
            raise DataError(f"{path} gives the label '{label}'; expected one of {listed(dataset.classes, 12)}.")
        found[row] = int(dataset.train_labels[row]) if label is None else known[label]
        if label is None and found[row] == UNLABELED:
            raise DataError(f"{path} names '{key}' without a label, and the data set has none for it; write row,label.")
    return found
