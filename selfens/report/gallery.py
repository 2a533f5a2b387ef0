"""Galleries: rows to look at, as images with captions, or as lines of a table if the rows are not images."""

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfens.data.images import thumbnail
from selfens.data.inspection import Group, Inspection, row_names
from selfens.data.rows import Rows
from selfens.encoders.dataset import EncodedDataset
from selfens.errors import plural
from selfens.report.render import END_ISOLATE, ISOLATE, shown
from selfens.runs.evidence import Evidence
from selfens.runs.novelty import Novelty
from selfens.runs.statistics import tempered
from selfens.tools.audit import Audit
from selfens.tools.selection import Suggestions

MAX_ENTRIES = 50
FARTHEST = 10  # rows, if none is far from the others
MAX_SIDE, FILE_SIDE = 64, 192  # pixels, of images in memory and in files
CELL_LIMIT, TEXT_LIMIT = 16, 500  # characters
SMOOTH_FROM = 48  # pixels a side; smaller images are shown with square pixels


class Entry(NamedTuple):
    name: str
    """The row's id or number."""
    picture: str
    """A data: address; empty if it has none."""
    file: str
    """The address of the file that it is; empty if it is none."""
    texts: list[str]


@dataclass(frozen=True)
class Gallery:
    title: str
    note: str
    headers: list[str]
    """Headers of each entry's texts: the columns of the ranking, then some of the row's cells."""
    entries: list[Entry]
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
    note = f"{disputed} The score ranges from 0 (certainly wrong) to 1 (certainly right). {how}"
    columns = {"given": audit.labels, "suggested": audit.suggested, "score": audit.scores}
    return _gallery("Most suspicious labels", note, data, data.dataset.train_rows[audit.rows], columns)


def suggestions_gallery(found: Suggestions, data: EncodedDataset) -> Gallery:
    """Show the unlabeled rows to label next."""
    note = "The first ones stand for the most rows that are not labeled yet."
    columns: dict[str, NDArray[Any]] = {}
    if not np.isnan(found.uncertainty).any():
        note = f"{note} Uncertainty ranges from 0 (certain) to 1 (all classes equally probable)."
        columns = {"predicted": found.predicted, "uncertainty": found.uncertainty}
    return _gallery("Rows to label next", note, data, data.dataset.train_rows[found.rows], columns)


def evidence_galleries(evidence: Evidence, data: EncodedDataset) -> list[Gallery]:
    """Show rows that the model had not seen: the least certain ones, and the mistakes."""
    probabilities, is_test = tempered(evidence.probabilities, evidence.temperature), not evidence.folds
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    rows = (data.dataset.test_rows if is_test else data.dataset.train_rows)[evidence.rows]

    def gallery(title: str, note: str, order: Rows) -> Gallery:
        columns = {"true": evidence.labels[order], "predicted": predicted[order], "probability": confidence[order]}
        return _gallery(title, note, data, rows[order], columns)

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
    """Show the training rows that are far from all others, or if there are none, the farthest."""
    distances = novelty.remoteness(data.inputs)
    order, count = np.argsort(-distances, kind="stable"), int((distances > 1).sum())
    note = f"No row is far from all others; these {FARTHEST} are the farthest."
    if count:
        note = f"{plural(count, 'training row')} far from all others: junk, rare kinds, or another subject."
    note = f"{note} Rows beyond a distance of 1 are far from all others."
    order = order[: count or FARTHEST]
    rows = data.dataset.train_rows[order]
    return _gallery("Least like the others", note, data, rows, {"distance": distances[order]})


def inspection_gallery(inspection: Inspection, data: EncodedDataset) -> Gallery:
    """Show copies, look-alikes and blank images, the groups that make labels or errors wrong first."""
    kinds = {
        "different labels": inspection.conflicts,
        "training and test": inspection.across,
        "copies": inspection.copies,
        "nearly the same": inspection.alike,
        "one color": (inspection.blank,) if inspection.blank else (),
    }
    groups, holding = dict[Group, str](), dict[int, list[Group]]()  # what to show, and which of these hold a row
    for kind, found in kinds.items():
        for group in found:
            if not any(set(group) <= set(other) for other in holding.get(group[0], [])):
                groups[group] = kind
                for row in group:
                    holding.setdefault(row, []).append(group)
    rows = np.array([row for group in groups for row in group], dtype=np.int64)
    names = [*data.dataset.classes, "unlabeled"]
    columns = {
        "group": np.array(
            [f"{number}: {kind}" for number, (group, kind) in enumerate(groups.items(), 1) for _ in group]
        ),
        "label": np.array([names[label] for label in data.dataset.labels[rows]]),
    }
    note = "Nothing is removed. Correct or delete what should not be there, and train again."
    return _gallery("Copies and other surprises", note, data, rows, columns)


def _gallery(title: str, note: str, data: EncodedDataset, rows: Rows, columns: dict[str, NDArray[Any]]) -> Gallery:
    """Show the top rows of a ranking; `columns` hold class numbers, measures or words."""
    dataset, top = data.dataset, rows[:MAX_ENTRIES]
    names = row_names(dataset, top.tolist())
    root = f"{dataset.folder}/" if dataset.folder else ""
    if root and any(name.startswith(root) for name in names):
        note = f"{note} Files are in {shown(dataset.folder)}."
    seen = data.encoder.show(dataset.raw, top)
    drawn = [""] * len(top) if seen.images is None else pictures(seen.images)
    entries = []
    for position, (name, picture, *values) in enumerate(zip(names, drawn, *columns.values(), strict=False)):
        file = name if picture and root and os.path.isfile(name) else ""
        texts = [_text(value, dataset.classes) for value in values]
        texts += [shown(cells[position], CELL_LIMIT) for cells in seen.cells.values()]
        whole = _whole(file) or picture
        entries.append(Entry(shown(name.removeprefix(root)), whole, Path(file).as_uri() if file else "", texts))
    is_pixelated = seen.images is not None and max(seen.images.shape[2:]) < SMOOTH_FROM
    headers = [*columns, *(shown(name, CELL_LIMIT) for name in seen.cells)]
    id_header = shown(dataset.id_header, CELL_LIMIT) if dataset.ids and seen.images is None else ""
    passages = [
        shown(text, TEXT_LIMIT).strip(ISOLATE + END_ISOLATE) for text in seen.texts or ()
    ]  # dir="auto" isolates
    return Gallery(title, note, headers, entries, len(rows), is_pixelated, id_header, passages)


def _text(value: Any, classes: Sequence[str]) -> str:
    if isinstance(value, np.floating):
        return f"{value:.2f}".replace("-", "−")
    return shown(value if isinstance(value, str) else classes[value])


def _whole(file: str) -> str:
    """Return the whole picture in a file, of which the network sees a square; "" if it cannot be read any more."""
    try:
        return _address(thumbnail(Path(file), FILE_SIDE), "jpeg") if file else ""
    except Exception:  # Pillow's decoders raise anything for damaged files
        return ""


def pictures(images: NDArray[Any]) -> list[str]:
    """Return images as PNGs in data: addresses, on one scale of brightness."""
    low, high = min(0.0, float(images.min(initial=0))), float(images.max(initial=0))
    scale = 255.0 / (high - low) if high > low else 1.0
    pixels = ((images.astype(np.float64) - low) * scale).round().astype(np.uint8)
    return [_address(_png(each), "png") for each in pixels]


def _address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode [channels, height, width] as RGB or RGBA if there are three or four channels, otherwise as gray."""
    from PIL import Image

    is_color = len(pixels) in (3, 4)
    image = Image.fromarray(pixels.transpose(1, 2, 0) if is_color else pixels.mean(axis=0).astype(np.uint8))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
