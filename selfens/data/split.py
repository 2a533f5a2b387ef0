"""Choose labeled rows for testing, if the data have no test set.

A hash of a row's content decides, not its name or position, and once decided, the journal beside the data keeps it: adding,
moving and renaming rows, or labeling more of them, moves no row between training and test. Copies of a row end up on the same
side, and so do images that are nearly the same. If labels are few, all of them are trained on: a fifth would tell little about
the error, and cross-validation tells more (`selfens.tools.folds`).
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.inspection import find_look_alikes, groups_of

SHARE = 0.2
MOST_COMPARED = 5000  # rows; of more, only the labeled ones are compared with each other
FEWEST = 100  # on fewer test rows, the 90 % interval of an error may be wider than ±8 points


def hold_out(dataset: Dataset, decided: Mapping[str, bool] = MappingProxyType({})) -> tuple[Dataset, dict[str, bool]]:
    """Make a fifth of the labeled rows test rows, if that is at least `FEWEST`.

    Rows that a model chose for labeling are hard, so they never become test rows, and neither do rows that have a copy among
    the unlabeled ones, which are trained on. Each class keeps at least one label.

    Parameters
    ----------
    decided
        By the hash of a row: whether it is a test row. Rows stay where they are, and copies of them go there, too.

    Returns
    -------
    dataset, decided
        The same for all labeled rows, if there are test rows now.
    """
    labeled = dataset.labels != UNLABELED
    if dataset.suggested is not None:
        labeled &= ~dataset.suggested
    if dataset.is_test.any() or labeled.sum() <= FEWEST:
        return dataset, {}
    rows = np.arange(len(labeled)) if len(labeled) <= MOST_COMPARED else np.flatnonzero(labeled)
    hashes = dataset.row_hashes(rows)
    sides = np.array([decided.get(each, int(each[:8], 16) < SHARE * 16**8) for each in hashes])
    known, is_labeled = np.array([each in decided for each in hashes]), labeled[rows]
    for group in map(list, (*groups_of(hashes), *find_look_alikes(dataset, rows))):
        before = [each for each in group if known[each]]
        sizes = [_file_size(dataset, int(rows[each])) for each in group]
        decisive = before[0] if before else group[int(np.argmax(sizes))]  # the largest file, most likely the original
        side = sides[decisive] and (bool(before) or is_labeled[group].all())
        sides[[each for each in group if not known[each]]] = side
    is_test = np.zeros(len(labeled), dtype=bool)
    is_test[rows] = sides & is_labeled
    is_test &= np.isin(dataset.labels, dataset.labels[~is_test])
    if is_test.sum() < FEWEST:
        return dataset, {}
    numbers = np.arange(len(labeled)) if dataset.numbers is None else dataset.numbers
    decided = {hashes[each]: bool(is_test[rows[each]]) for each in np.flatnonzero(is_labeled)}
    return replace(dataset, is_test=is_test, numbers=numbers), decided


def _file_size(dataset: Dataset, row: int) -> int:
    return os.path.getsize(dataset.ids[row]) if dataset.folder and os.path.isfile(dataset.ids[row]) else 0
