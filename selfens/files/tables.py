"""The tables that commands write as CSV files, and which files they may replace: none that somebody has worked on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfens.errors import DataError
from selfens.files.tensors import write_atomically


def cells(values: Iterable[float]) -> list[str]:
    """Numbers as cells of a CSV; NaN is an empty cell."""
    return ["" if np.isnan(value) else f"{value:.6f}" for value in values]


def write_csv(path: Path, columns: Mapping[str, Iterable[Any]]) -> None:
    """A table at `path`, whole or not at all; a pipe or device such as /dev/stdout is written to directly."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode("utf-8", "surrogateescape")
    if path.is_file() or not path.exists():
        write_atomically(path.resolve() if path.is_symlink() else path, content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} could not be written ({error.strerror}).") from None


def check_replaceable(path: Path, own: Sequence[str], labels: Mapping[int, str] | None = None) -> None:
    """Refuse to replace a file that is not a table beginning with our `own` columns, or that has labels put in by hand.

    labels  what we write ourselves into the column 'label', by row; any other label is somebody's work
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
            f"{path} exists and is not a table that this command writes ({','.join(own)}); choose another file name."
        )
    if labels is None:
        return
    row, label = header.index("row"), header.index("label")
    known = {str(number): name for number, name in labels.items()}
    changed = sum(known.get(line[row], "") != line[label] for line in lines if len(line) > max(row, label))
    if changed:
        raise DataError(
            f"{path} holds labels that are not this run's ({changed:,}): corrections by hand, or another run's; choose another "
            "file name, or move that file away."
        )
