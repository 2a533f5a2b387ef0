"""Choose labeled rows for testing, if the data have no test set.

A hash of a row's content decides, not its name or position, so adding, moving and renaming rows, or labeling more of them,
moves no row between training and test. Copies of a row end up on the same side, and so do images that are nearly the same. If
labels are few, all of them are trained on: a fifth would tell little about the error, and cross-validation tells more
(`selfens.tools.folds`).
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from selfens.data import journal
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.inspection import find_look_alikes

SHARE = 0.2
FEWEST = 100  # on fewer test rows, the 90 % interval of an error may be wider than ±8 points


def mark_suggested(dataset: Dataset, path: Path) -> Dataset:
    """Mark the rows that a model chose for labeling, according to the journal next to the data."""
    chosen = journal.suggested(journal.path_for(path))
    if not chosen:
        return dataset
    return replace(dataset, suggested=np.array([each in chosen for each in dataset.row_hashes()]))


def hold_out(dataset: Dataset) -> Dataset:
    """Make a fifth of the labeled rows test rows, if that is at least `FEWEST`.

    Rows that a model chose for labeling are hard, so they never become test rows. Each class keeps at least one label.
    """
    labeled = dataset.labels != UNLABELED
    if dataset.suggested is not None:
        labeled &= ~dataset.suggested
    rows = np.flatnonzero(labeled)
    if dataset.is_test.any() or len(rows) <= FEWEST:
        return dataset
    hashes = dataset.row_hashes(rows)
    for group in find_look_alikes(dataset, rows):
        sizes = [_file_size(dataset, int(rows[each])) for each in group]
        decisive = hashes[group[int(np.argmax(sizes))]]  # that of the largest file, most likely the original
        for each in group:
            hashes[each] = decisive
    is_test = np.zeros(len(labeled), dtype=bool)
    is_test[rows] = [int(each[:8], 16) < SHARE * 16**8 for each in hashes]
    is_test &= np.isin(dataset.labels, dataset.labels[~is_test])
    if is_test.sum() < FEWEST:
        return dataset
    return replace(
        dataset, is_test=is_test, numbers=np.arange(len(labeled)) if dataset.numbers is None else dataset.numbers
    )


def _file_size(dataset: Dataset, row: int) -> int:
    return os.path.getsize(dataset.ids[row]) if dataset.folder and os.path.isfile(dataset.ids[row]) else 0
