"""The journal: a file beside the data with the labels given on the page of `selfens label`, how rows were chosen, and which
labeled rows are for testing.

Rows are named by a hash of their content, and by their file if they are files, so they may be moved or renamed. Lines are only
added; the last one about a row counts; lines that cannot be read are passed over. A line that a person writes may name just
the file.

    photos/.selfens.jsonl              of a folder
    .messages.csv.selfens.jsonl        beside a file

    {"row": "9f…", "file": "1.jpg", "label": "cat", "chosen": "at random", "seconds": 1.2}     null: no label after all
    {"row": "9f…", "mark": "junk"}                                                             never trained on; or "skipped"
    {"row": "9f…", "chosen": "by a model"}                                                     suggested; or "at random"
    {"row": "9f…", "split": "test"}                                                            or "train": it stays there
    {"labels": 40, "error": 12.5, "low": 8.1, "high": 18.0}                                    what was measured

Rows that a model chose are not like the others, so errors measured on them are corrected.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.rows import take
from selfens.errors import DataError, plural
from selfens.files import check_regular

NAME = ".selfens.jsonl"
BY_MODEL, AT_RANDOM = "by a model", "at random"
JUNK, SKIPPED = "junk", "skipped"
TRAIN, TEST = "train", "test"

Line = Mapping[str, Any]


def path_for(data: Path) -> Path:
    """Return the journal of a folder or file."""
    return data / NAME if os.path.isdir(data) else data.with_name(f".{data.name}{NAME}")


@dataclass
class Noted:
    """What a journal says. Rows are named by their hash, or by "file:" and their path if a line names no hash."""

    labels: dict[str, str | None] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    suggested: set[str] = field(default_factory=set)
    drawn: set[str] = field(default_factory=set)
    """Rows that were drawn at random."""
    is_test: dict[str, bool] = field(default_factory=dict)
    """On which side of the split a labeled row is."""
    files: dict[str, str] = field(default_factory=dict)
    measured: list[dict[str, float]] = field(default_factory=list)
    lines: int = 0
    damaged: int = 0

    def add(self, line: str) -> None:
        """Take in the next line of the file."""
        self.lines += 1
        entry: Any = None
        with suppress(ValueError, RecursionError):
            entry = json.loads(line) if line.strip() else {}
        match entry:
            case {"row": str(key)}:
                if isinstance(entry.get("file"), str):
                    self.files[key] = entry["file"]
                self._note(key, entry)
            case {"file": str(name), "label": str() | None}:
                self.files[f"file:{name}"] = name
                self._note(f"file:{name}", entry)
            case {"labels": int(), "error": int() | float(), "low": int() | float(), "high": int() | float()}:
                self.measured.append({name: float(entry[name]) for name in ("labels", "error", "low", "high")})
            case {} if entry == {}:
                pass
            case _:
                self.damaged += 1

    def _note(self, key: str, entry: dict[str, Any]) -> None:
        for how, rows, others in ((BY_MODEL, self.suggested, self.drawn), (AT_RANDOM, self.drawn, self.suggested)):
            if entry.get("chosen") == how:
                rows.add(key)
                others.discard(key)
        if entry.get("split") in (TRAIN, TEST):
            self.is_test[key] = entry["split"] == TEST
        if "label" in entry:
            label = entry["label"]
            known = label.strip() if isinstance(label, str) else str(label) if type(label) is int else ""
            self.labels[key] = known or None
            self.marks.pop(key, None)
        if entry.get("mark") in (JUNK, SKIPPED):
            self.marks[key] = entry["mark"]


def read(path: Path, lines: int | None = None) -> Noted:
    """Return what the first `lines` of a journal say, by default all."""
    noted = Noted()
    try:
        check_regular(path)
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return noted
    for line in text.splitlines() if lines is None else text.splitlines()[:lines]:
        noted.add(line)
    return noted


def suggested(path: Path) -> set[str]:
    """Return the hashes of the rows that a model chose."""
    return read(path).suggested


def add_chosen(path: Path, rows: Iterable[str], how: str) -> None:
    """Note how these rows were chosen; OSError if the file cannot be written."""
    add(path, [{"row": row, "chosen": how} for row in rows])


def add_split(path: Path, is_test: Mapping[str, bool]) -> None:
    """Note on which side of the split rows are; OSError if the file cannot be written."""
    add(path, [{"row": row, "split": TEST if tested else TRAIN} for row, tested in is_test.items()])


def add(path: Path, entries: Iterable[Line]) -> None:
    """Append lines, and return when they are on disk; OSError if the file cannot be written."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))  # to a file of which we know nothing
    check_regular(path)
    is_new = not path.exists()
    with open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other windows and servers may write, too
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        begin = b"" if not end or file.read(1) == b"\n" else b"\n"  # on lines of their own, even after one cut short
        file.write(begin + b"".join(json.dumps(dict(entry)).encode() + b"\n" for entry in entries))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# What it says about the rows of a dataset


def locate(dataset: Dataset, noted: Noted) -> dict[str, list[int]]:
    """Return the rows that each key of a journal names. Only if some file is gone, all rows are hashed to find them."""
    keys = {*noted.labels, *noted.marks, *noted.suggested}
    row_of = (
        {os.path.relpath(name, dataset.folder): row for row, name in enumerate(dataset.ids)} if dataset.folder else {}
    )
    named = {key: row_of[noted.files[key]] for key in keys if noted.files.get(key) in row_of}
    hashes = dataset.row_hashes(np.array(list(named.values()), dtype=np.int64)) if named else []
    found = {
        key: [row]
        for (key, row), content in zip(named.items(), hashes, strict=True)
        if content == key or key.startswith("file:")
    }
    left = {key for key in keys - found.keys() if not key.startswith("file:")}
    for row, content in enumerate(dataset.row_hashes() if left else []):
        if content in left:
            found.setdefault(content, []).append(row)
    return found


def mark_suggested(dataset: Dataset, noted: Noted, rows_of: Mapping[str, list[int]] | None = None) -> Dataset:
    """Return the dataset with the rows marked that a model chose."""
    rows_of = locate(dataset, noted) if rows_of is None else rows_of
    rows = [row for key, found in rows_of.items() if key in noted.suggested for row in found]
    return replace(dataset, suggested=np.isin(np.arange(len(dataset.labels)), rows)) if rows else dataset


def apply(dataset: Dataset, noted: Noted) -> Dataset:
    """Return the dataset with the labels of a journal in place of its own, and without rows marked as junk."""
    if not noted.lines:
        return dataset
    rows_of = locate(dataset, noted)
    given = {
        row: label for key, label in noted.labels.items() for row in rows_of.get(key, ()) if not dataset.is_test[row]
    }
    names = [*dataset.classes, *sorted({label for label in given.values() if label} - {*dataset.classes})]
    number = {name: position for position, name in enumerate(names)} | {None: UNLABELED}
    labels, before = dataset.labels.copy(), {*dataset.labels.tolist()}
    for row, label in given.items():
        labels[row] = number[label]
    emptied = [position for position in range(len(names)) if position in before and not (labels == position).any()]
    labels = np.where(labels >= 0, labels - np.searchsorted(emptied, labels), labels)
    is_junk = np.isin(
        np.arange(len(labels)),
        [row for key, mark in noted.marks.items() if mark == JUNK for row in rows_of.get(key, ())],
    )
    classes = tuple(name for position, name in enumerate(names) if position not in emptied)
    lost = sum(label is not None and key not in rows_of for key, label in noted.labels.items())
    if lost == sum(label is not None for label in noted.labels.values()) > 0 and not (labels >= 0).any():
        advice = "name the same columns as on the page (--label, --id, --text), or put the rows back"
        raise DataError(f"none of the labels in the journal beside {dataset.name} is of its rows; {advice}.")
    notes = {
        f"{plural(noted.damaged, 'damaged line')} of the journal beside the data passed over.": noted.damaged,
        f"{plural(lost, 'label')} of the journal beside the data for rows that are not there.": lost,
    }
    dataset = replace(
        dataset,
        labels=labels,
        classes=classes,
        notes=(*dataset.notes, *(note for note, holds in notes.items() if holds)),
    )
    dataset = mark_suggested(dataset, noted, rows_of)
    return without(dataset, np.flatnonzero(is_junk & ~dataset.is_test)) if is_junk.any() else dataset


def without(dataset: Dataset, rows: Any) -> Dataset:
    """Return a dataset without these rows; the others keep their numbers."""
    kept = np.setdiff1d(np.arange(len(dataset.labels)), rows)
    numbers, test = dataset.numbers, dataset.is_test
    if numbers is None:
        numbers = np.where(test, np.cumsum(test), np.cumsum(~test)) - 1
    return replace(
        dataset,
        raw=take(dataset.raw, kept),
        labels=dataset.labels[kept],
        is_test=test[kept],
        ids=tuple(dataset.ids[row] for row in kept) if dataset.ids else (),
        suggested=None if dataset.suggested is None else dataset.suggested[kept],
        prior=None if dataset.prior is None else dataset.prior[kept],
        numbers=numbers[kept],
    )
