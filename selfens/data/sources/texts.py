"""A folder of .txt files, laid out like a folder of images (`selfens.data.folders`): each file is one text."""

import codecs
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from selfens.data.dataset import Dataset
from selfens.data.folders import FolderOptions, all_files, list_folder, number_files
from selfens.data.frames import text_frame
from selfens.data.images import is_image
from selfens.data.sources.base import Peek, Source
from selfens.errors import DataError, plural
from selfens.files import check_regular

BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@final
class Texts(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(FolderOptions):
        name: ClassVar[str] = "texts"

    noun = "a folder of .txt files"
    encoder = "columns"

    @classmethod
    def matches(cls, path: Path) -> bool:
        """Match a folder with .txt files and without images: photos may have captions next to them."""
        if not os.path.isdir(path):
            return is_text(path)
        names = [Path(name) for _, _, names in os.walk(path, followlinks=True) for name in names if name[0] != "."]
        return any(map(is_text, names)) and not any(map(is_image, names))

    def peek(self) -> Peek:
        return Peek(rows=len(self._listed()[0]))

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        train, test = self._listed()
        files = [*train, *test]
        data = self._read(files)
        classes, labels, is_test = number_files(train, test, [Path(name) for name in data.ids], "text")
        return replace(data, labels=labels, is_test=is_test, classes=classes)

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        """Read every text, whatever the name of its folder."""
        return self._read(all_files(Path(self.options.path), is_text, "texts (.txt)"))

    def _listed(self) -> tuple[dict[Path, str | None], dict[Path, str | None]]:
        if os.path.isfile(self.options.path):
            raise DataError(f"{self.options.path} is a single text; expected a folder of .txt files per class.")
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
