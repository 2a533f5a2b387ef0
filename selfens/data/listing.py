"""Which files are images, of which class, and whether they are to train or to test on.

    photos/cat/1.jpg  photos/dog/2.png  photos/unlabeled/3.jpg  photos/4.jpg    labels from the folders' names
    photos/test/...                                                             beside them: the test set, sorted alike
    photos/train/...  photos/test/...  photos/unlabeled/...                     the same one level down
    photos.csv        file,label per line, paths relative to it; an empty label is unknown

`train`, `test`, `val` and `unlabeled` are known in upper and lower case. Without test/, val/ is the test set.
"""

from __future__ import annotations

import csv
import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from selfens.data.dataset import UNLABELED
from selfens.errors import DataError

UNLABELED_FOLDERS = {"unlabeled", "unlabelled"}
TRAIN, TEST, VALIDATION = {"train", "training"}, {"test", "testing"}, {"val", "valid", "validation"}
SPLIT_FOLDERS = TRAIN | TEST | VALIDATION
# Pillow registers these too, but they are no pictures of pixels, or are read by running another program
NOT_PIXELS = {"BUFR", "EPS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}
LEFT_BY_THE_SYSTEM = {"thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Listed:
    """A file and the name of its class, None where that is unknown."""

    path: Path
    label: str | None


@dataclass(frozen=True)
class Listing:
    """The files to train and to test on, and what was found that a person may not expect, a sentence each."""

    train: list[Listed]
    test: list[Listed]
    notes: tuple[str, ...] = ()


def list_images(source: Path) -> Listing:
    """The images of a folder or CSV, sorted by path."""
    if is_csv(source):
        return Listing(_from_csv(source), [])
    found = _Tree(source)
    found.divide()
    if not found.train and found.test:
        raise DataError(f"{source} holds images to test on alone; expected folders of images to train on beside them.")
    if not found.train:
        raise _no_images(source)
    return Listing(found.train, found.test, found.notes())


def all_images(source: Path) -> list[Path]:
    """Every image of a folder or CSV, whatever the folders mean; or the one image that `source` is."""
    if is_csv(source):
        return [item.path for item in _from_csv(source, labelled=False)]
    if not is_folder(source):
        return [source]
    found = _Tree(source).below(source)
    if not found:
        raise DataError(f"{source} holds no images; expected some, in it or in folders below.")
    return found


def is_csv(source: str | Path) -> bool:
    return str(source).lower().endswith(".csv")


def is_image(path: Path) -> bool:
    return path.suffix.lower() in _endings()


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder; one that cannot be asked about is refused."""
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from None


def named(names: Iterable[str]) -> str:
    """The first few of some names, for a sentence."""
    every = sorted(names)
    return ", ".join(f"'{name}'" for name in every[:5]) + (f" and {len(every) - 5} more" if len(every) > 5 else "")


@cache
def _endings() -> frozenset[str]:
    """The endings of all kinds of images that Pillow can open."""
    from PIL import Image

    registered = Image.registered_extensions().items()
    return frozenset(ending for ending, kind in registered if kind in Image.OPEN and kind not in NOT_PIXELS)


def _no_images(source: Path) -> DataError:
    return DataError(
        f"{source} holds no images (.png, .jpg, .tif and whatever else Pillow reads); expected one folder of images per "
        "class, and 'unlabeled' for the others."
    )


def _unreadable(path: str | Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror}); check its name and the rights to it.")


class _Tree:
    """A folder being walked through: what is to train and to test on, and what was passed over on the way."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.train: list[Listed] = []
        self.test: list[Listed] = []
        self.empty: list[str] = []
        self.unused: list[str] = []
        self.other_kinds: Counter[str] = Counter()

    def divide(self) -> None:
        """Find all images, by the folders' names."""
        folders = [path for path in _entries(self.root) if os.path.isdir(path)]
        by_kind = {
            kind: [path for path in folders if path.name.lower() in names]
            for kind, names in (("train", TRAIN), ("test", TEST), ("validation", VALIDATION))
        }
        tested = by_kind["test"] or by_kind["validation"]
        self.unused = [path.name for path in by_kind["validation"] if path not in tested]
        if by_kind["train"]:
            _refuse_classes_beside_train(self.root, folders)
            self.train = [item for path in by_kind["train"] for item in self.sorted_below(path)]
        self.train += self.sorted_below(self.root, left_out=SPLIT_FOLDERS)
        self.test = [item for path in tested for item in self.sorted_below(path)]

    def sorted_below(self, folder: Path, left_out: Iterable[str] = ()) -> list[Listed]:
        """Files of `folder` itself without a label, those of each sub-folder with its name."""
        found = []
        for path in _entries(folder):
            if not os.path.isdir(path):
                found += [Listed(path, None)] if self.takes(path) else []
            elif path.name.lower() not in left_out:
                unlabeled = path.name.lower() in UNLABELED_FOLDERS
                inside = self.below(path)
                found += [Listed(image, None if unlabeled else path.name) for image in inside]
                if not inside and not unlabeled:
                    self.empty.append(path.name)
        return found

    def below(self, folder: Path, above: frozenset[str] = frozenset()) -> list[Path]:
        """The images anywhere below `folder`."""
        here = os.path.realpath(folder)
        if here in above:
            raise DataError(f"{folder} is a link that leads back to {here}, a folder it lies in; remove the link.")
        found: list[Path] = []
        for path in _entries(folder):
            found += self.below(path, above | {here}) if os.path.isdir(path) else [path] if self.takes(path) else []
        return found

    def takes(self, path: Path) -> bool:
        """Whether a file is an image; others are counted."""
        if not is_image(path) and path.name.lower() not in LEFT_BY_THE_SYSTEM:
            self.other_kinds[path.suffix.lower() or "without an ending"] += 1
        return is_image(path)

    def notes(self) -> tuple[str, ...]:
        notes = []
        if self.empty:
            notes.append(f"{self.root} has no image in {named(self.empty)}, so no such class is trained on.")
        if self.unused:
            notes.append(f"{self.root} has a test folder, so what is in {named(self.unused)} is not used.")
        if self.other_kinds:
            count, kinds = self.other_kinds.total(), ", ".join(sorted(self.other_kinds)[:5])
            notes.append(f"{count} {'file' if count == 1 else 'files'} of other kinds passed over ({kinds}).")
        return tuple(notes)


def _refuse_classes_beside_train(root: Path, folders: Iterable[Path]) -> None:
    known = SPLIT_FOLDERS | UNLABELED_FOLDERS
    beside = [path.name for path in folders if path.name.lower() not in known]
    if beside:
        raise DataError(
            f"{root} holds train/ and beside it {named(beside)}; where there is train/, classes are the folders inside it, "
            "so move the others there or elsewhere, or rename train/ if it is a class itself."
        )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise _unreadable(folder, error) from None


def _from_csv(path: Path, labelled: bool = True) -> list[Listed]:
    lines = _lines(path)
    header = [cell.strip().lower() for cell in lines[0]] if lines else []
    wanted = ("file", "label") if labelled else ("file",)
    if not set(wanted) <= set(header):
        raise DataError(
            f"{path} begins with the columns {', '.join(header) or 'none'}; expected {' and '.join(wanted)}."
        )
    places = [header.index(name) for name in wanted]
    found: dict[Path, str | None] = {}
    for line in lines[1:]:
        name, *given = [line[place].strip() if place < len(line) else "" for place in places]
        file, label = path.parent / name, _known(given[0], path) if given else None
        if found.setdefault(file, label) != label:
            raise DataError(
                f"{path} names {name} twice, with the labels '{found[file] or ''}' and '{label or ''}'; keep one."
            )
    missing = [file for file in found if not os.path.isfile(file)]
    if missing or not found:
        what = f"{len(missing)} files that are not there, the first {missing[0]}" if missing else "no files"
        raise DataError(f"{path} names {what}; paths are relative to the CSV's own folder.")
    return [Listed(file, label) for file, label in found.items()]


def separator(lines: list[str]) -> str:
    """What separates the cells of a CSV: spreadsheets write semicolons where the comma is the sign of a decimal fraction."""
    first = next((line for line in lines if line.strip()), "")
    return next((mark for mark in ";\t" if mark in first and "," not in first), ",")


def _lines(path: Path) -> list[list[str]]:
    """The lines of a CSV that are not empty. Names of files need not be UTF-8 on every disk, so bytes that are not stay."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = list(file)
        return [line for line in csv.reader(lines, delimiter=separator(lines)) if line]
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV of file,label ({error}).") from None


def _known(text: str, path: Path) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{path} holds the label {text!r}, which is not UTF-8; save the file in that encoding."
        ) from None
    return None if text in ("", str(UNLABELED)) or text.lower() in UNLABELED_FOLDERS else text
