"""Galleries: rows to look at, as images with captions, or as lines of a table if the rows are not images."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.rows import Rows
from selfens.encoders.dataset import EncodedDataset
from selfens.report.render import shown
from selfens.tools.audit import Audit, Probabilities, Suggestions

MAX_ENTRIES = 50
MAX_SIDE = 64
CELL_LIMIT = 16  # characters
SMOOTH_FROM = 48  # pixels a side; smaller images are shown with square pixels


@dataclass(frozen=True)
class Gallery:
    title: str
    note: str
    headers: list[str]
    """Headers of each entry's texts: the columns of the ranking, then some of the row's cells."""
    entries: list[tuple[str, str, list[str]]]
    """Each row's id or number, picture (empty if it has none) and texts."""
    total: int
    """How many rows were ranked; only the first have entries."""
    is_pixelated: bool
    id_header: str = ""


def audit_gallery(audit: Audit, data: EncodedDataset, how: str = "") -> Gallery:
    """Show the labels, most suspicious first; `how` says where the probabilities came from."""
    disputed = f"{len(audit.disputed):,} labels are disputed: another class is more probable."
    if not len(audit.disputed):
        disputed = "No label is disputed; these are the least certain ones."
    note = f"{disputed} The score ranges from −1 (certainly wrong) to 1 (certainly right). {how}"
    columns = {"given": audit.labels, "suggested": audit.suggested, "score": audit.scores}
    return _gallery("Most suspicious labels", note, data, audit.rows, columns)


def suggestions_gallery(found: Suggestions, data: EncodedDataset, *, test: bool = False) -> Gallery:
    """Show the unlabeled rows to label next, or the least certain test rows."""
    title = "Most uncertain test rows" if test else "Rows to label next"
    note = "Uncertainty ranges from 0 (certain) to 1 (all classes equally probable). The predicted classes take turns."
    columns = {"predicted": found.predicted, "uncertainty": found.uncertainty}
    return _gallery(title, note, data, found.rows, columns, test=test)


def mistakes_gallery(data: EncodedDataset, probabilities: Probabilities) -> Gallery:
    """Show the misclassified test rows, most confident first."""
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong = np.flatnonzero(predicted != data.test_labels)
    rows = wrong[np.argsort(-confidence[wrong], kind="stable")]
    columns = {"true": data.test_labels[rows], "predicted": predicted[rows], "probability": confidence[rows]}
    note = "Misclassified test rows, most confident first."
    return _gallery("Most confident mistakes", note, data, rows, columns, test=True)


def _gallery(
    title: str, note: str, data: EncodedDataset, rows: Rows, columns: dict[str, NDArray[Any]], *, test: bool = False
) -> Gallery:
    """Show the top rows of a ranking; `columns` hold class numbers or measures of its rows."""
    dataset, top = data.dataset, rows[:MAX_ENTRIES]
    numbers, ids = dataset.row_numbers(test=test)[top], dataset.row_ids(test=test)
    names = [ids[row] for row in top] if ids else [f"row {number:,}" for number in numbers]
    root = f"{dataset.folder}/" if dataset.folder else ""
    if root and any(name.startswith(root) for name in names):
        note = f"{note} Files are in {shown(dataset.folder)}."
    seen = data.encoder.show(dataset.raw, (dataset.test_rows if test else dataset.train_rows)[top])
    drawn = [""] * len(top) if seen.images is None else pictures(seen.images)
    entries = []
    for position, (name, picture, *values) in enumerate(zip(names, drawn, *columns.values(), strict=False)):
        texts = [
            f"{value:.2f}".replace("-", "−") if isinstance(value, np.floating) else shown(dataset.classes[value])
            for value in values
        ]
        texts += [shown(cells[position], CELL_LIMIT) for cells in seen.cells.values()]
        entries.append((shown(name.removeprefix(root)), picture, texts))
    is_pixelated = seen.images is not None and max(seen.images.shape[2:]) < SMOOTH_FROM
    headers = [*columns, *(shown(name, CELL_LIMIT) for name in seen.cells)]
    id_header = shown(dataset.id_header, CELL_LIMIT) if ids and seen.images is None else ""
    return Gallery(title, note, headers, entries, len(rows), is_pixelated, id_header)


def pictures(images: NDArray[Any]) -> list[str]:
    """Return images as PNGs in data: addresses, on one scale of brightness."""
    low, high = min(0.0, float(images.min(initial=0))), float(images.max(initial=0))
    scale = 255.0 / (high - low) if high > low else 1.0
    pixels = ((images.astype(np.float64) - low) * scale).round().astype(np.uint8)
    return [f"data:image/png;base64,{base64.b64encode(_png(each)).decode()}" for each in pixels]


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode [channels, height, width] as RGB or RGBA if there are three or four channels, otherwise as gray."""
    from PIL import Image

    is_color = len(pixels) in (3, 4)
    image = Image.fromarray(pixels.transpose(1, 2, 0) if is_color else pixels.mean(axis=0).astype(np.uint8))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
