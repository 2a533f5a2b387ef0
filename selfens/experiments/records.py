"""Records of finished runs, and where they are stored.

    results/runs/<table>/<cell>/seed<NNN>.json        the record of one finished run
    results/unfinished/<table>/<cell>/seed<NNN>/      the run directory, with weights; removed once the record is written
    results/unfinished/<table>/<cell>/seed<NNN>.lock  held by the process that is doing the run
    results/quick/...                                 the same for quick runs

A record is written completely or not at all: if the file exists, the run is done. A run that diverges leaves a record too,
because running it again would give the same result.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfens.config import Config, same_experiment
from selfens.errors import RunError
from selfens.errors import one_line as one_line
from selfens.experiments.tables import Cell, Task
from selfens.files import check_regular, lock
from selfens.files.tensors import write_atomically
from selfens.settings import Section

FORMAT = 2
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a damaged record may raise."""
NOT_NEGATIVE = {"bounds": {"at_least": 0}}


@dataclass(frozen=True, kw_only=True)
class ExtraImages(Section):
    """The extra unlabeled images of a run."""

    section = "extra"
    source: str
    """The name of the file or folder."""
    rows: int

    def __str__(self) -> str:
        return f"{self.rows:,} images of {self.source}"


@dataclass(frozen=True, kw_only=True)
class Record(Section):
    """One finished run."""

    section = "record"
    table: str
    cell: str
    seed: int = field(metadata=NOT_NEGATIVE)
    quick: bool
    config: Config
    labeled_rows: str
    """`LabelChoice.digest` of the labels that were trained on."""
    data: str
    """Hash of the images and labels."""
    test_error: tuple[float, ...]
    """After each epoch."""
    final_error: float | None
    """After the last epoch, never the best one; None if the run diverged."""
    seconds: float = field(metadata=NOT_NEGATIVE)
    """From the first step to the last evaluation, with evaluations and checkpoints."""
    seconds_per_epoch: float = field(metadata=NOT_NEGATIVE)
    """The median, which ignores compiling and interruptions."""
    shared_device: bool
    """Other runs may have used the device meanwhile, so the seconds do not measure speed."""
    environment: dict[str, Any]
    """Hardware, precision and library versions."""
    commit: str | None
    note: str = ""
    extra: ExtraImages | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch("[0-9a-f]{64}", self.labeled_rows):
            raise ValueError("labeled_rows is not a SHA-256 in hexadecimal digits")
        if not all(type(error) in (int, float) and 0 <= error <= 100 for error in self.test_error):
            raise ValueError("test_error is not a list of percentages")
        if self.final_error is not None and self.test_error[self.config.schedule.epochs - 1 :] != (self.final_error,):
            raise ValueError(f"test_error does not end with final_error after {self.config.schedule.epochs} epochs")

    @property
    def key(self) -> str:
        return f"{self.table}/{self.cell}"

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self), "config": self.config.to_dict()}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record; raise one of DAMAGE if the text is not one."""
        raw = json.loads(text)
        json.dumps(raw, ensure_ascii=False).encode()  # raises if there is a lone surrogate
        version, config, extra = raw.pop("format"), raw.pop("config"), raw.pop("extra", None)
        if version != FORMAT:
            raise ValueError("it was written by another version of selfens")
        return cls(
            **raw | {"test_error": tuple(raw["test_error"])},
            config=Config.from_dict(config),
            extra=ExtraImages(**extra) if extra else None,
        )


class Store:
    """The records and unfinished runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def record_path(self, task: Task) -> Path:
        return self.root / "runs" / task.cell.key / f"seed{task.seed:03d}.json"

    def unfinished_path(self, task: Task) -> Path:
        return self.root / "unfinished" / task.cell.key / f"seed{task.seed:03d}"

    def has(self, task: Task) -> bool:
        return self.record_path(task).exists()

    @contextmanager
    def claimed(self, task: Task) -> Iterator[bool]:
        """Claim a run while the context lasts; yield False if another process has it."""
        path = self.unfinished_path(task).with_suffix(".lock")
        with ExitStack() as stack:
            with writable(self.record_path(task).parent), writable(path.parent):  # fail before training, not after
                check_regular(path)
                is_ours = lock(stack.enter_context(open(path, "a")))
            yield is_ours

    def write(self, task: Task, record: Record) -> None:
        """Write the record, then remove the run directory: a kill at any moment loses nothing."""
        with writable(self.record_path(task).parent):
            write_atomically(self.record_path(task), record.to_json().encode())
        self.clear(task)

    def clear(self, task: Task) -> None:
        """Remove everything of a run except its record."""
        shutil.rmtree(self.unfinished_path(task), ignore_errors=True)

    def read(self, cells: Iterable[Cell]) -> list[Record]:
        """Return all records of these cells, in order of cell and seed."""
        records = []
        for cell in cells:
            folder = self.root / "runs" / cell.key
            found = [self._read(cell, path) for path in sorted(folder.glob("seed*.json"))]
            images = sorted({str(record.extra) for record in found})
            if len(images) > 1:
                both = " and ".join(images)
                raise RunError(f"the runs in {folder} had {both}, which cannot be averaged; move some elsewhere.")
            records += found
        return records

    def _read(self, cell: Cell, path: Path) -> Record:
        try:
            if not path.is_file():
                raise OSError("it is not a regular file")  # reading a pipe would block forever
            record = Record.from_json(path.read_text())
        except DAMAGE as error:
            raise RunError(f"{path} is not a record ({one_line(error)}); move it away to repeat the run.") from None
        task = Task(cell, record.seed)
        if path != self.record_path(task) or record.key != cell.key:
            raise RunError(f"{path} is the record of {record.key} seed {record.seed}; it is in the wrong place.")
        if (record.extra is None) != (cell.extra is None) or not same_experiment(record.config, task.config):
            raise RunError(f"{path} has a different config than {cell.key} has now; remove it to repeat the run.")
        return record


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Create the folder if need be; any OSError inside the context becomes one sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise RunError(f"{folder} cannot be written to ({error.strerror}); choose another results folder.") from None
