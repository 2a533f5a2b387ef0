"""Records: what a finished run leaves, and where it lies.

    results/runs/<table>/<cell>/seed<NNN>.json        one finished run: small, kept for good
    results/unfinished/<table>/<cell>/seed<NNN>/      the run directory, with weights; removed when the record is written
    results/unfinished/<table>/<cell>/seed<NNN>.lock  held by the process that is doing the run
    results/unfinished/<table>/<cell>/seed<NNN>.shared  there if the run has shared its device (see `presence`)
    results/quick/...                                 the same for quick runs, which are never mixed with real ones

A record is there whole or not at all, so "the file exists" means "this run is done". The lock is the system's, and is let
go when the process ends, however it ends. A run whose loss stopped being finite leaves a record too: that is its result,
and running it again would give the same.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import reprlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from selfens.config import Config, TrainingConfig
from selfens.data.labels import LabelChoice
from selfens.errors import ConfigError, RunError
from selfens.experiments.cells import Cell
from selfens.experiments.tables import MOST_SEEDS, Task
from selfens.files import locks

FORMAT = 1
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError)  # what files raise that were tampered with


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run."""

    table: str
    cell: str
    seed: int
    quick: bool
    config: Config
    labelled_rows: str
    """SHA-256 of the lines `row,label` of the labelled rows as they were trained on, rows rising."""
    data: str
    """The data set's fingerprint: a hash of its images and labels."""
    test_error: tuple[float, ...]
    """In percent, after each epoch."""
    final_error: float | None
    """The last epoch's, never the best one's; None where the loss stopped being finite."""
    seconds: float
    """From the first step to the final error, tests and checkpoints included."""
    seconds_per_epoch: float
    """The median, so that compiling or an interruption does not count."""
    shared_device: bool
    """Another run was on the same device, so the seconds are not a speed."""
    environment: dict[str, Any]
    """Hardware, precision and library versions."""
    commit: str | None
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """The extra unlabeled images: `source`, the name of the file or folder, and `rows`, how many of it; empty without."""

    def __post_init__(self) -> None:
        """ValueError where a value cannot be one of a run."""
        for name, (expected, is_right) in EXPECTED.items():
            value = getattr(self, name)
            if not is_right(value):
                raise ValueError(f"{name} is {reprlib.repr(value)}; expected {expected}")
        if self.final_error is None:
            return
        epochs = self.config.schedule.epochs
        if len(self.test_error) != epochs:
            raise ValueError(f"{len(self.test_error)} errors for {epochs} epochs")
        if self.final_error != self.test_error[-1]:
            raise ValueError("the final error is not the last epoch's")

    @property
    def key(self) -> str:
        return f"{self.table}/{self.cell}"

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record; ValueError or TypeError where the text is not one."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or "format" not in raw:
            raise ValueError("it is no record")
        if raw.pop("format") != FORMAT:
            raise OtherFormatError
        names = {part.name for part in fields(cls)}
        required = {part.name for part in fields(cls) if part.default is MISSING and part.default_factory is MISSING}
        if missing := sorted(required - raw.keys()):
            raise ValueError(f"it has no '{missing[0]}'")
        if unknown := sorted(raw.keys() - names):
            raise ValueError(f"it has '{unknown[0]}', which no record has")
        return cls(**raw | {"config": Config.from_dict(raw["config"]), "test_error": tuple(raw["test_error"])})


class OtherFormatError(ValueError):
    """A record that another version has written."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_percentage(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and value <= 100


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)  # half a letter


def _is_seed(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_SEEDS


def _is_images(value: object) -> bool:
    if not isinstance(value, dict) or not value:
        return value == {}
    return value.keys() == {"source", "rows"} and _is_text(value["source"]) and type(value["rows"]) is int


SECONDS, TRUTH, TEXT = "a number of seconds", "true or false", "text"
EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "table": (TEXT, _is_text),
    "cell": (TEXT, _is_text),
    "seed": (f"a whole number below {MOST_SEEDS}", _is_seed),
    "quick": (TRUTH, lambda value: isinstance(value, bool)),
    "labelled_rows": ("a hash of 64 digits", lambda value: _is_text(value) and len(value) == 64),
    "data": (TEXT, _is_text),
    "test_error": ("numbers from 0 to 100", lambda values: all(map(_is_percentage, values))),
    "final_error": ("a number from 0 to 100, or null", lambda value: value is None or _is_percentage(value)),
    "seconds": (SECONDS, _is_number),
    "seconds_per_epoch": (SECONDS, _is_number),
    "shared_device": (TRUTH, lambda value: isinstance(value, bool)),
    "environment": ("names and values", lambda value: isinstance(value, dict)),
    "commit": ("text, or null", lambda value: value is None or _is_text(value)),
    "note": (TEXT, _is_text),
    "extra": ("nothing, or a source and its number of rows", _is_images),
}
"""What each value of a record must be, in words and as a test."""


def extra_words(images: Mapping[str, Any]) -> str:
    """Such as "120,000 images of natural.npy"."""
    rows = f"{images['rows']:,} " if "rows" in images else ""
    return f"{rows}images of {images['source']}" if images else "no extra images"


def rows_hash(choice: LabelChoice) -> str:
    pairs = sorted(zip(choice.rows.tolist(), choice.labels.tolist(), strict=True))
    return hashlib.sha256("".join(f"{row},{label}\n" for row, label in pairs).encode()).hexdigest()


def same_experiment(one: Config, other: Config) -> bool:
    """Whether two configs compute the same, wherever they run and wherever the data lies."""
    return _portable(one) == _portable(other)


def _portable(config: Config) -> Config:
    kept = config.training
    training = TrainingConfig(batch_size=kept.batch_size, rows=kept.rows, batches=kept.batches)
    return replace(config, training=training).with_values("data", folder=None)


class Store:
    """Where the records and unfinished runs of a results folder lie; the quick ones have a folder of their own."""

    def __init__(self, results: Path, *, quick: bool = False) -> None:
        self.quick, self.results = quick, results
        self.root = results / "quick" if quick else results

    def record_path(self, task: Task) -> Path:
        return self.root / "runs" / task.cell.table / task.cell.name / f"seed{task.seed:03d}.json"

    def unfinished_path(self, task: Task) -> Path:
        return self.root / "unfinished" / task.cell.table / task.cell.name / f"seed{task.seed:03d}"

    def shared_mark(self, task: Task) -> Path:
        return self.unfinished_path(task).with_suffix(".shared")

    def commits_path(self, task: Task) -> Path:
        return self.unfinished_path(task).with_suffix(".commits")

    def note_commit(self, task: Task, commit: str | None) -> None:
        """That this code, if it is known, is about to train a run."""
        known = self.commits(task)
        if commit and commit not in known:
            self.commits_path(task).write_text("\n".join([*known, commit]))

    def commits(self, task: Task) -> list[str]:
        """The commits by which a run that is not finished was trained."""
        path = self.commits_path(task)
        return path.read_text().splitlines() if path.exists() else []

    def has(self, task: Task) -> bool:
        return self.record_path(task).exists()

    @contextmanager
    def claimed(self, task: Task) -> Iterator[bool]:
        """Whether the run is ours to do, for as long as the context lasts; False where another process has it."""
        path = self.unfinished_path(task).with_suffix(".lock")
        self._make_private(path.parent)
        with open(path, "a") as file:
            yield locks.take(file)

    def _make_private(self, folder: Path) -> None:
        """A folder of files that nobody should commit, which its own .gitignore says."""
        make_folder(folder)
        ignored = (self.root if self.quick else self.root / "unfinished") / ".gitignore"
        try:
            ignored.write_text("*\n")
        except OSError as error:
            raise unwritable(ignored.parent, error) from None

    def make_room(self, task: Task) -> None:
        """The folder of the record, so that a run is not trained and then has no place."""
        make_folder(self.record_path(task).parent)

    def write(self, task: Task, record: Record) -> None:
        """The record first, then away with the run directory: whatever the moment of a kill, nothing is lost."""
        from selfens.files.tensors import write_atomically  # brings torch, which listing the tables does not need

        self._make_private(self.unfinished_path(task).parent)
        self.make_room(task)
        write_atomically(self.record_path(task), record.to_json().encode())
        self.clear(task)

    def clear(self, task: Task) -> None:
        """Away with all that there is of a run but its record."""
        shutil.rmtree(self.unfinished_path(task), ignore_errors=True)
        self.shared_mark(task).unlink(missing_ok=True)
        self.commits_path(task).unlink(missing_ok=True)

    def strays(self) -> list[Path]:
        """Files that look like records and lie where no cell's are looked for."""
        from selfens.experiments.tables import CELLS

        found = {path for cell in CELLS.values() for path in self._paths(cell)}
        every = (self.root / "runs").rglob("*")
        return sorted(path for path in every if path.suffix.lower() == ".json" and path not in found)

    def _paths(self, cell: Cell) -> list[Path]:
        """The records of a cell."""
        return sorted((self.root / "runs" / cell.table / cell.name).glob("seed*.json"))

    def read(self, cells: Iterable[Cell]) -> list[Record]:
        """All records of these cells, by cell and seed; what is wrong with any is said of all at once."""
        records: list[Record] = []
        problems: list[str] = []
        for cell in cells:
            try:
                records += self._read_cell(cell).values()
            except RunError as error:
                problems.append(str(error))
        if problems:
            raise RunError(" ".join(problems))
        return records

    def _read_cell(self, cell: Cell) -> dict[Path, Record]:
        """The records of a cell, which must all have the same extra images to be averaged."""
        found = {path: self._read(cell, path) for path in self._paths(cell)}
        for path, record in found.items():
            first, other = next(iter(found.items()))
            if record.extra != other.extra:
                raise RunError(
                    f"{path} was trained with {extra_words(record.extra)} and {first} with {extra_words(other.extra)}; move "
                    "one of them to another --results, because they cannot be averaged."
                )
        return found

    def check_images(self, wanted: Mapping[Cell, Mapping[str, Any]]) -> None:
        """Refuse a cell that has records of other extra images than those wanted, of which the number may be left out."""
        for cell, images in wanted.items():
            for path, record in self._read_cell(cell).items():
                if not images.items() <= record.extra.items():
                    raise RunError(
                        f"{path} was trained with {extra_words(record.extra)}, not with {extra_words(images)}; use --results "
                        "ANOTHER for these, or remove it."
                    )

    def _read(self, cell: Cell, path: Path) -> Record:
        try:
            record = Record.from_json(path.read_text())
        except OtherFormatError:
            raise RunError(
                f"{path} was written by another version of selfens; use that one, or move the record elsewhere."
            ) from None
        except (*DAMAGE, OverflowError, RecursionError, ConfigError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise RunError(f"{path} is damaged ({reason}); remove it, and the run is done again.") from None
        task = Task(cell, record.seed)
        if path != self.record_path(task) or record.key != cell.key:
            raise RunError(f"{path} is the record of {record.key} seed {record.seed}; it lies in the wrong place.")
        if record.quick != self.quick:
            kinds = ("a quick run", "the real ones") if record.quick else ("a real run", "the quick ones")
            raise RunError(f"{path} is the record of {kinds[0]} among {kinds[1]}; remove it.")
        if bool(record.extra) != (cell.extra is not None):
            raise RunError(f"{path} was trained with {extra_words(record.extra)}, unlike {cell.key}; remove it.")
        if not same_experiment(record.config, self.config(task)):
            raise RunError(f"{path} is of another configuration than {cell.key} has now; remove it to run it again.")
        return record

    def config(self, task: Task) -> Config:
        """What this store's runs are configured as."""
        from selfens.experiments.quick import shrink

        config = task.cell.config_for(task.seed)
        return shrink(config) if self.quick else config


def make_folder(folder: Path) -> None:
    """A folder that can be written to, made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unwritable(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def unwritable(folder: Path, error: OSError) -> RunError:
    return RunError(f"{folder} cannot be written to ({error.strerror}); choose another --results.")
