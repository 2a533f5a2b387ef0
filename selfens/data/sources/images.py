"""A folder of images, or a CSV of file,label.

    photos/cat/1.jpg  photos/dog/2.png  photos/unlabeled/3.jpg  photos/4.jpg   folders are classes; the last two have none
    photos/test/...                                                            next to them: the test set, in class folders
    photos/train/...  photos/test/...  photos/unlabeled/...                    the same one level down
    photos.csv        file,label per line, paths relative to it; an empty label is unknown

`train`, `test`, `val` and `unlabeled` may be upper or lower case. Without test/, val/ is the test set.
"""

import codecs
import csv
import os
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.folders import (
    UNLABELED_FOLDERS,
    FolderOptions,
    LabelByFile,
    all_files,
    file_finder,
    list_folder,
    number_files,
    unlabeled_names,
)
from selfens.data.frames import column_names
from selfens.data.images import SIDE, ImageFiles, decode_all, is_image, notes_on_others, suggested_size
from selfens.data.sources.base import Peek, Source
from selfens.errors import DataError
from selfens.files import check_regular
from selfens.files.tables import read_lines
from selfens.settings import setting


@final
class Images(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(FolderOptions):
        name: ClassVar[str] = "images"
        size: int | None = setting(
            None, "Side of the scaled images in pixels; none: what the encoder needs, else their own, up to 32.", **SIDE
        )

    noun = "a folder or CSV of images"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return os.path.isdir(path) or is_image(path) or (is_csv(path) and _lists_files(path))

    def peek(self) -> Peek:
        train, test = list_images(self.path, self.options.unlabeled)
        side = self._side([*train, *test])
        if all(name.isdigit() or len(name) == 1 for name in filter(None, train.values())):
            return Peek(len(train), side, why="because the classes are numbers or letters")
        why = "because image files are assumed to be photos (set views.flip=false if left and right matter)"
        return Peek(len(train), side, flips=True, why=why)

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        train, test = list_images(self.path, self.options.unlabeled)
        data = self._decoded([*train, *test], side, progress)
        classes, labels, is_test = number_files(train, test, [Path(name) for name in data.ids], "image")
        source = self.options.changed({"size": data.raw.shape[-1]})
        notes = notes_on_others(self.path)
        return replace(data, labels=labels, is_test=is_test, classes=classes, source=source, notes=notes)

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        """Read every image, whatever the name of its folder."""
        return self._decoded(all_images(self.path), side, progress)

    def browse(self, *, side: int | None) -> Dataset:
        """Every image, decoded when it is asked for; unreadable ones are blank."""
        train, test = list_images(self.path, self.options.unlabeled)
        files = [*train, *test]
        classes, labels, is_test = number_files(train, test, files, "image")
        images = ImageFiles(files, side or self._side(files))
        data = Dataset.unlabeled(images, name=str(self.path), folder=str(self._root), ids=tuple(map(str, files)))
        return replace(data, labels=labels, is_test=is_test, classes=classes, notes=notes_on_others(self.path))

    @property
    def path(self) -> Path:
        return Path(self.options.path)

    @property
    def _root(self) -> Path:
        """The folder that files are named relative to."""
        return self.path if os.path.isdir(self.path) else self.path.parent

    def _decoded(self, files: Sequence[Path], side: int | None, progress: bool) -> Dataset:
        images, readable, failures = decode_all(files, side or self._side(files), self.path, progress)
        ids = tuple(str(files[row]) for row in readable)
        about = {"name": str(self.path), "folder": str(self._root), "ids": ids, "skipped": tuple(failures)}
        return Dataset.unlabeled(images, **about)

    def _side(self, files: Sequence[Path]) -> int:
        size: int = self.options.size or suggested_size(files)
        return size


def is_csv(path: str | Path) -> bool:
    return str(path).lower().endswith(".csv")


def _lists_files(path: Path) -> bool:
    return os.path.isfile(path) and "file" in map(str.lower, column_names(path))


# Which files are images, and of which class


def list_images(source: Path, unlabeled: str | None = None) -> tuple[LabelByFile, LabelByFile]:
    """Return the images of a folder or CSV to train on, and those of a test folder, sorted by path."""
    if is_csv(source):
        return _read_csv(source, unlabeled_names(unlabeled)), {}
    return list_folder(source, is_image, "images (.png, .jpg)", unlabeled)


def all_images(source: Path) -> list[Path]:
    """Return every image of a folder or CSV, or `source` itself if it is an image."""
    return list(_read_csv(source)) if is_csv(source) else all_files(source, is_image, "images")


# CSV files


def read_cells(path: Path, columns: str) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each line that is not empty."""
    try:
        check_regular(path)
        raw = path.read_bytes()
        is_utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        # File names need not be UTF-8.
        text = raw.decode("utf-16") if is_utf16 else raw.decode("utf-8-sig", errors="surrogateescape")
        return list(read_lines(text)[1])
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV of {columns} ({error}).") from None


def _read_csv(path: Path, unlabeled: Set[str] | None = None) -> LabelByFile:
    """Return the files and their labels; without labels if `unlabeled`, the words that mean none, is None."""
    wanted = ("file",) if unlabeled is None else ("file", "label")
    header, *lines = [cells for _, cells in read_cells(path, ",".join(wanted))] or [[]]
    header = [name.lower() for name in header]
    if not set(wanted) <= set(header):
        found = ", ".join(header) or "none"
        raise DataError(f"{path} has the columns {found}; expected {' and '.join(wanted)}.")
    by_file: LabelByFile = {}
    find = file_finder(path.parent)
    for cells in lines:
        line = dict(zip(header, cells, strict=False))
        file, text = find(line.get("file", "")), "" if unlabeled is None else line.get("label", "")
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes that could not be decoded
            raise DataError(f"{path} holds the label {text!r}, which is not UTF-8; save the file as UTF-8.")
        label = (
            None if text in ("", str(UNLABELED)) or text.lower() in UNLABELED_FOLDERS | (unlabeled or set()) else text
        )
        if by_file.setdefault(file, label) != label:
            raise DataError(f"{path} names {file} twice, with the labels '{by_file[file]}' and '{label}'; keep one.")
    missing = [file for file in by_file if not os.path.isfile(file)]
    if missing or not by_file:
        what = f"{len(missing)} files that do not exist, the first {missing[0]}" if missing else "no files"
        raise DataError(f"{path} names {what}; paths are relative to the CSV's own folder.")
    return by_file
