"""Records: what a finished run leaves, and where.

    results/runs/<table>/<cell>/seed<NNN>.json           one finished run: small, kept for good
    results/unfinished/<table>/<cell>/seed<NNN>/         the run directory, with weights; removed once the record is written
    results/unfinished/<table>/<cell>/seed<NNN>.lock     held by the process that is doing the run
    results/unfinished/<table>/<cell>/seed<NNN>.shared   there if the run has shared its device
    results/unfinished/<table>/<cell>/seed<NNN>.commits  the commits of the code that has trained it
    results/quick/...                                    the same for quick runs, which are never mixed with real ones

A record is there completely or not at all, so "the file exists" means "this run is done". A run whose loss stopped being
finite leaves a record too: that is its result, and running it again would give the same.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfens.config import Config
from selfens.data.labels import LabelChoice
from selfens.errors import RunError
from selfens.experiments.cells import MAX_SEEDS, Cell, Task
from selfens.experiments.data import in_words, shrink
from selfens.experiments.tables import CELLS
from selfens.files import locks
from selfens.runs.experiment import same_experiment
from selfens.upgrade import upgrade_config

FORMAT = 2  # 1 is the same with a config of the first edition
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged file may raise."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run."""

    table: str
    cell: str
    seed: int
    quick: bool
    config: Config
    labelled_rows: str
    """SHA-256 of the lines `row,label` of the labelled rows as they were trained on, by ascending row."""
    data: str
    """The data set's fingerprint: a hash of its images and labels."""
    test_error: tuple[float, ...]
    """In percent, after each epoch."""
    final_error: float | None
    """The last epoch's, never the best one's; None if the loss stopped being finite."""
    seconds: float
    """From the first step to the final error, tests and checkpoints included."""
    seconds_per_epoch: float
    """The median, so that compiling or an interruption does not count."""
    shared_device: bool
    """Another run was on the same device at some time, so the seconds do not measure speed."""
    environment: dict[str, Any]
    """Hardware, precision and library versions."""
    commit: str | None
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """The extra unlabeled images: `source`, the name of the file or folder, and `rows`, how many of it; empty without."""

    def __post_init__(self) -> None:
        """Raise ValueError if a value cannot be one of a run."""
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
        return (
            json.dumps({"format": FORMAT, **asdict(self), "config": json.loads(self.config.to_json())}, indent=1) + "\n"
        )

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record; raises a RunError if another version wrote it, else one of DAMAGE if the text is not a record."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or "format" not in raw:
            raise ValueError("it is not a record")
        version, config = raw.pop("format"), raw.get("config")
        if version not in (1, FORMAT):
            raise RunError("was written by another version of selfens; use that one, or move the record elsewhere.")
        if version == 1 and isinstance(config, dict):
            config = upgrade_config(config)
        return cls(**raw | {"config": Config.from_dict(config), "test_error": tuple(raw.get("test_error", ()))})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_percentage(value: Any) -> bool:
    return _is_number(value) and value <= 100


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)  # half a character


def _is_images(value: object) -> bool:
    if not isinstance(value, dict) or not value:
        return value == {}
    return value.keys() == {"source", "rows"} and _is_text(value["source"]) and type(value["rows"]) is int


EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("table", "cell", "data", "note"), ("text", _is_text)),
    **dict.fromkeys(("quick", "shared_device"), ("true or false", _is_bool)),
    **dict.fromkeys(("seconds", "seconds_per_epoch"), ("a number of seconds", _is_number)),
    "seed": (f"a whole number below {MAX_SEEDS}", lambda value: type(value) is int and 0 <= value < MAX_SEEDS),
    "labelled_rows": ("a hash of 64 digits", lambda value: _is_text(value) and len(value) == 64),
    "test_error": ("numbers from 0 to 100", lambda values: all(map(_is_percentage, values))),
    "final_error": ("a number from 0 to 100, or null", lambda value: value is None or _is_percentage(value)),
    "environment": ("names and values", lambda value: isinstance(value, dict)),
    "commit": ("text, or null", lambda value: value is None or _is_text(value)),
    "extra": ("nothing, or a source and its number of rows", _is_images),
}
"""What each value of a record must be, in words and as a test."""


def rows_hash(choice: LabelChoice) -> str:
    pairs = sorted(zip(choice.rows.tolist(), choice.labels.tolist(), strict=True))
    return hashlib.sha256("".join(f"{row},{label}\n" for row, label in pairs).encode()).hexdigest()


class Store:
    """The records and unfinished runs of a results folder; the quick ones have a folder of their own."""

    def __init__(self, results: Path, *, quick: bool = False) -> None:
        self.quick, self.results = quick, results
        self.root = results / "quick" if quick else results

    def config(self, task: Task) -> Config:
        config = task.cell.config_for(task.seed)
        return shrink(config) if self.quick else config

    def record_path(self, task: Task) -> Path:
        return self.root / "runs" / task.cell.table / task.cell.name / f"seed{task.seed:03d}.json"

    def unfinished_path(self, task: Task) -> Path:
        return self.root / "unfinished" / task.cell.table / task.cell.name / f"seed{task.seed:03d}"

    def has(self, task: Task) -> bool:
        return self.record_path(task).exists()

    # What is known of a run before it has a record

    def mark_shared(self, task: Task) -> None:
        self.unfinished_path(task).with_suffix(".shared").touch()

    def is_shared(self, task: Task) -> bool:
        return self.unfinished_path(task).with_suffix(".shared").exists()

    def note_commit(self, task: Task, commit: str | None) -> None:
        """Remember that this code, if it is known, is about to train a run."""
        known = self.commits(task)
        if commit and commit not in known:
            self.unfinished_path(task).with_suffix(".commits").write_text("\n".join([*known, commit]))

    def commits(self, task: Task) -> list[str]:
        path = self.unfinished_path(task).with_suffix(".commits")
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def claimed(self, task: Task) -> Iterator[bool]:
        """Whether the run is ours to do, for as long as the context lasts; False if another process has it."""
        path = self.unfinished_path(task).with_suffix(".lock")
        make_folder(self.record_path(task).parent)  # now, so that a run is not trained in vain
        make_folder(path.parent)
        try:
            ignored = (self.root if self.quick else self.root / "unfinished") / ".gitignore"
            ignored.write_text("*\n")  # nobody should commit these files
            file = open(path, "a")  # noqa: SIM115  closed below
        except OSError as error:
            raise unwritable(path.parent, error) from None
        with file:
            yield locks.take(file)

    # Records

    def write(self, task: Task, record: Record) -> None:
        """First the record is written, then the run directory removed: a kill at any moment loses nothing."""
        from selfens.files.tensors import write_atomically  # imports torch, which listing the tables does not need

        make_folder(self.record_path(task).parent)
        write_atomically(self.record_path(task), record.to_json().encode())
        self.clear(task)

    def clear(self, task: Task) -> None:
        """Remove everything of a run except its record."""
        path = self.unfinished_path(task)
        shutil.rmtree(path, ignore_errors=True)
        for suffix in (".shared", ".commits"):
            path.with_suffix(suffix).unlink(missing_ok=True)

    def strays(self) -> list[Path]:
        """Files that look like records in places where no cell's records belong."""
        found = {path for cell in CELLS.values() for path in self._paths(cell)}
        every = (self.root / "runs").rglob("*")
        return sorted(path for path in every if path.suffix.lower() == ".json" and path not in found)

    def _paths(self, cell: Cell) -> list[Path]:
        return sorted((self.root / "runs" / cell.table / cell.name).glob("seed*.json"))

    def read(self, cells: Iterable[Cell]) -> list[Record]:
        """All records of these cells, by cell and seed; one error names everything that is wrong with any of them."""
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
                    f"{path} was trained with {in_words(record.extra)} and {first} with {in_words(other.extra)}; move "
                    "one of them to another results folder, because they cannot be averaged."
                )
        return found

    def check_images(self, wanted: Mapping[Cell, Mapping[str, Any]]) -> None:
        """Refuse a cell with records of other extra images than those wanted, whose number may be left out."""
        for cell, images in wanted.items():
            for path, record in self._read_cell(cell).items():
                if not images.items() <= record.extra.items():
                    raise RunError(
                        f"{path} was trained with {in_words(record.extra)}, not with {in_words(images)}; use another "
                        "results folder for these, or remove it."
                    )

    def _read(self, cell: Cell, path: Path) -> Record:
        try:
            record = Record.from_json(path.read_text())
        except RunError as error:
            raise RunError(f"{path} {error}") from None
        except DAMAGE as error:
            raise RunError(f"{path} is damaged ({one_line(error)}); remove it, and the run is done again.") from None
        task = Task(cell, record.seed)
        if path != self.record_path(task) or record.key != cell.key:
            raise RunError(f"{path} is the record of {record.key} seed {record.seed}; it is in the wrong place.")
        if record.quick != self.quick:
            kinds = ("a quick run", "the real ones") if record.quick else ("a real run", "the quick ones")
            raise RunError(f"{path} is the record of {kinds[0]} among {kinds[1]}; remove it.")
        if bool(record.extra) != (cell.extra is not None):
            raise RunError(f"{path} was trained with {in_words(record.extra)}, unlike {cell.key}; remove it.")
        if not same_experiment(record.config, self.config(task)):
            raise RunError(f"{path} has another configuration than {cell.key} has now; remove it to run it again.")
        return record


def one_line(error: Exception) -> str:
    """An error's message as a part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


def make_folder(folder: Path) -> None:
    """A folder that can be written to, created if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unwritable(folder, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def unwritable(folder: Path, error: OSError) -> RunError:
    return RunError(f"{folder} cannot be written to ({error.strerror}); choose another results folder.")
