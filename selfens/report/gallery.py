"""Galleries: rows to look at, as images with captions, or as lines of a table if the rows are not images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import Dataset
from selfens.data.rows import Source
from selfens.report.render import shown
from selfens.tools.audit import Audit, Probabilities, Suggestions

MAX_ENTRIES = 50
MAX_SCALED = 10_000  # rows from which the scale of brightness is taken
MAX_SIDE = 64
SMOOTH_FROM = 48  # pixels a side; smaller images are shown with their pixels as squares


@dataclass(frozen=True)
class Entry:
    """One row: its file's name or its number, the whole path, its picture (if it is one), and what is said of it."""

    label: str
    path: str
    picture: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Gallery:
    title: str
    note: str
    headers: tuple[str, ...]
    """Of the texts of each entry."""
    entries: list[Entry]
    total: int
    """How many rows were ranked, of which only the first have entries."""
    pixelated: bool


def audit_gallery(audit: Audit, dataset: Dataset, how: str = "") -> Gallery:
    """The disputed labels, most suspicious first; `how` says where the probabilities came from.

    If none is disputed, as is common after training on these very labels, the least certain ones.
    """
    disputed = np.flatnonzero(audit.suggested != audit.labels)
    places = disputed if len(disputed) else np.arange(len(audit.rows))[:MAX_ENTRIES]
    columns = {
        "given": [dataset.classes[number] for number in audit.labels[places]],
        "suggested": [dataset.classes[number] for number in audit.suggested[places]],
        "score": [f"{score:.2f}" for score in audit.scores[places]],
    }
    title = "Labels that look wrong" if len(disputed) else "Labels that are least certain"
    note = f"The score runs from −1 (certainly wrong) to 1 (certainly right). {how}".strip()
    return _gallery(dataset, audit.rows[places], columns, title, note)


def suggestions_gallery(found: Suggestions, dataset: Dataset, title: str, *, test: bool = False) -> Gallery:
    """The rows that are least certain; `test`: they are test rows, not training rows."""
    columns = {
        "predicted": [dataset.classes[number] for number in found.predicted],
        "uncertainty": [f"{value:.2f}" for value in found.uncertainty],
    }
    note = "Uncertainty runs from 0 (certain) to 1 (all classes equally probable). The predicted classes take turns."
    return _gallery(dataset, found.rows, columns, title, note, test=test)


def mistakes_gallery(dataset: Dataset, probabilities: Probabilities) -> Gallery:
    """The misclassified test rows, most confident first."""
    predicted, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong = np.flatnonzero(predicted != dataset.test_labels)
    rows = wrong[np.argsort(-sure[wrong], kind="stable")]
    columns = {
        "true": [dataset.classes[number] for number in dataset.test_labels[rows]],
        "predicted": [dataset.classes[number] for number in predicted[rows]],
        "probability": [f"{each:.3f}" for each in sure[rows]],
    }
    note = "Misclassified test rows, most confident first."
    return _gallery(dataset, rows, columns, "Most confident mistakes", note, test=True)


def _gallery(
    dataset: Dataset,
    rows: NDArray[np.int64],
    columns: Mapping[str, Sequence[str]],
    title: str,
    note: str,
    *,
    test: bool = False,
) -> Gallery:
    """The first rows of a ranking, with what `columns` say of them."""
    inputs, files = (dataset.test_inputs, dataset.test_row_names) if test else (dataset.inputs, dataset.row_names)
    draw = pictures(inputs) if inputs.ndim == 4 else lambda row: ""
    entries = []
    for place, row in enumerate(rows[:MAX_ENTRIES].tolist()):
        path = shown(files[row]) if files else f"row {row}"
        texts = tuple(shown(column[place]) for column in columns.values())
        entries.append(Entry(Path(path).name, path, draw(row), texts))
    pixelated = inputs.ndim == 4 and max(inputs.shape[2:]) < SMOOTH_FROM
    return Gallery(title, note, tuple(columns), entries, len(rows), pixelated)


def pictures(inputs: Source) -> Callable[[int], str]:
    """A function from a row to its image as a PNG in a data: address, on one scale of brightness for all rows.

    The scale comes from a sample of the rows, since the inputs may be larger than memory.
    """
    some = inputs[:: 1 + len(inputs) // MAX_SCALED]
    low, high = min(0.0, float(some.min(initial=0))), float(some.max(initial=0))
    scale = 255.0 / (high - low) if high > low else 1.0

    def picture(row: int) -> str:
        pixels = ((inputs[row].astype(np.float64) - low) * scale).round().clip(0, 255).astype(np.uint8)
        return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"

    return picture


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """[channels, height, width] as RGB or RGBA if it has three or four channels, otherwise as grey."""
    from PIL import Image

    coloured = len(pixels) in (3, 4)
    image = Image.fromarray(pixels.transpose(1, 2, 0) if coloured else pixels.mean(axis=0).astype(np.uint8))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
