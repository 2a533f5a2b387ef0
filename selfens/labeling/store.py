"""What the server knows: the labels, which are on disk before it says so, and the queue of rows to label.

The journal is the truth. If somebody else has written to it, another server or a person with an editor, it is read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from selfens.core.randomness import SUGGESTED, stream
from selfens.data import journal
from selfens.data.dataset import UNLABELED
from selfens.data.inspection import row_names
from selfens.data.journal import AT_RANDOM, BY_MODEL, JUNK, SKIPPED
from selfens.labeling.project import Project

LEASE = 600.0  # seconds that a row belongs to the window that shows it
MEASURED_ON = 50  # random rows that one key puts into the queue
DOUBTFUL_EVERY = 5  # every so many rows, one is a label to check
TYPICAL, UNCERTAIN = "stands for many rows", "stands for many uncertain rows"
RANDOM, DRAWN = "drawn at random until the rows are encoded", "drawn at random, to measure the error"


class Store:
    """Rows are numbered as in the training rows of the data."""

    def __init__(self, project: Project) -> None:
        self.project, self.path = project, project.journal
        self.rows, self.names = project.rows, row_names(project.data, project.rows.tolist())
        folder = project.data.folder
        self.names = [os.path.relpath(name, folder) if folder else name for name in self.names]
        self.classes: list[str] = []
        self.labels: list[str | None] = []
        self.marks: dict[int, str] = {}
        self.drawn: set[int] = set()
        self.noted, self.version = journal.Noted(), (-1, -1)
        self.queue: list[int] = stream(0, SUGGESTED).permutation(len(self.rows)).tolist()
        self.why, self.is_random = RANDOM, True
        self.to_measure: list[int] = []
        self.doubtful: dict[int, str] = {}
        self.leases: dict[int, tuple[str, float]] = {}
        self.answered = 0
        self.seconds: float | None = None
        self.predicted: tuple[list[str], list[float]] | None = None
        self.refresh()

    # The journal

    def refresh(self) -> None:
        """Read the journal again if anybody else has changed it."""
        if self._version() == self.version:
            return
        self.version = self._version()
        noted = journal.read(self.path)
        dataset, rows_of = self.project.labeled(noted), journal.locate(self.project.data, noted)
        position = {int(row): number for number, row in enumerate(self.rows)}
        given = dataset.labels[self.rows]
        self.labels = [dataset.classes[label] if label != UNLABELED else None for label in given]
        self.noted, self.marks, self.drawn = noted, {}, set()
        for key, found in rows_of.items():
            for row in (position[each] for each in found if each in position):
                if key in noted.marks:
                    self.marks[row] = noted.marks[key]
                if key in noted.drawn:
                    self.drawn.add(row)
        used = [*self.project.data.classes, *filter(None, noted.labels.values()), *self.classes]
        self.classes = [name for name in dict.fromkeys(used) if name in {*dataset.classes, *self.classes}]

    def _version(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path)
        except OSError:
            return 0, 0
        return status.st_size, status.st_mtime_ns

    def _write(self, entry: dict[str, Any]) -> None:
        self.refresh()
        journal.add(self.path, [entry])
        self.version = self._version()

    def key(self, row: int) -> dict[str, str]:
        """Return what names a row in the journal."""
        named = {"row": self.project.data.row_hashes(self.rows[[row]])[0]}
        return named | ({"file": self.names[row]} if self.project.data.folder else {})

    def gone(self, row: int) -> str:
        """Return a sentence if the file of a row is no longer there, and pass over the row; else ""."""
        data = self.project.data
        if not data.folder or os.path.isfile(data.ids[int(self.rows[row])]):
            return ""
        self.marks[row] = SKIPPED
        return f"{self.names[row]} is no longer there, so it was passed over."

    # Answers

    def label(self, row: int, label: str | None, *, why: str = "", seconds: float | None = None) -> None:
        """Write a label, or that there is none; it is on disk when this returns."""
        chosen = {DRAWN: AT_RANDOM, RANDOM: AT_RANDOM, TYPICAL: BY_MODEL, UNCERTAIN: BY_MODEL}.get(why)
        more: dict[str, Any] = {"chosen": chosen} if chosen and label is not None else {}
        if seconds is not None and label is not None:
            more["seconds"] = self.seconds = round(seconds, 2)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._write({**self.key(row), "label": label, **more, "at": at})
        self.labels[row] = label
        self.marks.pop(row, None)
        self.doubtful.pop(row, None)
        if label is not None and label not in self.classes:
            self.classes.append(label)
        if chosen == AT_RANDOM and label is not None:
            self.drawn.add(row)
        self._done(row)

    def mark(self, row: int, mark: str) -> None:
        """Write that a row is junk, or skipped."""
        self._write({**self.key(row), **({"label": None} if mark == JUNK else {}), "mark": mark})
        if mark == JUNK:
            self.labels[row] = None
        self.marks[row] = mark
        self.doubtful.pop(row, None)
        self._done(row)

    def measured(self, point: dict[str, float]) -> None:
        self._write(point)
        self.noted.measured.append(point)

    def _done(self, row: int) -> None:
        self.answered += 1
        self.leases.pop(row, None)

    # The queue

    def put(self, queue: Iterable[int]) -> None:
        """Replace the queue by suggested rows; after them come random ones."""
        self.queue, self.is_random = [*queue], False
        self.why = TYPICAL if self.predicted is None else UNCERTAIN

    def draw(self) -> int:
        """Put random rows that have no label at the front, to measure on. Return how many."""
        free = [row for row, label in enumerate(self.labels) if label is None and self.marks.get(row) != JUNK]
        self.to_measure = stream(len(free), SUGGESTED).permutation(free)[:MEASURED_ON].tolist()
        return len(self.to_measure)

    def next(self, window: str) -> tuple[int, str] | None:
        """Return the row that a window shows next, and why; None if there is none left."""
        self.refresh()
        now = time.monotonic()
        self.leases = {row: lease for row, lease in self.leases.items() if now - lease[1] < LEASE}
        mine = [row for row, (owner, _) in self.leases.items() if owner == window]
        for row, why in self._candidates(mine):
            lease = self.leases.get(row)
            if lease is None or lease[0] == window:
                for each in mine:
                    del self.leases[each]
                self.leases[row] = (window, now)
                return row, why
        return None

    def show_again(self, row: int, window: str) -> None:
        """Give a row to a window, in place of what it shows, if no other window shows it."""
        if self.leases.get(row, (window, 0.0))[0] == window:
            self.leases = {each: lease for each, lease in self.leases.items() if lease[0] != window}
            self.leases[row] = (window, time.monotonic())

    def upcoming(self, count: int, window: str) -> list[int]:
        """Return the rows that come next, to be fetched before they are shown."""
        found: list[int] = []
        for row, _ in self._candidates([]):
            if row not in self.leases and row not in found:
                found.append(row)
            if len(found) == count:
                break
        return found

    def _candidates(self, mine: list[int]) -> Iterable[tuple[int, str]]:
        """Yield the rows to label with why, those that a window shows already first."""
        doubtful = [row for row in self.doubtful if self.marks.get(row) is None]
        check_now = doubtful and self.answered % DOUBTFUL_EVERY == DOUBTFUL_EVERY - 1
        if check_now:
            yield from ((row, self.doubtful[row]) for row in doubtful)
        yield from ((row, DRAWN) for row in self.to_measure if self._is_open(row))
        why = RANDOM if self.is_random else self.why
        yield from ((row, why) for row in mine if self._is_open(row) and row not in self.to_measure)
        yield from ((row, why) for row in self.queue if self._is_open(row))
        if not self.is_random:
            rest = stream(1, SUGGESTED).permutation(len(self.rows)).tolist() if len(self.rows) else []
            yield from ((row, DRAWN) for row in rest if self._is_open(row))
        yield from ((row, self.doubtful[row]) for row in doubtful)

    def _is_open(self, row: int) -> bool:
        return self.labels[row] is None and row not in self.marks

    # Counts

    @property
    def counts(self) -> dict[str, int]:
        found = dict.fromkeys(self.classes, 0)
        for label in self.labels:
            if label is not None:
                found[label] = found.get(label, 0) + 1
        return found

    @property
    def num_labeled(self) -> int:
        return sum(label is not None for label in self.labels)

    @property
    def num_skipped(self) -> int:
        return sum(mark == SKIPPED for mark in self.marks.values())
