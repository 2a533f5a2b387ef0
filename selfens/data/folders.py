"""Folders of files, one folder per class.

    cat/1.jpg  dog/2.png  unlabeled/3.jpg  4.jpg        folders are classes; the last two files have none
    test/...                                            next to them: the test set, in class folders
    train/...  test/...  unlabeled/...                  the same one level down

`train`, `test`, `val` and `unlabeled` may be upper or lower case. Without test/, val/ is the test set.
"""

import itertools
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import UNLABELED, number_classes
from selfens.data.rows import Labels
from selfens.data.sources.base import PathOptions
from selfens.errors import DataError, listed
from selfens.settings import setting

UNLABELED_FOLDERS = {"unlabeled", "unlabelled"}
AMBIGUOUS = {
    *("", "unlabeled", "unlabelled", "nolabel", "nolabels", "notlabeled", "notlabelled", "withoutlabel"),
    *("unsorted", "unknown", "unclassified", "unassigned", "uncategorized", "undefined", "todo", "tbd"),
    *("inbox", "new", "rest", "misc", "none", "na", "n/a", "nan", "null", "?"),
}
"""Names of classes that may say that there is no label, in lower case and without spaces, lines and dots."""
OF_SYSTEMS = {"thumbs.db", "desktop.ini"}
TRAIN, TEST, VALIDATION = {"train", "training"}, {"test", "testing"}, {"val", "valid", "validation"}

WITHIN = re.compile(r"[\s_.-]+")

LabelByFile = dict[Path, str | None]
Accepts = Callable[[Path], bool]
"""Returns True for the files to use, judging by name."""


@dataclass(frozen=True, kw_only=True)
class FolderOptions(PathOptions):
    unlabeled: str | None = setting(
        None,
        "Folders, or labels in a CSV, that mean no class, besides unlabeled, separated by commas. ask: refuse folders such "
        "as unsorted, which may be a class or not.",
        none="ask",
    )


def is_ambiguous(name: str) -> bool:
    """Return True if a class of this name may rather say that its rows have no label.

    >>> is_ambiguous("No label"), is_ambiguous("_unsorted"), is_ambiguous("other")
    (True, True, False)
    """
    return WITHIN.sub("", name.lower()) in AMBIGUOUS


def unlabeled_names(given: str | None) -> set[str]:
    """Return the names in an option such as `FolderOptions.unlabeled`, in lower case."""
    return {name.strip().lower() for name in (given or "").split(",")}


def unlabeled_advice(names: Sequence[str]) -> str:
    """Return the words of a command by which classes of these names become unlabeled."""
    given = ",".join(names)
    given += "," * (given.lower() in ("none", "null"))  # which alone mean no value
    return f"--set source.unlabeled={shlex.quote(given)}"


def list_folder(
    source: Path, accepts: Accepts, noun: str, unlabeled: str | None = None
) -> tuple[LabelByFile, LabelByFile]:
    """Return the files of a folder to train on, and those of a test folder, sorted by path.

    Parameters
    ----------
    unlabeled
        As in `FolderOptions`.
    """
    without_class = UNLABELED_FOLDERS | unlabeled_names(unlabeled)
    folders = [path for path in _entries(source) if os.path.isdir(path)]
    train, test, validation = ([f for f in folders if f.name.lower() in names] for names in (TRAIN, TEST, VALIDATION))
    splits = [*train, *test, *validation]
    others = [f.name for f in folders if f not in splits and f.name.lower() not in without_class]
    if train and others:
        raise DataError(
            f"{source} holds train/ and beside it '{others[0]}'; with train/, classes are the folders inside it, so "
            "move the others there or elsewhere, or rename train/ if it is a class itself."
        )
    to_train = _by_folder([*train, source], accepts, without_class, left_out=splits)
    what = noun.partition(" (")[0]
    if not to_train:
        raise DataError(f"{source} holds no {what} to train on; expected a folder of {noun} per class.")
    classes = {label for label in to_train.values() if label is not None}
    ambiguous = sorted(filter(is_ambiguous, classes))
    if unlabeled is None and ambiguous:
        raise DataError(
            f"{source} holds a folder '{ambiguous[0]}', which may be a class or hold {what} without a class; add "
            f"{unlabeled_advice(ambiguous)} if they have none, or --set source.unlabeled= if it is "
            "a class."
        )
    return to_train, _by_folder(test or validation, accepts, without_class)


def folded(name: str) -> str:
    """Return a file's name as systems compare it that ignore case and forms of letters."""
    return unicodedata.normalize("NFC", name).casefold()


def file_finder(folder: Path) -> Callable[[str], Path]:
    """Return a function that finds a file by its path from a folder, which may have backslashes or be in another case."""
    names_in = cache(lambda place: [path.name for path in _entries(place)] if os.path.isdir(place) else [])

    def find(name: str) -> Path:
        places = [] if os.path.isfile(folder / name) else [folder]
        for part in Path(name.replace("\\", "/")).parts if places else ():
            exact = [place / part for place in places if os.path.exists(place / part)]
            places = exact or [
                place / each for place in places for each in names_in(place) if folded(each) == folded(part)
            ]
        return places[0] if len(places) == 1 else folder / name

    return find


def all_files(source: Path, accepts: Accepts, noun: str) -> list[Path]:
    """Return every file of a folder, or `source` itself if it is a file."""
    found = _files_below(source, accepts) if os.path.isdir(source) else [source]
    if not found:
        raise DataError(f"{source} holds no {noun}; expected some in it or in its subfolders.")
    return found


def counts_of_others(folder: Path, accepts: Accepts, *, below: bool = False) -> dict[str, int]:
    """Count the files of a folder that `accepts` does not take by the ends of their names; `below`: only in folders in it."""
    counts: dict[str, int] = {}
    for place, places, names in os.walk(folder):
        places[:] = [each for each in places if not each.startswith(".")]
        for path in map(Path, names if Path(place) != folder or not below else ()):
            if not accepts(path) and not path.name.startswith(".") and path.name.lower() not in OF_SYSTEMS:
                counts[path.suffix.lower()] = counts.get(path.suffix.lower(), 0) + 1
    return dict(sorted(counts.items()))


def kinds(counts: Mapping[str, int]) -> str:
    """Return counts of files by the ends of their names, in words.

    >>> kinds({".heic": 2, "": 1})
    '2 .heic, 1 unnamed'
    """
    return listed([f"{count:,} {kind or 'unnamed'}" for kind, count in counts.items()])


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
    folders: Sequence[Path], accepts: Accepts, without_class: Set[str], left_out: Sequence[Path] = ()
) -> LabelByFile:
    """Return the files in these folders without a label, and those in each subfolder with its name as the label."""
    found: LabelByFile = {}
    for path in itertools.chain.from_iterable(map(_entries, folders)):
        if os.path.isdir(path) and path not in left_out:
            label = None if path.name.lower() in without_class else path.name
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
