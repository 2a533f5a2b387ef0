"""Galleries: rows to look at, as images with captions, or as lines of a table if the rows are not images."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import Dataset
from selfens.data.folder import is_csv
from selfens.report.render import shown
from selfens.tools.audit import Audit, Probabilities, Rows, Suggestions

MAX_ENTRIES = 50
MAX_SIDE = 64
CELL_LIMIT = 16  # characters
SMOOTH_FROM = 48  # pixels a side; smaller images are shown with their pixels as squares


@dataclass(frozen=True)
class Gallery:
    title: str
    note: str
    headers: list[str]
    """Of the texts of each entry; of a table, what is said of the row, then some of its cells."""
    entries: list[tuple[str, str, tuple[str, ...]]]
    """Of each row: its file or its number, its picture (empty if it is none), and what is said of it."""
    total: int
    """How many rows were ranked, of which only the first have entries."""
    pixelated: bool
    identifier: str = ""
    """The header of what identifies the rows of a table."""


def audit_gallery(audit: Audit, dataset: Dataset, how: str = "") -> Gallery:
    """The labels, most suspicious first; `how` says where the probabilities came from."""
    disputed = f"{len(audit.disputed):,} labels are disputed: another class is more probable."
    if not len(audit.disputed):
        disputed = "No label is disputed; these are the least certain ones."
    note = f"{disputed} The score runs from −1 (certainly wrong) to 1 (certainly right). {how}"
    columns = {"given": audit.labels, "suggested": audit.suggested, "score": audit.scores}
    return _gallery("Most suspicious labels", note, dataset, audit.rows, columns)


def suggestions_gallery(found: Suggestions, dataset: Dataset, title: str, *, test: bool = False) -> Gallery:
    """The rows that are least certain; `test`: they are test rows, not training rows."""
    note = "Uncertainty runs from 0 (certain) to 1 (all classes equally probable). The predicted classes take turns."
    columns = {"predicted": found.predicted, "uncertainty": found.uncertainty}
    return _gallery(title, note, dataset, found.rows, columns, test=test)


def mistakes_gallery(dataset: Dataset, probabilities: Probabilities) -> Gallery:
    """The misclassified test rows, most confident first."""
    predicted, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong = np.flatnonzero(predicted != dataset.test_labels)
    rows = wrong[np.argsort(-sure[wrong], kind="stable")]
    columns = {"true": dataset.test_labels[rows], "predicted": predicted[rows], "probability": sure[rows]}
    note = "Misclassified test rows, most confident first."
    return _gallery("Most confident mistakes", note, dataset, rows, columns, test=True)


def _gallery(
    title: str, note: str, dataset: Dataset, rows: Rows, columns: dict[str, NDArray[Any]], *, test: bool = False
) -> Gallery:
    """The first rows of a ranking, with what `columns` say of them: classes by their numbers, or measures."""
    inputs, files = dataset.shown(test=test), dataset.test_row_names if test else dataset.row_names
    numbers = dataset.test_row_numbers if test else dataset.row_numbers
    first, is_images = rows[:MAX_ENTRIES], inputs.ndim == 4
    root = f"{Path(dataset.name).parent if is_csv(dataset.name) else Path(dataset.name)}/"
    if any(files[row].startswith(root) for row in first if files):
        note = f"{note} Files are in {shown(root.rstrip('/'))}."
    drawn = pictures(inputs[first]) if is_images else [""] * len(first)
    entries, cells, identifier = [], dict[str, list[str]](), ""
    if dataset.columns is not None and dataset.table is not None and numbers is not None:
        cells, identifier = dataset.columns.cells(dataset.table, numbers[first]), dataset.columns.header * bool(files)
    for place, (row, picture, *values) in enumerate(zip(first.tolist(), drawn, *columns.values(), strict=False)):
        texts = tuple(
            f"{value:.2f}".replace("-", "−") if isinstance(value, np.floating) else shown(dataset.classes[value])
            for value in values
        )
        texts += tuple(shown(column[place], CELL_LIMIT) for column in cells.values())
        number = row if numbers is None else numbers[row]
        entries.append((shown(files[row].removeprefix(root)) if files else f"row {number:,}", picture, texts))
    pixelated = is_images and max(inputs.shape[2:]) < SMOOTH_FROM
    headers = [*columns, *(shown(name, CELL_LIMIT) for name in cells)]
    return Gallery(title, note, headers, entries, len(rows), pixelated, shown(identifier, CELL_LIMIT))


def pictures(images: NDArray[Any]) -> list[str]:
    """Images as PNGs in data: addresses, on one scale of brightness for all of them."""
    low, high = min(0.0, float(images.min(initial=0))), float(images.max(initial=0))
    scale = 255.0 / (high - low) if high > low else 1.0
    pixels = ((images.astype(np.float64) - low) * scale).round().astype(np.uint8)
    return [f"data:image/png;base64,{base64.b64encode(_png(each)).decode()}" for each in pixels]


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """[channels, height, width] as RGB or RGBA if it has three or four channels, otherwise as gray."""
    from PIL import Image

    colored = len(pixels) in (3, 4)
    image = Image.fromarray(pixels.transpose(1, 2, 0) if colored else pixels.mean(axis=0).astype(np.uint8))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
