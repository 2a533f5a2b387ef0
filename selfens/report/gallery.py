"""Galleries: rows to look at, as images with captions, or as lines of a table if the rows are not images."""

import base64
import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.rows import Rows
from selfens.encoders.dataset import EncodedDataset
from selfens.report.render import END_ISOLATE, ISOLATE, shown
from selfens.runs.evidence import Evidence
from selfens.runs.novelty import Novelty
from selfens.runs.statistics import tempered
from selfens.tools.audit import Audit, Suggestions

MAX_ENTRIES = 50
MAX_SIDE = 64
CELL_LIMIT, TEXT_LIMIT = 16, 500  # characters
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
    passages: list[str] = field(default_factory=list)
    """Each row's text, if rows are texts."""


def audit_gallery(audit: Audit, data: EncodedDataset, how: str = "", *, is_in_sample: bool = False) -> Gallery:
    """Show the labels, most suspicious first; `how` says where the probabilities came from."""
    disputed = f"{len(audit.disputed):,} labels are disputed: another class is more probable."
    if not len(audit.disputed):
        none = "The network agrees with every label that it was trained on, which says little about them"
        disputed = f"{none if is_in_sample else 'No label is disputed'}; these are the least certain ones."
    note = f"{disputed} The score ranges from −1 (certainly wrong) to 1 (certainly right). {how}"
    columns = {"given": audit.labels, "suggested": audit.suggested, "score": audit.scores}
    return _gallery("Most suspicious labels", note, data, audit.rows, columns)


def suggestions_gallery(found: Suggestions, data: EncodedDataset) -> Gallery:
    """Show the unlabeled rows to label next."""
    note = "Uncertainty ranges from 0 (certain) to 1 (all classes equally probable). The predicted classes take turns."
    columns = {"predicted": found.predicted, "uncertainty": found.uncertainty}
    return _gallery("Rows to label next", note, data, found.rows, columns)


def evidence_galleries(evidence: Evidence, data: EncodedDataset) -> list[Gallery]:
    """Show rows that the model had not seen: the least certain ones, and the mistakes."""
    probabilities, is_test = tempered(evidence.probabilities, evidence.temperature), not evidence.folds
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)

    def gallery(title: str, note: str, order: Rows) -> Gallery:
        columns = {"true": evidence.labels[order], "predicted": predicted[order], "probability": confidence[order]}
        return _gallery(title, note, data, evidence.rows[order], columns, test=is_test)

    wrong = np.flatnonzero(predicted != evidence.labels)
    seen = "test rows" if is_test else "labeled rows, each by a model that was not trained on it"
    return [
        gallery(
            "Most uncertain rows", f"Predictions of {seen}, least certain first.", np.argsort(confidence, kind="stable")
        ),
        gallery(
            "Most confident mistakes",
            f"Misclassified {seen}, most confident first.",
            wrong[np.argsort(-confidence[wrong], kind="stable")],
        ),
    ]


def novelty_gallery(novelty: Novelty, data: EncodedDataset) -> Gallery:
    """Show the training rows that are least like the others."""
    scores = novelty.score(data.inputs)
    order = np.argsort(-scores, kind="stable")
    note = "Training rows that are least like the others: junk, rare kinds, or another subject. 1: farther than all others."
    return _gallery("Least like the others", note, data, order[:MAX_ENTRIES], {"novelty": scores[order]})


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
    passages = [
        shown(text, TEXT_LIMIT).strip(ISOLATE + END_ISOLATE) for text in seen.texts or ()
    ]  # dir="auto" isolates
    return Gallery(title, note, headers, entries, len(rows), is_pixelated, id_header, passages)


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
