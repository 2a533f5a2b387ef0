"""A folder of .txt files, laid out like a folder of images (`selfens.data.folders`): each file is one text.

Or a single .txt file to train on: each line is one text. It holds no labels; those are given on a page or in a labels file.
"""

import codecs
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from selfens.data.dataset import Dataset
from selfens.data.folders import FolderOptions, all_files, counts_of_others, kinds, list_folder, number_files
from selfens.data.frames import text_frame
from selfens.data.images import is_image
from selfens.data.sources.base import Peek, Source
from selfens.errors import DataError, plural
from selfens.files import check_regular
from selfens.settings import setting

BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@final
class Texts(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(FolderOptions):
        name: ClassVar[str] = "texts"
        lines: bool = setting(False, "Each line of a .txt file is a text; so it is if a file is trained on.")

    noun = "a folder of .txt files, or one with a text in each line"
    encoder = "columns"

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Match a folder with .txt files and without images: photos may have captions next to them."""
        if not os.path.isdir(path):
            return is_text(path)
        names = [Path(name) for _, _, names in os.walk(path, followlinks=True) for name in names if name[0] != "."]
        return any(map(is_text, names)) and not any(map(is_image, names))

    def peek(self) -> Peek:
        return Peek(rows=len(self._lines().labels) if self._is_file else len(self._listed()[0]))

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        if self._is_file:
            return replace(self._lines(), source=self.options.changed({"lines": True}))
        train, test = self._listed()
        files = [*train, *test]
        data = self._read(files)
        classes, labels, is_test = number_files(train, test, [Path(name) for name in data.ids], "text")
        others = kinds(counts_of_others(Path(self.options.path), is_text, below=True))
        notes = (*data.notes, *([f"left out {others} files, which are not .txt files."] if others else []))
        return replace(data, labels=labels, is_test=is_test, classes=classes, notes=notes)

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        """Read every text, whatever the name of its folder."""
        if self.options.lines and self._is_file:
            return self._lines()
        return self._read(all_files(Path(self.options.path), is_text, "texts (.txt)"))

    @property
    def _is_file(self) -> bool:
        return os.path.isfile(self.options.path)

    def _lines(self) -> Dataset:
        """The lines of a file that are not empty; their numbers count from 0."""
        path = Path(self.options.path)
        try:
            check_regular(path)
            text, is_other = decode(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
        lines = text.splitlines()
        numbers = np.array([number for number, line in enumerate(lines) if line.strip()], dtype=np.int64)
        if not len(numbers):
            raise DataError(f"{path} is empty; expected a text in each line.")
        notes = (f"{path} is not in UTF-8, so it was read as Windows-1252.",) if is_other else ()
        frame = text_frame([lines[number] for number in numbers])
        return Dataset.unlabeled(frame, name=str(path), numbers=numbers, notes=notes)

    def _listed(self) -> tuple[dict[Path, str | None], dict[Path, str | None]]:
        return list_folder(Path(self.options.path), is_text, "texts (.txt)", self.options.unlabeled)

    def _read(self, files: Sequence[Path]) -> Dataset:
        texts, ids, skipped, others = list[str](), list[str](), list[str](), list[str]()
        for file in files:
            try:
                check_regular(file)
                text, is_other = decode(file.read_bytes())
            except (OSError, ValueError) as error:
                skipped.append(f"{file} ({getattr(error, 'strerror', None) or error})")
                continue
            texts.append(text)
            ids.append(str(file))
            others += [str(file)] if is_other else []
        if not texts:
            raise DataError(f"none of the texts in {self.options.path} can be read; the first: {skipped[0]}.")
        first = f"{plural(len(others), 'text')} not in UTF-8, read as Windows-1252" if others else ""
        notes = (f"{first}; the first is {others[0]}.",) if others else ()
        root = Path(self.options.path)
        folder = str(root if os.path.isdir(root) else root.parent)
        about = {"name": str(root), "folder": folder, "ids": tuple(ids), "skipped": tuple(skipped), "notes": notes}
        return Dataset.unlabeled(text_frame(texts), **about)


def is_text(path: Path) -> bool:
    return path.suffix.lower() == ".txt"


def decode(content: bytes) -> tuple[str, bool]:
    """Return a text, and whether its encoding was guessed because it is neither UTF-8 nor marked as UTF-16."""
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text, is_other = content.decode(encoding), False
    except UnicodeDecodeError:
        text, is_other = content.decode("cp1252", errors="replace"), True
    if "\0" in text:
        raise ValueError("it holds zero bytes, so it is not text")
    return text, is_other
