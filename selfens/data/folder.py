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
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.images import Convert, Decoded, decode_all, is_image
from selfens.errors import DataError
from selfens.files import check_regular
from selfens.files.tables import from_cell

UNLABELED_FOLDERS = {"unlabeled", "unlabelled"}
TRAIN, TEST, VALIDATION = {"train", "training"}, {"test", "testing"}, {"val", "valid", "validation"}
HELD_OUT_SHARE = 0.2  # of each class, if there is no test folder

Labeled = dict[Path, str | None]
"""Files and the names of their classes, None if unknown."""


def is_folder_source(source: str | Path) -> bool:
    return is_csv(source) or os.path.isdir(source)


def is_csv(source: str | Path) -> bool:
    return str(source).lower().endswith(".csv")


def load_folder(
    source: str | Path, *, size: int, split_seed: int = 0, progress: bool = False, convert: Convert | None = None
) -> Dataset:
    """A dataset from a folder of images or a CSV of file,label, decoded, and converted if `convert` is given.

    Without a test folder, a fifth of the labeled images of each class is held out to test on; a class keeps at least one.
    """
    train, test = list_images(Path(source))
    label_of = train | test
    decoded = decode_all(list(label_of), size, source, progress, convert)
    names = [label_of[file] for file in decoded.files]
    in_test = np.array([file in test for file in decoded.files])
    classes = tuple(
        sorted({name for name, tested in zip(names, in_test, strict=True) if name is not None and not tested})
    )
    number = {name: k for k, name in enumerate(classes)}
    labels = np.array([number.get(name or "", UNLABELED) for name in names], dtype=np.int64)
    is_test = in_test if test else _held_out(decoded.files, names, Path(source), split_seed)
    train_rows, test_rows = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if (labels[test_rows] == UNLABELED).any():
        file = next(decoded.files[row] for row in test_rows if labels[row] == UNLABELED)
        raise DataError(
            f"{file} is a test image of no class that is trained on; put test images into folders named as those for training "
            "(and rename the folder 'test' if it is itself a class)."
        )
    return Dataset(
        inputs=decoded.images[train_rows],
        labels=labels[train_rows],
        test_inputs=decoded.images[test_rows],
        test_labels=labels[test_rows],
        classes=classes,
        name=str(source),
        row_names=tuple(str(decoded.files[row]) for row in train_rows),
        test_row_names=tuple(str(decoded.files[row]) for row in test_rows),
        unreadable=tuple(decoded.failures),
    )


def _held_out(files: Sequence[Path], names: Sequence[str | None], source: Path, seed: int) -> NDArray[np.bool_]:
    """A fifth of each class: the names with the smallest hashes, so that few change when images are added."""
    root = source.parent if is_csv(source) else source
    held_out = np.zeros(len(files), dtype=np.bool_)
    members: dict[str, list[tuple[bytes, int]]] = {}
    for place, (file, label) in enumerate(zip(files, names, strict=True)):
        if label is not None:
            name = f"{seed} {Path(os.path.relpath(file, root)).as_posix()}"
            digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
            members.setdefault(label, []).append((digest, place))
    for ranked in map(sorted, members.values()):
        held_out[[place for _, place in ranked[: min(round(HELD_OUT_SHARE * len(ranked)), len(ranked) - 1)]]] = True
    return held_out


# Which files are images, and of which class


def list_images(source: Path) -> tuple[Labeled, Labeled]:
    """The images of a folder or CSV to train on, and those of a test folder, sorted by path."""
    if is_csv(source):
        return _read_csv(source), {}
    folders = [path for path in _entries(source) if os.path.isdir(path)]
    train, test, validation = ([f for f in folders if f.name.lower() in names] for names in (TRAIN, TEST, VALIDATION))
    splits = [*train, *test, *validation]
    beside = [f.name for f in folders if f not in splits and f.name.lower() not in UNLABELED_FOLDERS]
    if train and beside:
        raise DataError(
            f"{source} holds train/ and beside it '{beside[0]}'; with train/, classes are the folders inside it, so move "
            "the others there or elsewhere, or rename train/ if it is a class itself."
        )
    to_train, to_test = Labeled(), Labeled()
    for folder in train:
        to_train |= _labeled_by_folder(folder)
    to_train |= _labeled_by_folder(source, left_out=splits)
    for folder in test or validation:
        to_test |= _labeled_by_folder(folder)
    if not to_train:
        raise DataError(
            f"{source} holds no images to train on (.png, .jpg, .tif and the like); expected one folder of images per class, "
            "and 'unlabeled' for the others."
        )
    return to_train, to_test


def all_images(source: Path) -> list[Path]:
    """Every image of a folder or CSV, whatever its folders are called; or the one image that `source` is."""
    if is_csv(source):
        return list(_read_csv(source, labeled=False))
    found = _images_below(source) if os.path.isdir(source) else [source]
    if not found:
        raise DataError(f"{source} holds no images; expected some, in it or in folders below.")
    return found


def decode_alike(source: str | Path, shape: tuple[int, ...], progress: bool = False) -> Decoded:
    """Every image of a source, as inputs of this shape; refused if they cannot have it."""
    channels, *sides = shape
    if channels != 3 or len(sides) != 2 or sides[0] != sides[1]:
        raise DataError(
            f"the images of {source} would become square and colored, but the training inputs have shape {shape}; give an "
            ".npz or .npy file of inputs of that shape."
        )
    return decode_all(all_images(Path(source)), sides[0], source, progress)


def _labeled_by_folder(folder: Path, left_out: Iterable[Path] = ()) -> Labeled:
    """Files of `folder` itself without a label, those of each sub-folder with its name."""
    found: Labeled = {}
    for path in _entries(folder):
        if os.path.isdir(path) and path not in left_out:
            label = None if path.name.lower() in UNLABELED_FOLDERS else path.name
            found |= dict.fromkeys(_images_below(path), label)
        elif is_image(path) and not os.path.isdir(path):
            found[path] = None
    return found


def _images_below(folder: Path, above: frozenset[str] = frozenset()) -> list[Path]:
    """The images anywhere below `folder`."""
    here = os.path.realpath(folder)
    if here in above:
        raise DataError(f"{folder} is a link that leads back to {here}, a folder it lies in; remove the link.")
    found: list[Path] = []
    for path in _entries(folder):
        if os.path.isdir(path):
            found += _images_below(path, above | {here})
        elif is_image(path):
            found.append(path)
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its name and permissions.") from None


# CSV files


def read_table(path: Path, columns: str) -> list[list[str]]:
    """The cells of each line that is not empty, separated by commas, or by the semicolons or tabs of some spreadsheets."""
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")  # names of files need not be UTF-8
        if "\0" in text:
            raise csv.Error("it is not text")
        first = next((line for line in text.splitlines() if line.strip()), "")
        separator = next((mark for mark in ";\t" if mark in first and "," not in first), ",")
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        return [[from_cell(cell.strip()) for cell in line] for line in lines if any(map(str.strip, line))]
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV of {columns} ({error}).") from None


def _read_csv(path: Path, labeled: bool = True) -> Labeled:
    wanted = ("file", "label") if labeled else ("file",)
    header, *lines = read_table(path, ",".join(wanted)) or [[]]
    header = [name.lower() for name in header]
    if not set(wanted) <= set(header):
        raise DataError(
            f"{path} begins with the columns {', '.join(header) or 'none'}; expected {' and '.join(wanted)} (or, "
            "for a table of features, the config field data.label_column)."
        )
    found: Labeled = {}
    for cells in lines:
        line = dict(zip(header, cells, strict=False))
        file, label = path.parent / line.get("file", ""), _label(line.get("label", ""), path) if labeled else None
        if found.setdefault(file, label) != label:
            raise DataError(f"{path} names {file} twice, with the labels '{found[file]}' and '{label}'; keep one.")
    missing = [file for file in found if not os.path.isfile(file)]
    if missing or not found:
        what = f"{len(missing)} files that are not there, the first {missing[0]}" if missing else "no files"
        raise DataError(f"{path} names {what}; paths are relative to the CSV's own folder.")
    return found


def _label(text: str, path: Path) -> str | None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes that could not be decoded
        raise DataError(f"{path} holds the label {text!r}, which is not UTF-8; save the file in that encoding.")
    return None if text in ("", str(UNLABELED)) or text.lower() in UNLABELED_FOLDERS else text
