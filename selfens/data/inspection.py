"""Inspection of the data before training: copies, look-alikes and blank images, and the problems that copies cause.

Row numbers are those of a `Dataset`, training and test rows together. Nothing is removed; that is for the user to decide.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import adaptive_avg_pool2d

from selfens.data.cells import TEXT_WORDS, as_text, words_in
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.frames import is_frame, named_texts
from selfens.data.rows import Rows, pieces
from selfens.errors import plural
from selfens.files import check_regular
from selfens.files.tensors import write_atomically

FILE = "inspection.json"
MOST_BYTES = 2**33  # larger data are not inspected, because it would take minutes
LARGEST = 20_000  # rows compared with each other; of more, the labeled ones and an even sample
SIDE = 8  # of the small gray images that are compared
ALIKE = 0.15  # the largest difference of two look-alikes, relative to the contrast of the image
NEAREST = 0.4  # the same, relative to the median distance of an image from its third nearest
NEIGHBOR = 3  # not 1, because each image may exist in several sizes
BLANK = 1.0  # of 255; images with a smaller standard deviation show nothing
NAMED, LONG = 3, 300  # conflicts that are said, and characters of each
SOME = 50  # cells of a column
GRAY = (0.299, 0.587, 0.114)

Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What an inspection found. A group is a tuple of row numbers, ascending."""

    copies: tuple[Group, ...] = ()
    """Rows with the same content."""
    alike: tuple[Group, ...] = ()
    """Images that are nearly the same: resized, or compressed again; texts that differ only in case, spaces and punctuation.
    Of exact copies, only one is included."""
    blank: Group = ()
    """Images of one color."""
    conflicts: tuple[Group, ...] = ()
    """Groups of copies and look-alikes with different labels."""
    across: tuple[Group, ...] = ()
    """Groups of copies and look-alikes that have both training and test rows."""
    far: Group = ()
    """Training rows that are far from all others."""
    compared: int = 0
    """How many rows were compared with each other to find look-alikes; 0 if rows are neither images nor texts."""
    named: tuple[str, ...] = ()
    """The rows of each conflict as a person knows them, with their labels."""
    skipped: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    notes: tuple[str, ...] = ()
    """How the data were read, and which files were left out."""
    files: tuple[str, ...] = ()
    """The file of each row, relative to the folder of the data; empty if rows are not files."""

    def save(self, folder: Path) -> None:
        write_atomically(folder / FILE, (json.dumps(asdict(self)) + "\n").encode())

    @classmethod
    def load(cls, folder: Path, rows: int) -> Inspection | None:
        """Return what `save` wrote for data with this many rows; None if the file is missing or damaged."""
        try:
            check_regular(folder / FILE)
            raw = json.loads((folder / FILE).read_text())
            kinds = ("copies", "alike", "conflicts", "across")
            fields: dict[str, Any] = {name: tuple(_group(group, rows) for group in raw[name]) for name in kinds}
            fields |= {name: _group(raw[name], rows) for name in ("blank", "far")}
            fields |= {name: tuple(map(str, raw[name])) for name in ("named", "skipped", "notes", "files")}
            return cls(**fields, compared=int(raw["compared"]))
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    def lines(self, dataset: Dataset) -> list[str]:
        """Return a few lines for the user, the worst problem first."""

        def example(groups: Sequence[Group]) -> str:
            shown = row_names(dataset, groups[0][:3])
            return f"the first: {', '.join(shown)}{', ...' if len(groups[0]) > 3 else ''}"

        lines = []
        if self.conflicts:
            count = plural(len(self.conflicts), "group")
            shown = "; ".join(name if len(name) <= LONG else f"{name[:LONG]}..." for name in self.named[:NAMED])
            every = f"; {FILE} of the run names all" if len(self.named) > NAMED else ""
            lines.append(f"{count} of copies or look-alikes with different labels; correct them: {shown}{every}.")
        if self.across:
            count = plural(len(self.across), "group")
            lines.append(
                f"{count} of copies or look-alikes in both training and test rows, which makes the test error too low "
                f"({example(self.across)})."
            )
        if self.copies:
            count = plural(sum(len(group) - 1 for group in self.copies), "copy", "copies")
            lines.append(f"{count} of other rows ({example(self.copies)}).")
        if self.alike:
            what = "images" if _are_images(dataset) else "texts"
            lines.append(
                f"{plural(len(self.alike), 'group')} of {what} that are nearly the same ({example(self.alike)})."
            )
        if self.blank:
            lines.append(f"{plural(len(self.blank), 'image')} of one color ({example([self.blank])}).")
        if self.far:
            lines.append(f"{plural(len(self.far), 'row')} far from all others ({example([self.far])}).")
        if self.skipped:
            files = plural(len(self.skipped), "file")
            lines.append(f"left out {files} that could not be read, the first {self.skipped[0]}; run.json lists them.")
        return [*lines, *self.notes]


def _group(raw: Iterable[Any], rows: int) -> Group:
    numbers = tuple(raw)
    if not all(type(number) is int and 0 <= number < rows for number in numbers):
        raise ValueError("numbers of rows")
    return numbers


def row_names(dataset: Dataset, rows: Iterable[int]) -> list[str]:
    """Return the ids of these rows, or their numbers in the user's file."""
    if dataset.ids:
        return [dataset.ids[row] for row in rows]
    if dataset.numbers is not None:
        return [f"row {dataset.numbers[row]:,}" for row in rows]
    # Training and test rows are counted separately.
    return [
        f"test row {np.searchsorted(dataset.test_rows, row):,}"
        if dataset.is_test[row]
        else f"row {np.searchsorted(dataset.train_rows, row):,}"
        for row in rows
    ]


def file_names(dataset: Dataset) -> tuple[str, ...]:
    """Return the file of each row, relative to the folder of the data; empty if rows are not files."""
    return tuple(os.path.relpath(name, dataset.folder) for name in dataset.ids) if dataset.folder else ()


def inspect(dataset: Dataset) -> Inspection:
    """Compare the rows of a dataset with each other."""
    about = Inspection(files=file_names(dataset), skipped=dataset.skipped, notes=dataset.notes)
    if getattr(dataset.raw, "nbytes", 0) > MOST_BYTES:
        return about
    copies = groups_of(dataset.row_hashes())
    repeated = [row for group in copies for row in group[1:]]
    rows = _sample(dataset, np.delete(np.arange(len(dataset.labels)), repeated))
    alike = [tuple(rows[list(group)].tolist()) for group in find_look_alikes(dataset, rows)]
    groups = connected((group[0], other) for group in (*copies, *alike) for other in group[1:])
    conflicts = tuple(group for group in groups if len(_known(dataset.labels[list(group)])) > 1)
    return replace(
        about,
        copies=tuple(copies),
        alike=tuple(alike),
        blank=tuple(rows[_contrast(dataset, rows) < BLANK].tolist()),
        conflicts=conflicts,
        named=tuple(_with_labels(dataset, group) for group in conflicts),
        across=tuple(group for group in groups if len(set(dataset.is_test[list(group)].tolist())) > 1),
        compared=len(rows) if _are_images(dataset) or _texts_of(dataset) else 0,
    )


def _with_labels(dataset: Dataset, group: Group) -> str:
    labels = [dataset.classes[label] if label != UNLABELED else "unlabeled" for label in dataset.labels[list(group)]]
    return " = ".join(f"{name} ('{label}')" for name, label in zip(row_names(dataset, group), labels, strict=True))


def find_look_alikes(dataset: Dataset, rows: Rows) -> list[Group]:
    """Return groups of these rows whose images or texts are nearly the same, as positions in `rows`; none of other rows."""
    if texts := _texts_of(dataset):
        cells = dataset.raw.iloc[rows].apply(as_text, missing=())
        for name in texts:
            cells[name] = cells[name].map(_plain)
        return groups_of(["\0".join(line) for line in cells.itertuples(index=False, name=None)])
    if not _are_images(dataset):
        return []
    small = _small_gray(dataset, rows)
    shown = np.flatnonzero(small.std(axis=1) >= BLANK)
    return [tuple(shown[list(group)].tolist()) for group in look_alikes(small[shown])]


def _texts_of(dataset: Dataset) -> list[str]:
    """Return the columns of text, if rows are those of a table."""
    if not is_frame(dataset.raw):
        return []

    def is_text(cells: Any) -> bool:
        some = [cell for cell in cells.iloc[:SOME] if isinstance(cell, str)]
        return max(map(len, some), default=0) >= 2 * TEXT_WORDS and words_in(cells) >= TEXT_WORDS  # the first is fast

    named = named_texts(dataset.raw)
    return [name for name in dataset.raw.columns if name in named or is_text(dataset.raw[name])]


def _plain(text: str) -> str:
    """Return a text without case, spaces, punctuation and Unicode's other forms of a letter, if anything is left then."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(_IGNORED)
    return plain or text


class _Ignored(dict[int, int | None]):
    """What `str.translate` does with a letter: it leaves out spaces, punctuation and what cannot be seen."""

    def __missing__(self, letter: int) -> int | None:
        self[letter] = None if unicodedata.category(chr(letter))[0] in "PZC" else letter
        return self[letter]


_IGNORED = _Ignored()


def _are_images(dataset: Dataset) -> bool:
    return len(dataset.raw.shape) == 4


def _contrast(dataset: Dataset, rows: Rows) -> NDArray[np.float32]:
    """Return the standard deviation of each image, with pixels from 0 to 255; infinity if rows are not images."""
    return _small_gray(dataset, rows).std(axis=1) if _are_images(dataset) else np.full(len(rows), np.inf, np.float32)


def blank_rows(dataset: Dataset, rows: Rows) -> NDArray[np.bool_]:
    """Return which rows show nothing: images of one color, equal numbers, empty cells or one character repeated."""
    if is_frame(dataset.raw):
        columns = [as_text(dataset.raw[name].iloc[rows]).tolist() for name in dataset.raw.columns]
        joined = (set("".join(cells)) for cells in zip(*columns, strict=True))
        return np.array([len(set(filter(str.isalnum, letters))) < 2 for letters in joined], dtype=bool)
    if _are_images(dataset):
        return _contrast(dataset, rows) < BLANK
    parts = [np.ptp(piece.reshape(len(piece), -1), axis=1) == 0 for piece in pieces(dataset.raw, 1000, rows)]
    return np.concatenate([np.zeros(0, dtype=bool), *parts])


def _known(labels: NDArray[np.int64]) -> set[int]:
    return set(labels.tolist()) - {UNLABELED}


def _sample(dataset: Dataset, rows: Rows) -> Rows:
    """Return all rows, or if there are more than `LARGEST`, the labeled ones and an even sample of the others."""
    if len(rows) <= LARGEST:
        return rows
    known = dataset.labels[rows] != UNLABELED
    labeled, others = rows[known][:LARGEST], rows[~known]
    room = LARGEST - len(labeled)
    return np.sort(np.concatenate([labeled, others[np.linspace(0, len(others) - 1, room).astype(np.int64)]]))


def _small_gray(dataset: Dataset, rows: Rows) -> NDArray[np.float32]:
    """Return [rows, 64] gray images of 8 pixels a side, from 0 to 255."""
    made = [np.empty((0, SIDE**2), np.float32)]
    for piece in pieces(dataset.raw, 1000, rows):
        x = torch.from_numpy(piece).float() * (1.0 if piece.dtype == np.uint8 else 255.0)
        weights = torch.tensor(GRAY if x.shape[1] >= 3 else [1.0])
        gray = (x[:, : len(weights)] * weights.view(1, -1, 1, 1)).sum(dim=1, keepdim=True)
        made.append(adaptive_avg_pool2d(gray, SIDE).flatten(1).numpy())
    return np.concatenate(made)


def look_alikes(small: NDArray[np.float32]) -> list[Group]:
    """Return groups of images that are nearly the same, from small gray versions of them.

    Two images are alike if their difference is small relative to the contrast of both, and to the usual difference between
    images of this data.
    """
    if len(small) < 2:
        return []
    x = torch.from_numpy(small)
    contrast = x.std(dim=1)
    pairs, nearest = list[tuple[int, int]](), torch.full((len(x),), torch.inf)
    for start in range(0, len(x), 1000):
        distances = torch.cdist(x[start : start + 1000], x) / SIDE
        here = torch.arange(len(distances))
        distances[here, start + here] = torch.inf
        relative = distances / torch.minimum(contrast[start : start + 1000, None], contrast)
        nearest[start : start + 1000] = relative.topk(min(NEIGHBOR, len(x)), largest=False).values[:, -1]
        pairs += [(start + int(row), int(other)) for row, other in (relative <= ALIKE).nonzero() if start + row < other]
    limit = min(ALIKE, NEAREST * float(nearest.median()))
    near = [pair for pair in pairs if min(contrast[list(pair)]) * limit >= torch.dist(x[pair[0]], x[pair[1]]) / SIDE]
    return connected(near)


def groups_of(keys: Sequence[str]) -> list[Group]:
    """Return the rows of each key that occurs more than once.

    >>> groups_of(["a", "b", "a"])
    [(0, 2)]
    """
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [tuple(group) for group in rows.values() if len(group) > 1]


def connected(pairs: Iterable[tuple[int, int]]) -> list[Group]:
    """Return the connected components of the graph with these edges.

    >>> connected([(0, 3), (1, 2), (3, 4)])
    [(0, 3, 4), (1, 2)]
    """
    group_of: dict[int, set[int]] = {}
    for one, other in pairs:
        group = group_of.get(one, {one}) | group_of.get(other, {other})
        group_of |= dict.fromkeys(group, group)
    unique = {id(group): group for group in group_of.values()}
    return sorted(tuple(sorted(group)) for group in unique.values())
