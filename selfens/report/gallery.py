"""Galleries: rows to look at, as images with captions, or as lines of a table where the rows are not images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfens.data.rows import Source
from selfens.report.render import shown
from selfens.tools.audit import positions_within_groups

SHOWN_FIRST = 24
MOST_ENTRIES = 144
MOST_SCALED = 10_000  # rows from which the scale of brightness is taken
LARGEST_SIDE = 64
SMOOTH_FROM = 48  # pixels a side; smaller images are shown as the squares they are


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row, in words."""

    row: int
    given: str = ""
    predicted: str
    measure: str
    wrong: bool = False
    file: str = ""
    group: int = 0
    """The class under which the filter finds it."""
    picture: str = ""
    first: bool = False
    """Whether it is among those shown before anything is filtered."""

    @property
    def label(self) -> str:
        """The last part of the file's path, or the number of the row."""
        return Path(self.file).name if self.file else f"row {self.row}"


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Entries in their order. The words say what `given` and `predicted` are here; no `given_word`, none is known."""

    title: str
    note: str = ""
    given_word: str
    predicted_word: str = "predicted"
    measure_word: str
    entries: tuple[Entry, ...]
    totals: tuple[int, ...]
    """How many rows of each class were ranked, more than there are entries for."""
    classes: tuple[str, ...]
    images: bool
    pixelated: bool = False

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
    groups: NDArray[np.int64],
    entry: Callable[[int], Entry],
    inputs: Source,
    budget: int,
    *,
    shown_first: int = SHOWN_FIRST,
    **words: Any,
) -> Gallery:
    """The first of a ranking, and beyond them the first of each class, as far as `budget` bytes of pictures go.

    groups       the class under which each place of the ranking is found
    entry        what is said of a place of the ranking
    shown_first  how many of the ranking are shown before anything is filtered
    """
    is_images = inputs.ndim == 4
    chosen: dict[int, Entry] = {}
    draw = pictures(inputs) if is_images else lambda row: ""
    for place in _by_urgency(groups, shown_first)[: max(MOST_ENTRIES, shown_first)]:
        words_only = entry(place)
        picture = draw(words_only.row)
        budget -= len(picture)
        if budget < 0:
            break
        chosen[place] = replace(words_only, group=int(groups[place]), picture=picture, first=place < shown_first)
    pixelated = is_images and max(inputs.shape[2:]) < SMOOTH_FROM
    kept = tuple(chosen[place] for place in sorted(chosen))
    totals = tuple(np.bincount(groups).tolist())
    return Gallery(entries=kept, totals=totals, images=is_images, pixelated=pixelated, **words)


def _by_urgency(groups: NDArray[np.int64], shown_first: int) -> list[int]:
    """The first few places of a ranking, then the classes in turn."""
    turns = positions_within_groups(groups)[shown_first:]
    rest = np.argsort(turns, kind="stable") + shown_first
    return [*range(min(shown_first, len(groups))), *rest.tolist()]


def pictures(inputs: Source) -> Callable[[int], str]:
    """A function from a row to its image as a PNG in a data: address, on one scale of brightness for all rows.

    The scale is that of rows spread evenly over the inputs, which may be larger than memory.
    """
    some = inputs[:: 1 + len(inputs) // MOST_SCALED]
    low, high = min(0.0, float(some.min(initial=0))), float(some.max(initial=0))
    scale = 255.0 / (high - low) if high > low else 1.0

    def picture(row: int) -> str:
        pixels = ((inputs[row].astype(np.float64) - low) * scale).round().clip(0, 255).astype(np.uint8)
        return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"

    return picture


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """[channels, height, width] as RGB or RGBA where it has three or four channels, as grey otherwise."""
    from PIL import Image

    coloured = len(pixels) in (3, 4)
    image = Image.fromarray(pixels.transpose(1, 2, 0) if coloured else pixels.mean(axis=0).astype(np.uint8))
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
