"""Galleries: rows to look at, as images with captions, or as lines of a table if the rows are not images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfens.data.dataset import Dataset, Labels
from selfens.data.rows import Source
from selfens.report.render import shown
from selfens.tools.audit import positions_within_groups

SHOWN_FIRST = 24
MAX_ENTRIES = 144
MAX_SCALED = 10_000  # rows from which the scale of brightness is taken
MAX_SIDE = 64
SMOOTH_FROM = 48  # pixels a side; smaller images are shown with their pixels as squares


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row, in words."""

    row: int
    given: str
    predicted: str
    measure: str
    wrong: bool
    file: str
    group: int
    """The class under which the filter finds it."""
    picture: str
    first: bool
    """Whether it is among those shown before anything is filtered."""

    @property
    def label(self) -> str:
        """The last part of the file's path, or the number of the row."""
        return Path(self.file).name if self.file else f"row {self.row}"


@dataclass(frozen=True, kw_only=True)
class Gallery:
    title: str
    note: str
    given_word: str
    """What labels are called here; without it, there are none to show."""
    predicted_word: str = "predicted"
    measure_word: str = "probability"
    entries: tuple[Entry, ...]
    totals: tuple[int, ...]
    """How many rows of each class were ranked, of which only some have entries."""
    classes: tuple[str, ...]
    images: bool
    pixelated: bool

    @property
    def groups(self) -> list[tuple[int, str, int]]:
        """Number, name and count of each class that has entries; the count is of all its rows."""
        numbers = sorted({entry.group for entry in self.entries})
        return [(each, shown(self.classes[each]), self.totals[each]) for each in numbers]

    @property
    def shown_first(self) -> int:
        """How many entries are shown before anything is filtered."""
        return sum(entry.first for entry in self.entries)


def gallery(
    dataset: Dataset,
    rows: NDArray[np.int64],
    predicted: Labels,
    given: Labels | None,
    measure: Callable[[int], str],
    *,
    budget: int,
    test: bool = False,
    shown_first: int = SHOWN_FIRST,
    **words: str,
) -> Gallery:
    """The first rows of a ranking, and beyond them the first of each class, as far as `budget` bytes of pictures go.

    rows         in the order of the ranking; `predicted` and `given` are their classes
    measure      what is said of a place in the ranking
    test         they are test rows, not training rows
    words        title, note and words of the gallery
    shown_first  how many are shown before anything is filtered
    """
    inputs, files = (dataset.test_inputs, dataset.test_row_names) if test else (dataset.inputs, dataset.row_names)
    groups = predicted if given is None else given
    is_images = inputs.ndim == 4
    draw = pictures(inputs) if is_images else lambda row: ""
    entries: dict[int, Entry] = {}
    for place in _by_urgency(groups, shown_first)[: max(MAX_ENTRIES, shown_first)]:
        row = int(rows[place])
        picture = draw(row)
        budget -= len(picture)
        if budget < 0:
            break
        entries[place] = Entry(
            row=row,
            given="" if given is None else shown(dataset.classes[given[place]]),
            predicted=shown(dataset.classes[predicted[place]]),
            measure=measure(place),
            wrong=given is not None and bool(given[place] != predicted[place]),
            file=shown(files[row]) if files else "",
            group=int(groups[place]),
            picture=picture,
            first=place < shown_first,
        )
    return Gallery(
        entries=tuple(entries[place] for place in sorted(entries)),
        totals=tuple(np.bincount(groups).tolist()),
        classes=dataset.classes,
        images=is_images,
        pixelated=is_images and max(inputs.shape[2:]) < SMOOTH_FROM,
        **words,
    )


def _by_urgency(groups: NDArray[np.int64], shown_first: int) -> list[int]:
    """The first few places of a ranking, then the classes in turn."""
    turns = positions_within_groups(groups)[shown_first:]
    rest = np.argsort(turns, kind="stable") + shown_first
    return [*range(min(shown_first, len(groups))), *rest.tolist()]


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
