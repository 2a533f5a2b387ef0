"""From a cell to a record: `run_cell` does one run in this process, and `CellRun` is its `pool.Job`.

SIGTERM or Ctrl-C during training leaves a checkpoint. At any other moment the process may simply end: the next call repeats
what it did.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfens.config import same_experiment
from selfens.data import sources
from selfens.errors import DivergedError, RunError, SelfensError
from selfens.experiments.data import DataLocation
from selfens.experiments.records import ExtraImages, Record, Store, one_line
from selfens.experiments.tables import Task
from selfens.runs.run import Run, load_run
from selfens.training import loop
from selfens.training.progress import WarningsOnly

CHECKPOINT_EVERY = 10  # epochs, which take seconds on a GPU
NOTES = "reproduce.txt"  # in the run directory: the commits that trained it, and SHARED
SHARED = "shared device"


@dataclass(frozen=True)
class CellRun:
    """A `pool.Job` that does a run of a table. Its root is the folder of a `Store`."""

    task: Task
    location: DataLocation

    def __str__(self) -> str:
        return str(self.task)

    @property
    def threads(self) -> int | None:
        return self.task.config.training.threads

    @property
    def data(self) -> str:
        return f"{self.task.config.source.title} {self.task.cell.extra}"

    def run(self, root: Path, device: str, *, is_shared: bool) -> None:
        run_cell(self.task, device, Store(root), self.location, is_shared=is_shared)

    def is_done(self, root: Path) -> bool:
        return Store(root).has(self.task)

    def claimed(self, root: Path) -> AbstractContextManager[bool]:
        return Store(root).claimed(self.task)

    def kept(self, root: Path) -> list[Path]:
        store = Store(root)
        return [store.unfinished_path(self.task), store.record_path(self.task)]

    def clear(self, root: Path) -> None:
        Store(root).clear(self.task)

    def check_data(self) -> None:
        self.location.load(self.task)


def run_cell(
    task: Task, device: str, store: Store, location: DataLocation, *, is_shared: bool = False
) -> Record | None:
    """Start or continue a run and write its record. Return None if the run is done or another process is doing it.

    Parameters
    ----------
    device
        `cpu`, or the number of a GPU, which must be the only one that this process sees.
    is_shared
        Other runs use the same device, so the seconds do not measure speed.
    """
    with store.claimed(task) as is_ours:
        if not is_ours or store.has(task):
            return None
        path, diverged = store.unfinished_path(task), ""
        watch = _Watch(task, path / NOTES, is_shared)
        try:
            run = _train(task, "cpu" if device == "cpu" else "cuda", path, location, watch)
        except DivergedError as error:
            run = load_run(path, device="cpu")
            diverged = str(error).partition(";")[0]  # the rest is about files that will be removed
        record = _record(task, run, location.quick, diverged)
        store.write(task, record)
        watch.say("diverged; this is its result" if diverged else f"finished, test error {record.final_error:.2f} %")
        return record


def _train(task: Task, device: str, path: Path, location: DataLocation, watch: _Watch) -> Run:
    """Train or resume a run. If it was killed after training but before its record was written, only load it."""
    config = location.config(task).with_values("training", device=device, checkpoint_every=CHECKPOINT_EVERY)
    if not path.is_file() and not (path.is_dir() and any(path.iterdir())):
        return loop.train(config, path, progress=watch)
    try:
        begun = load_run(path, device="cpu")
        every = begun.config.training.evaluate_every  # changes no result, but a record has the error of every epoch
        if every != 1 or not same_experiment(replace(begun.config, source=config.source), config):
            raise RunError("it was started with a different config than the cell has now")
        dataset = sources.load(config.source, seed=config.seed.of("split"))  # from where the files are now
        if begun.finished:
            begun.data(dataset)  # raises an error if they have changed
            return begun
        if begun.config.training.device != device:
            raise RunError(f"it was started with the device {begun.config.training.device} and can continue only there")
        return loop.resume(path, dataset=dataset, progress=watch)
    except SelfensError as error:
        if watch.epochs:  # it did continue, and failed later
            raise
        reason = f"{task} was started and cannot continue ({one_line(error)}); remove {path} to do it again."
        raise RunError(reason) from None


def _record(task: Task, run: Run, quick: bool, diverged: str) -> Record:
    errors = tuple(epoch["test_error"] for epoch in run.history)
    seconds = [epoch["seconds"] for epoch in run.history] or [0.0]
    notes = dict.fromkeys((run.path / NOTES).read_text().splitlines())
    return Record(
        table=task.cell.table,
        cell=task.cell.name,
        seed=task.seed,
        quick=quick,
        config=replace(run.config, source=task.config.source),
        labeled_rows=run.labels.digest(),
        data=run.info.fingerprint,
        test_error=errors,
        final_error=None if diverged else errors[-1],
        seconds=round(sum(seconds), 3),
        seconds_per_epoch=round(statistics.median(seconds), 4),
        shared_device=SHARED in notes,
        environment=run.info.environment,
        commit=", then ".join(line for line in notes if line != SHARED) or None,
        note=diverged,
        extra=ExtraImages(source=Path(run.info.extra).name, rows=run.info.extra_rows) if run.info.extra_rows else None,
    )


class _Watch(WarningsOnly):
    """Prints a line at each checkpoint, and notes the commit and whether the device is shared, for the record."""

    def __init__(self, task: Task, notes: Path, is_shared: bool) -> None:
        self.task, self.notes, self.epochs = task, notes, 0
        self.lines = [current_commit(), SHARED if is_shared else None]  # now: the repository may change during a run

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.epochs = epochs
        with self.notes.open("a") as file:
            file.writelines(f"{line}\n" for line in self.lines if line)
        self.say(f"continues after epoch {first_epoch}/{epochs}" if first_epoch else f"started, {epochs} epochs")

    def epoch(self, record: dict[str, Any]) -> None:
        if (done := record["epoch"] + 1) % CHECKPOINT_EVERY == 0 and done < self.epochs:
            self.say(f"epoch {done}/{self.epochs}, test error {record['test_error']:.2f} %")

    def warn(self, message: str) -> None:
        self.say(f"warning: {message}")

    def say(self, text: str) -> None:
        with suppress(OSError):  # the output is closed; the run continues
            sys.stdout.write(f"{self.task}: {text}\n")
            sys.stdout.flush()


def current_commit() -> str | None:
    """Return $SELFENS_COMMIT, else what `git describe` prints for the package's checkout; None if it is not in one."""
    stated = os.environ.get("SELFENS_COMMIT")
    repository = Path(__file__).parents[2]
    if stated or not (repository / ".git").exists():
        return stated or None
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(words, cwd=repository, capture_output=True, text=True, timeout=30).stdout.strip() or None
    return None
