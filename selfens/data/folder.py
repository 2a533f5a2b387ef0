"""A folder of images, or a CSV of file,label, as a dataset.

    photos/cat/1.jpg  photos/dog/2.png  photos/unlabeled/3.jpg  photos/4.jpg    folders are classes; the last two have none
    photos/test/...                                                             beside them: the test set, in class folders
    photos/train/...  photos/test/...  photos/unlabeled/...                     the same one level down
    photos.csv        file,label per line, paths relative to it; an empty label is unknown

`train`, `test`, `val` and `unlabeled` may be in upper or lower case. Without test/, val/ is the test set.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from selfens.data.dataset import UNLABELED, Dataset, Labels
from selfens.data.images import Notice, Readable, decode_all, in_memory_or_file, is_image
from selfens.data.rows import Selected
from selfens.errors import DataError

UNLABELED_FOLDERS = {"unlabeled", "unlabelled"}
TRAIN, TEST, VALIDATION = {"train", "training"}, {"test", "testing"}, {"val", "valid", "validation"}
SPLIT_FOLDERS = TRAIN | TEST | VALIDATION
SYSTEM_FILES = {"thumbs.db", "desktop.ini"}
HELD_OUT_SHARE = 0.2  # of each class, if there is no test folder
SIZES = range(4, 1025)


@dataclass(frozen=True)
class Listed:
    """A file and the name of its class, None if that is unknown."""

    path: Path
    label: str | None


@dataclass
class Listing:
    """The files to train and to test on, and what else was found."""

    train: list[Listed]
    test: list[Listed] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Folders of classes without an image."""
    unused: list[str] = field(default_factory=list)
    """Validation folders beside a test folder."""
    other_kinds: Counter[str] = field(default_factory=Counter)
    """The endings of files that are no images."""

    def notes(self, source: str | Path) -> Iterator[str]:
        """What a person may not expect, a sentence each."""
        if self.empty:
            yield f"{source} has no image in {_quoted(self.empty)}, so no such class is trained on."
        if self.unused:
            yield f"{source} has a test folder, so what is in {_quoted(self.unused)} is not used."
        if self.other_kinds:
            count, kinds = self.other_kinds.total(), ", ".join(sorted(self.other_kinds)[:5])
            yield f"{count} {'file' if count == 1 else 'files'} of other kinds passed over ({kinds})."


def is_folder_source(source: str | Path) -> bool:
    return is_csv(source) or _is_folder(source)


def is_csv(source: str | Path) -> bool:
    return str(source).lower().endswith(".csv")


def load_folder(
    source: str | Path, *, size: int, split_seed: int = 0, notice: Notice | None = None, keep_in_file: bool = False
) -> Dataset:
    """A dataset from a folder of images or a CSV of file,label; in memory, or left in the cache's file.

    Without a test folder, a fifth of the labelled images of each class is held out to test on; a class keeps at least one.
    """
    if size not in SIZES:
        raise DataError(f"the image size is {size}; expected from {SIZES.start} to {SIZES.stop - 1} pixels.")
    listing = list_images(Path(source))
    listed = listing.train + listing.test
    decoded = decode_all([item.path for item in listed], size, source, notice)
    items = [item for item, kept in zip(listed, decoded.readable, strict=True) if kept]
    for_training = int(decoded.readable[: len(listing.train)].sum())  # the rest of them is in the test folder
    classes = tuple(sorted({item.label for item in items[:for_training] if item.label is not None}))
    number = {name: k for k, name in enumerate(classes)}
    labels = np.array([number.get(item.label or "", UNLABELED) for item in items], dtype=np.int64)
    is_test = np.arange(len(items)) >= for_training if listing.test else _held_out(items, Path(source), split_seed)
    train_rows, test_rows = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    _check_test_folder(source, [items[row] for row in test_rows if labels[row] == UNLABELED])
    return Dataset(
        inputs=in_memory_or_file(Selected(decoded.images, train_rows), keep_in_file),
        labels=labels[train_rows],
        test_inputs=Selected(decoded.images, test_rows)[:],
        test_labels=labels[test_rows],
        classes=classes,
        name=str(source),
        row_names=tuple(str(items[row].path) for row in train_rows),
        test_row_names=tuple(str(items[row].path) for row in test_rows),
        unreadable=tuple(decoded.failures),
        notes=(*listing.notes(source), *_notes_on_classes(listing, classes, labels[test_rows])),
    )


def _check_test_folder(source: str | Path, unknown: Sequence[Listed]) -> None:
    """Refuse test images without a class, or of one that is not trained on."""
    if any(item.label is None for item in unknown):
        raise DataError(
            f"the test folder of {source} holds images outside class folders; sort them into folders of classes."
        )
    if unknown:
        raise DataError(
            f"the test folder of {source} holds images of {_quoted({str(item.label) for item in unknown})}, which is not "
            "trained on; use the same folder names as for training (and rename the folder 'test' if it is itself a class)."
        )


def _notes_on_classes(listing: Listing, classes: Sequence[str], test_labels: Labels) -> Iterator[str]:
    lost = {item.label for item in listing.train if item.label is not None} - set(classes)
    if lost:
        yield f"no image of {_quoted(lost)} could be read, so no such class is trained on."
    untested = [name for number, name in enumerate(classes) if number not in test_labels]
    if untested and len(test_labels):
        few = "" if listing.test else " (one or two images are all trained on)"
        yield f"there is no test image of {_quoted(untested)}{few}, so the test error says nothing about it."


def _held_out(items: Sequence[Listed], source: Path, seed: int) -> Readable:
    """A fifth of each class: the names with the smallest hashes, so that few change when images are added."""
    root = source.parent if is_csv(source) else source
    held_out = np.zeros(len(items), dtype=np.bool_)
    members: dict[str, list[tuple[bytes, int]]] = {}
    for place, item in enumerate(items):
        if item.label is not None:
            name = f"{seed} {Path(os.path.relpath(item.path, root)).as_posix()}"
            digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
            members.setdefault(item.label, []).append((digest, place))
    for ranked in map(sorted, members.values()):
        held_out[[place for _, place in ranked[: min(round(HELD_OUT_SHARE * len(ranked)), len(ranked) - 1)]]] = True
    return held_out


# Which files are images, and of which class


def list_images(source: Path) -> Listing:
    """The images of a folder or CSV, sorted by path."""
    if is_csv(source):
        return Listing(_read_csv(source))
    folders = [path for path in _entries(source) if os.path.isdir(path)]
    train, test, validation = ([f for f in folders if f.name.lower() in names] for names in (TRAIN, TEST, VALIDATION))
    listing = Listing([], unused=[folder.name for folder in validation] if test else [])
    beside = [folder.name for folder in folders if folder.name.lower() not in SPLIT_FOLDERS | UNLABELED_FOLDERS]
    if train and beside:
        raise DataError(
            f"{source} holds train/ and beside it {_quoted(beside)}; with train/, classes are the folders inside it, so move "
            "the others there or elsewhere, or rename train/ if it is a class itself."
        )
    for folder in train:
        listing.train += _labelled_by_folder(folder, listing)
    listing.train += _labelled_by_folder(source, listing, left_out=SPLIT_FOLDERS)
    for folder in test or validation:
        listing.test += _labelled_by_folder(folder, listing)
    if not listing.train and listing.test:
        raise DataError(f"{source} holds only images to test on; expected folders of images to train on beside them.")
    if not listing.train:
        raise DataError(
            f"{source} holds no images (.png, .jpg, .tif and whatever else Pillow reads); expected one folder of images per "
            "class, and 'unlabeled' for the others."
        )
    return listing


def all_images(source: Path) -> list[Path]:
    """Every image of a folder or CSV, whatever its folders are called; or the one image that `source` is."""
    if is_csv(source):
        return [item.path for item in _read_csv(source, labelled=False)]
    if not _is_folder(source):
        return [source]
    found = _images_below(source, Listing([]))
    if not found:
        raise DataError(f"{source} holds no images; expected some, in it or in folders below.")
    return found


def _is_folder(path: str | Path) -> bool:
    """Whether there is a folder; one that cannot be looked at is refused."""
    try:
        return stat.S_ISDIR(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from None


def _labelled_by_folder(folder: Path, listing: Listing, left_out: Iterable[str] = ()) -> list[Listed]:
    """Files of `folder` itself without a label, those of each sub-folder with its name."""
    found = []
    for path in _entries(folder):
        if not os.path.isdir(path):
            found += [Listed(path, None)] if _is_image(path, listing) else []
        elif path.name.lower() not in left_out:
            label = None if path.name.lower() in UNLABELED_FOLDERS else path.name
            inside = _images_below(path, listing)
            found += [Listed(image, label) for image in inside]
            if label and not inside:
                listing.empty.append(label)
    return found


def _images_below(folder: Path, listing: Listing, above: frozenset[str] = frozenset()) -> list[Path]:
    """The images anywhere below `folder`."""
    here = os.path.realpath(folder)
    if here in above:
        raise DataError(f"{folder} is a link that leads back to {here}, a folder it lies in; remove the link.")
    found: list[Path] = []
    for path in _entries(folder):
        if os.path.isdir(path):
            found += _images_below(path, listing, above | {here})
        elif _is_image(path, listing):
            found.append(path)
    return found


def _is_image(path: Path, listing: Listing) -> bool:
    """Whether a file is an image; others are counted."""
    if not is_image(path) and path.name.lower() not in SYSTEM_FILES:
        listing.other_kinds[path.suffix.lower() or "without an ending"] += 1
    return is_image(path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(path: str | Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror}); check its name and permissions.")


def _quoted(names: Iterable[str]) -> str:
    """The first few of some names, for a sentence."""
    every = sorted(names)
    return ", ".join(f"'{name}'" for name in every[:5]) + (f" and {len(every) - 5} more" if len(every) > 5 else "")


# CSV files


def _read_csv(path: Path, labelled: bool = True) -> list[Listed]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")  # names of files need not be UTF-8
        lines = [line for line in csv_reader(text) if line]
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV of file,label ({error}).") from None
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
        file, label = path.parent / name, _label(given[0], path) if given else None
        if found.setdefault(file, label) != label:
            raise DataError(
                f"{path} names {name} twice, with the labels '{found[file] or ''}' and '{label or ''}'; keep one."
            )
    missing = [file for file in found if not os.path.isfile(file)]
    if missing or not found:
        what = f"{len(missing)} files that are not there, the first {missing[0]}" if missing else "no files"
        raise DataError(f"{path} names {what}; paths are relative to the CSV's own folder.")
    return [Listed(file, label) for file, label in found.items()]


def csv_reader(text: str) -> Iterator[list[str]]:
    """The cells of each line, separated by commas, or by the semicolons or tabs that some spreadsheets write."""
    lines = list(io.StringIO(text, newline=""))
    first = next((line for line in lines if line.strip()), "")
    separator = next((mark for mark in ";\t" if mark in first and "," not in first), ",")
    return csv.reader(lines, delimiter=separator)


def _label(text: str, path: Path) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{path} holds the label {text!r}, which is not UTF-8; save the file in that encoding."
        ) from None
    return None if text in ("", str(UNLABELED)) or text.lower() in UNLABELED_FOLDERS else text
