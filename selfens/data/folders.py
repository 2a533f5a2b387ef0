"""Folders of files, one folder per class.

    cat/1.jpg  dog/2.png  unlabeled/3.jpg  4.jpg        folders are classes; the last two files have none
    test/...                                            next to them: the test set, in class folders
    train/...  test/...  unlabeled/...                  the same one level down

`train`, `test`, `val` and `unlabeled` may be upper or lower case. Without test/, val/ is the test set.
"""

import itertools
import os
import shlex
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import UNLABELED, number_classes
from selfens.data.rows import Labels
from selfens.data.sources.base import PathOptions
from selfens.errors import DataError
from selfens.settings import setting

UNLABELED_FOLDERS = {"unlabeled", "unlabelled"}
AMBIGUOUS = {*UNLABELED_FOLDERS, "unsorted", "unknown", "unclassified", "todo", "inbox", "new", "rest", "misc", ""}
TRAIN, TEST, VALIDATION = {"train", "training"}, {"test", "testing"}, {"val", "valid", "validation"}

LabelByFile = dict[Path, str | None]
Accepts = Callable[[Path], bool]
"""Returns True for the files to use, judging by name."""


@dataclass(frozen=True, kw_only=True)
class FolderOptions(PathOptions):
    unlabeled: str | None = setting(
        None,
        "Folders whose files have no class, besides unlabeled/, separated by commas. ask: refuse names such as unsorted, "
        "which may be a class or not.",
        none="ask",
    )


def list_folder(
    source: Path, accepts: Accepts, noun: str, unlabeled: str | None = None
) -> tuple[LabelByFile, LabelByFile]:
    """Return the files of a folder to train on, and those of a test folder, sorted by path.

    Parameters
    ----------
    unlabeled
        As in `FolderOptions`.
    """
    unlabeled_names = UNLABELED_FOLDERS | {name.strip().lower() for name in (unlabeled or "").split(",")}
    folders = [path for path in _entries(source) if os.path.isdir(path)]
    train, test, validation = ([f for f in folders if f.name.lower() in names] for names in (TRAIN, TEST, VALIDATION))
    splits = [*train, *test, *validation]
    others = [f.name for f in folders if f not in splits and f.name.lower() not in unlabeled_names]
    if train and others:
        raise DataError(
            f"{source} holds train/ and beside it '{others[0]}'; with train/, classes are the folders inside it, so "
            "move the others there or elsewhere, or rename train/ if it is a class itself."
        )
    to_train = _by_folder([*train, source], accepts, unlabeled_names, left_out=splits)
    what = noun.partition(" (")[0]
    if not to_train:
        raise DataError(f"{source} holds no {what} to train on; expected a folder of {noun} per class.")
    classes = {label for label in to_train.values() if label is not None}
    ambiguous = sorted(name for name in classes if name.lower().strip("_-. ") in AMBIGUOUS)
    if unlabeled is None and ambiguous:
        raise DataError(
            f"{source} holds a folder '{ambiguous[0]}', which may be a class or hold {what} without a class; add "
            f"--set source.unlabeled={shlex.quote(','.join(ambiguous))} if they have none, or --set source.unlabeled= if it is "
            "a class."
        )
    return to_train, _by_folder(test or validation, accepts, unlabeled_names)


def all_files(source: Path, accepts: Accepts, noun: str) -> list[Path]:
    """Return every file of a folder, or `source` itself if it is a file."""
    found = _files_below(source, accepts) if os.path.isdir(source) else [source]
    if not found:
        raise DataError(f"{source} holds no {noun}; expected some in it or in its subfolders.")
    return found


def number_files(
    train: LabelByFile, test: LabelByFile, files: Sequence[Path], noun: str
) -> tuple[tuple[str, ...], Labels, NDArray[np.bool_]]:
    """Return the classes, the class number of each of these files, and which are for testing."""
    names = [(train | test)[file] for file in files]
    is_test = np.array([file in test for file in files])
    classes, labels = number_classes(names, is_test)
    if (strange := is_test & (labels == UNLABELED)).any():
        file = files[int(strange.argmax())]
        raise DataError(
            f"{file} is a test {noun} whose class has no training {noun}s; name the test folders like the training "
            "folders (and rename the folder 'test' if it is itself a class)."
        )
    return classes, labels, is_test


def _by_folder(
    folders: Sequence[Path], accepts: Accepts, unlabeled_names: Set[str], left_out: Sequence[Path] = ()
) -> LabelByFile:
    """Return the files in these folders without a label, and those in each subfolder with its name as the label."""
    found: LabelByFile = {}
    for path in itertools.chain.from_iterable(map(_entries, folders)):
        if os.path.isdir(path) and path not in left_out:
            label = None if path.name.lower() in unlabeled_names else path.name
            found |= dict.fromkeys(_files_below(path, accepts), label)
        elif accepts(path) and not os.path.isdir(path):
            found[path] = None
    return found


def _files_below(folder: Path, accepts: Accepts, above: frozenset[str] = frozenset()) -> list[Path]:
    here = os.path.realpath(folder)
    if here in above:
        raise DataError(f"{folder} is a link that leads back to {here}, a folder it lies in; remove the link.")
    found: list[Path] = []
    for path in _entries(folder):
        if os.path.isdir(path):
            found += _files_below(path, accepts, above | {here})
        elif accepts(path):
            found.append(path)
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its name and permissions.") from None
