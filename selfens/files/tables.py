"""CSV files: reading those of users, and writing tables. A file that somebody has edited is never replaced.

A CSV or a spreadsheet would corrupt names that hold a newline or bytes that are not UTF-8, or begin like a formula. They are
written as JSON strings, with their quotes, and only such cells are read back as JSON.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfens.errors import UNSEEN, DataError, plural

NOT_UTF8 = "it is not UTF-8 text; save it as UTF-8"
FORMULA = re.compile(r"(^|[;\t])\s*[=+\-@]")  # to some spreadsheets, a semicolon ends a cell
NUMBER = re.compile(r"-?[0-9.]+")
csv.field_size_limit(2**31 - 1)  # a cell may hold a long text


def read_lines(text: str) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """Return the separator of a CSV, and the number and the cells of each line that is not empty.

    The separator is the one that gives the first line the most cells.
    """

    def lines(mark: str, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=strict)
        for line in reader:
            if any(cells := [from_cell(cell.strip()) for cell in line]):
                yield reader.line_num, cells

    if "\0" in text:
        raise ValueError(NOT_UTF8)
    separator = max(",;\t|", key=lambda mark: len(next(lines(mark), (0, []))[1]))
    return separator, lines(separator, strict=True)


def as_cell(text: str) -> str:
    """Return the text, or a JSON string if the text would not survive in a cell."""
    is_formula = FORMULA.search(text) and not NUMBER.fullmatch(text)
    if not (is_formula or UNSEEN.search(text) or text.startswith('"') or text != text.strip()):
        return text
    quoted = json.dumps(text, ensure_ascii=False).replace(";", "\\u003b")
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def from_cell(cell: str) -> str:
    """Invert `as_cell`. Other cells, such as a name that somebody typed in quotes, stay unchanged."""
    try:
        text = json.loads(cell) if cell.startswith('"') else cell
    except (ValueError, RecursionError):
        return cell
    return text if as_cell(text) == cell else cell


def cells(values: Iterable[float]) -> list[str]:
    """Format numbers as cells; NaN is an empty cell."""
    return ["" if np.isnan(value) else f"{value:.6f}" for value in values]


def write_csv(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """Write a table of columns."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(as_cell, columns))
    writer.writerows([as_cell(str(value)) for value in line] for line in zip(*columns.values(), strict=True))
    write_output(path, text.getvalue().encode())


def write_output(path: Path, content: bytes, beginning: bytes = b"") -> None:
    """Write a file for the user atomically; a pipe or device such as /dev/stdout is written to directly.

    An existing file that does not begin with `beginning`, as all files of its kind do, is not replaced.
    """
    from selfens.files.tensors import write_atomically, write_errors  # reading a CSV must not wait for torch

    target = _behind_links(path)
    if target.exists() and not target.is_file():
        with write_errors(path):
            path.write_bytes(content)
        return
    if target.exists():
        with open(target, "rb") as file:
            if file.read(len(beginning)) not in (b"", beginning):
                raise DataError(f"{path} exists and is not a file that this command writes; choose another file name.")
    write_atomically(target, content)


def _behind_links(path: Path) -> Path:
    """Return the file that a link points to, so that writing keeps the link."""
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise DataError(f"{path} is a link that leads to itself; remove it, or choose another file name.")
    return target


def check_replaceable(path: Path, columns: Sequence[str], labels: Mapping[int, str] | None = None) -> None:
    """Refuse to replace a file that is not a table beginning with `columns`, or whose labels differ from `labels`, by row."""
    if not _behind_links(path).is_file() or path.stat().st_size == 0:
        return
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
    except (csv.Error, ValueError):
        header, lines = [], []
    if header[: len(columns)] != list(columns):
        expected = f"a table that this command writes ({','.join(columns)})"
        raise DataError(f"{path} exists and is not {expected}; choose another file name.")
    if labels is None:
        return
    row, label = header.index("row"), header.index("label")
    known = {str(number): as_cell(name) for number, name in labels.items()}
    changed = sum(known.get(line[row], "") != line[label] for line in lines if len(line) > max(row, label))
    if changed:
        raise DataError(f"{path} has {plural(changed, 'label')} that this run did not write; choose another file name.")
