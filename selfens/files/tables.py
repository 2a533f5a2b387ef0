"""The tables that commands write as CSV files, and which of them a command may replace: none that somebody has worked on."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfens.errors import DataError
from selfens.files.tensors import write_atomically


def cell(value: float) -> str:
    """As a cell of a CSV; nothing where there is no number."""
    return "" if np.isnan(value) else f"{value:.6f}"


def write_csv(path: Path, header: list[str], lines: list[list[Any]]) -> None:
    """A table at `path`, whole or not at all; a pipe or device such as /dev/stdout is written to as it comes."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *lines])
    content = text.getvalue().encode("utf-8", "surrogateescape")
    if path.is_file() or not path.exists():
        write_atomically(path.resolve() if path.is_symlink() else path, content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}).") from None


def check_replaceable(path: Path, own: Sequence[str], labels: Mapping[int, str] | None = None) -> None:
    """Refuse to replace a file that is no table beginning with our `own` columns, or has labels somebody put in.

    labels  what a command itself writes into the column 'label', by row; others are somebody's
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
    except (UnicodeDecodeError, csv.Error, ValueError):
        header, lines = [], []
    if header[: len(own)] != list(own):
        raise DataError(
            f"{path} is there already and is not a table that this command writes ({','.join(own)}); name another by -o."
        )
    if labels is None:
        return
    row, label = header.index("row"), header.index("label")
    changed = sum(labels.get(_number(line[row]), "") != line[label] for line in lines if len(line) > max(row, label))
    if changed:
        count = "a label that was" if changed == 1 else f"{changed:,} labels that were"
        raise DataError(f"{path} holds {count} put in by hand; name another file by -o, or move that one away.")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1
