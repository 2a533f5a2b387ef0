"""A table with a row per example: .csv, .tsv, .parquet, .jsonl. One column holds the labels; empty cells are unlabeled."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from selfens.data import journal
from selfens.data.cells import MISSING, as_text, find_identifier, unit_notes
from selfens.data.dataset import Dataset
from selfens.data.folders import TEST, TRAIN, VALIDATION, unlabeled_names
from selfens.data.frames import NOTES, TEXT, Frame, TextColumns, column_names, count_rows, is_table, read_frame
from selfens.data.rows import Rows
from selfens.data.sources.base import PathOptions, Peek, Source
from selfens.errors import ConfigError, DataError, did_you_mean, listed, plural
from selfens.settings import setting

UNLABELED_WORDS = (MISSING - {"None"}) | {"-1", "unlabeled", "unlabelled"}  # a class may well be called None
MAX_FRACTIONS = 20  # more distinct fractions are a measurement, not classes
RESERVED_HEADERS = {"row", "label", "class", "probability", "suggested", "score", "predicted", "uncertainty"}
WHOLE, FRACTION = re.compile(r"(0|[1-9]\d{0,17})(\.0+)?", re.ASCII), re.compile(r"[-+]?\d*[.,]?\d+(e[-+]?\d+)?")


@final
class Table(Source):
    @dataclass(frozen=True, kw_only=True)
    class Options(PathOptions):
        name: ClassVar[str] = "table"
        label: str | None = setting(None, "The column that holds the labels; empty cells are unlabeled.")
        id: str | None = setting(None, "The column that identifies rows; none: one that differs in each row, if any.")
        unlabeled: str | None = setting(
            None,
            "Labels that mean none, besides empty cells and words such as NA, separated by commas. ask: say it if there are "
            "some such as unknown.",
            none="ask",
        )
        text: tuple[str, ...] = setting((), "Columns of text, beside those that look like it.")

        def __post_init__(self) -> None:
            given: Any = self.text
            if isinstance(given, list | tuple) and not all(isinstance(each, str) for each in given):
                raise ConfigError(f"source.text is {given!r}; expected names of columns.")
            if isinstance(given, str | list):
                given = ([given] if given else []) if isinstance(given, str) else given
                object.__setattr__(self, "text", tuple(given))
            super().__post_init__()
            for role, name in (("label", self.label), ("id", self.id)):
                if name in self.text and name is not None:
                    raise ConfigError(f"source.text and source.{role} are both '{name}'; leave one of them out.")
            if self.id is not None and self.id == self.label:
                raise ConfigError(f"source.id and source.label are both '{self.id}'; a label does not identify rows.")

        @property
        def summary(self) -> str:
            name = f"'{self.id}'" if self.id else "a column without a name"
            labels = "no column holds labels" if self.label is None else f"'{self.label}' is the label"
            return labels + ("" if self.id is None else f"; {name} identifies rows")

    noun = "a table"
    encoder = "columns"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return is_table(path) and not os.path.isdir(path)

    def peek(self) -> Peek:
        names = column_names(self.path)
        label = self._check_label(names)
        if label is None and not journal.read(journal.path_for(self.path), self.options.journal).labels:
            raise ConfigError(
                f"{self.path} is a table, and its column of labels was not named; name one of {listed(names)} (source.label; "
                "on the command line: --label), or label rows on a page: selfens label. A list of images has the columns "
                "file and label."
            )
        if not any(name.lower() == "split" != label for name in names):
            return Peek(rows=count_rows(self.path))
        _, is_test, _ = split_rows(read_frame(self.path), label, self.path)
        return Peek(rows=int((~is_test).sum()))

    def load(self, *, seed: int, side: int | None, progress: bool) -> Dataset:
        frame, path = read_frame(self.path), self.path
        label = self._check_label(list(frame.columns))
        rows, is_test, notes = split_rows(frame, label, path)
        labels: list[int | str | None] = [None] * len(frame)
        if label is not None:
            words = as_text(frame[label], missing=UNLABELED_WORDS)
            words = words.mask(words.str.lower().isin(unlabeled_names(self.options.unlabeled)), "")
            labels = parse_labels(words, f"column '{label}' of {path}")
            notes = [*unlabeled_notes(frame[label], label), *notes]
        inputs, identifier = self._inputs(frame), self.options.id
        if identifier is None:
            identifier = find_identifier(inputs.drop(columns=list(self.options.text)))
            found = [] if identifier is None else [identifier]  # it may be ""
            inputs, notes = inputs.drop(columns=found), [*notes, *unit_notes(inputs, found)]
        options = self.options.changed({"id": identifier})
        if not len(inputs.columns):
            hint = f"; if '{identifier}' is text, name it (--text '{identifier}')" if identifier else ""
            raise DataError(f"{path} has no column to learn from; {options.summary}{hint}.")
        inputs.attrs[TEXT] = TextColumns(self.options.text)
        about = self._about(frame.iloc[rows], identifier, notes)
        return Dataset.from_labels(inputs.iloc[rows], [labels[row] for row in rows], is_test, source=options, **about)

    def read(self, *, side: int | None, progress: bool) -> Dataset:
        """Load all rows and all columns but label and id."""
        frame, identifier, notes = read_frame(self.path), self.options.id, []
        if identifier is not None and identifier not in frame.columns:
            notes = [f"{self.path} has no column '{identifier}', so only row numbers tell its rows apart."]
        return Dataset.unlabeled(self._inputs(frame), **self._about(frame, identifier, notes))

    @property
    def path(self) -> Path:
        return Path(self.options.path)

    def _about(self, frame: Frame, identifier: str | None, notes: Sequence[str]) -> dict[str, Any]:
        """Return the fields of a Dataset that tell its rows apart, and its notes."""
        return {
            "name": str(self.path),
            "numbers": frame.index.to_numpy(),
            "notes": (*frame.attrs.get(NOTES, ()), *notes),
            "ids": tuple(as_text(frame[identifier], missing=())) if identifier in frame.columns else (),
            "id_header": "id" if not identifier or identifier.lower() in RESERVED_HEADERS else identifier,
        }

    def _inputs(self, frame: Frame) -> Frame:
        """Return the columns that may be inputs: all but label, id and split."""
        label, identifier = self.options.label, self.options.id
        used = [label, identifier, split_column(frame, label)]  # each may be None
        return frame.drop(columns=used, errors="ignore")

    def _check_label(self, names: Sequence[str]) -> str | None:
        """Return the label column, if there is one; refuse a label or id column that the table does not have."""
        label = self.options.label
        if not names:
            raise DataError(f"{self.path} is empty; expected a line of column names, and rows below it.")
        if label is None and (called := [name for name in names if name.lower() == "label"]):
            raise ConfigError(
                f"{self.path} has a column '{called[0]}'; say what holds the labels (--label {called[0]})."
            )
        for name in (label, self.options.id, *self.options.text):
            if name is not None and name not in names:
                hint = did_you_mean(name, names)
                raise DataError(f"{self.path} has no column '{name}'{hint} Its first line names {listed(names)}.")
        return None if label is None else str(label)


def split_column(frame: Frame, label: str | None) -> str | None:
    """Return the column `split`, in any case, if it says which rows are for training and testing."""
    for name in frame.columns:
        if name.lower() == "split" and name != label:
            words = as_text(frame[name]).str.lower()
            return name if words.isin({*TRAIN, *TEST, *VALIDATION}).any() else None
    return None


def unlabeled_notes(cells: Any, name: str) -> list[str]:
    """Return a note for each word that counts as no label, because it may be meant as a class."""
    counts = as_text(cells, missing=()).value_counts()
    words = [word for word in sorted(UNLABELED_WORDS - {""}) if word in counts.index]
    cell = [plural(int(counts[word]), "cell") for word in words]
    advice = "taken as unlabeled; if it is a class, write it differently."
    return [f"column '{name}': {count} '{word}' {advice}" for count, word in zip(cell, words, strict=True)]


def split_rows(frame: Frame, label: str | None, path: Path) -> tuple[Rows, NDArray[np.bool_], list[str]]:
    """Read the column `split`. Returns the rows to use, training rows first, which are for testing, and notes."""
    column = split_column(frame, label)
    if column is None:
        return np.arange(len(frame)), np.zeros(len(frame), bool), []
    words = as_text(frame[column]).str.lower()
    if other := sorted({*words} - TRAIN - TEST - VALIDATION - {""}):
        expected = "expected train, test, val or an empty cell, or another name of the column"
        raise DataError(f"column '{column}' of {path} says '{other[0]}'; {expected}.")
    tested = TEST if words.isin(TEST).any() else VALIDATION
    train, test = np.flatnonzero(words.isin({*TRAIN, ""})), np.flatnonzero(words.isin(tested))
    if not len(train):
        raise DataError(
            f"column '{column}' of {path} leaves no row to train on; expected train or an empty cell in some."
        )
    rest = len(frame) - len(train) - len(test)
    note = f"column '{column}': rows marked val ({rest:,}) are not used, because others are marked test."
    rows = np.concatenate([train, test])
    return rows, np.arange(len(rows)) >= len(train), [note] if rest else []


def parse_labels(words: Any, where: str) -> list[int | str | None]:
    """Return the labels of a column, None if empty; whole numbers are integers, so that 10 sorts after 9."""
    known = set(words) - {""}
    if known and all(map(WHOLE.fullmatch, known)):
        return [int(word.partition(".")[0]) if word else None for word in words]
    if len(known) > MAX_FRACTIONS and all(map(FRACTION.fullmatch, known)):
        found = f"{len(known):,} different numbers, such as {min(known)}"
        raise DataError(f"{where} holds {found}; expected a few classes.")
    return [word or None for word in words]
