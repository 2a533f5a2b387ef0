"""Records: what a finished run leaves, and where it lies.

    results/runs/<table>/<cell>/seed<NNN>.json        one finished run: small, kept for good
    results/unfinished/<table>/<cell>/seed<NNN>/      the run directory, with weights; removed when the record is written
    results/unfinished/<table>/<cell>/seed<NNN>.lock  held by the process that is doing the run
    results/quick/...                                 the same for quick runs, which are never mixed with real ones

A record is there whole or not at all, so "the file exists" means "this run is done". The lock is the system's, and is let
go when the process ends, however it ends. A run whose loss stopped being finite leaves a record too: that is its result,
and running it again would give the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from selfens.config import Config, TrainingConfig
from selfens.data.labels import LabelChoice
from selfens.errors import ConfigError, RunError
from selfens.experiments.cells import Cell
from selfens.experiments.tables import Task

FORMAT = 1


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

    @property
    def key(self) -> str:
        return f"{self.table}/{self.cell}"

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record; ValueError, KeyError or TypeError where the text is not one."""
        raw = json.loads(text)
        if raw.pop("format") != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        record = cls(**raw | {"config": Config.from_dict(raw["config"]), "test_error": tuple(raw["test_error"])})
        record._check()
        return record

    def _check(self) -> None:
        epochs = self.config.schedule.epochs
        numbers = (*self.test_error, self.seconds, self.seconds_per_epoch)
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ValueError("a number is missing")
        if self.final_error is not None and len(self.test_error) != epochs:
            raise ValueError(f"{len(self.test_error)} errors for {epochs} epochs")
        if self.final_error is not None and self.final_error != self.test_error[-1]:
            raise ValueError("the final error is not the last epoch's")
        if len(self.labelled_rows) != 64 or not isinstance(self.environment, dict):
            raise ValueError("the labelled rows' hash or the environment is not there")


def extra_words(record: Record) -> str:
    """Such as "120,000 images of natural.npy"."""
    return f"{record.extra['rows']:,} images of {record.extra['source']}" if record.extra else ""


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
        self.quick = quick
        self.root = results / "quick" if quick else results

    def record_path(self, task: Task) -> Path:
        return self.root / "runs" / task.cell.table / task.cell.name / f"seed{task.seed:03d}.json"

    def unfinished_path(self, task: Task) -> Path:
        return self.root / "unfinished" / task.cell.table / task.cell.name / f"seed{task.seed:03d}"

    def has(self, task: Task) -> bool:
        return self.record_path(task).exists()

    @contextmanager
    def claimed(self, task: Task) -> Iterator[bool]:
        """Whether the run is ours to do, for as long as the context lasts; False where another process has it."""
        path = self.unfinished_path(task).with_suffix(".lock")
        self._make(path.parent)
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _make(self, folder: Path) -> None:
        """A folder of files that nobody should commit, which its own .gitignore says."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            private = self.root if self.quick else self.root / "unfinished"
            (private / ".gitignore").write_text("*\n")
        except OSError as error:
            raise RunError(f"{folder} cannot be written to ({error.strerror}); choose another --results.") from None

    def write(self, task: Task, record: Record) -> None:
        """The record first, then away with the run directory: whatever the moment of a kill, nothing is lost."""
        from selfens.tensorfile import write_atomically  # brings torch, which listing the tables does not need

        path = self.record_path(task)
        self._make(self.unfinished_path(task).parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, record.to_json().encode())
        shutil.rmtree(self.unfinished_path(task), ignore_errors=True)

    def read(self, cells: Iterable[Cell]) -> list[Record]:
        """All records of these cells, by cell and seed."""
        paths = ((cell, path) for cell in cells for path in sorted(self._folder(cell).glob("seed*.json")))
        return [self._read(cell, path) for cell, path in paths]

    def _folder(self, cell: Cell) -> Path:
        return self.root / "runs" / cell.table / cell.name

    def _read(self, cell: Cell, path: Path) -> Record:
        try:
            record = Record.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise RunError(f"{path} is damaged ({reason}); remove it, and the run is done again.") from None
        task = Task(cell, record.seed)
        if path != self.record_path(task) or record.key != cell.key:
            raise RunError(f"{path} is the record of {record.key} seed {record.seed}; it lies in the wrong place.")
        if record.quick != self.quick:
            kinds = ("a quick run", "the real ones") if record.quick else ("a real run", "the quick ones")
            raise RunError(f"{path} is the record of {kinds[0]} among {kinds[1]}; remove it.")
        if not same_experiment(record.config, self.config(task)):
            raise RunError(f"{path} is of another configuration than {cell.key} has now; remove it to run it again.")
        return record

    def config(self, task: Task) -> Config:
        """What this store's runs are configured as."""
        from selfens.experiments.quick import shrink

        config = task.cell.config_for(task.seed)
        return shrink(config) if self.quick else config
