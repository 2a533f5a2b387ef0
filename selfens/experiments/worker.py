"""From a cell to a record: `run_cell` does one run, in whatever process it is called.

Stopped by SIGTERM or Ctrl-C within the training it leaves a checkpoint first; anywhere else it may end at once, because
what it was doing is repeated or found done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfens.config import Config
from selfens.errors import DivergedError, RunError, SelfensError
from selfens.experiments.cells import Task
from selfens.experiments.data import Source
from selfens.experiments.records import DAMAGE, Record, Store, one_line, rows_hash
from selfens.files import locks
from selfens.runs.experiment import same_experiment
from selfens.training.progress import Silent

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset
    from selfens.runs.run import Run

CHECKPOINT_EVERY = 10  # epochs: a kill without warning costs some seconds on a GPU
LINE_EVERY_SECONDS = 30


@dataclass(frozen=True)
class Place:
    """Where a run computes."""

    device: str
    """A GPU's number, or `cpu`."""
    threads: int | None = None


def see_only(place: Place) -> None:
    """Let this process see no GPU but the place's, by its number among those it sees now; before torch uses any."""
    if place.device != "cpu":
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
        names, number = allowed.split(",") if allowed else [], int(place.device)
        os.environ["CUDA_VISIBLE_DEVICES"] = names[number] if number < len(names) else str(number)


class UnusableError(RunError):
    """A run that was begun and cannot go on; the others can."""


def run_cell(task: Task, place: Place, store: Store, source: Source, commit: str | None) -> Record | None:
    """Do a run, or go on with it, and write its record; None if it is done already or another process is doing it.

    place   has been made the only one by `see_only`, if it is a GPU
    commit  of the code, as it was when this process started: the repository may change while a run lasts
    """
    with store.claimed(task) as is_ours:
        if not is_ours:
            return None
        if store.has(task) or not store.unfinished_path(task).exists():
            store.clear(task)  # what a kill, or a person who removed the run directory, has left
        if store.has(task):
            return None
        with DeviceUse(place.device) as device:
            record = _do(_Watch(task, store, device, commit), task, place, store, source)
        store.write(task, record)
        return record


def _do(watch: _Watch, task: Task, place: Place, store: Store, source: Source) -> Record:
    from selfens.runs.run import load_run

    config, path, note = _config(task, place, store), store.unfinished_path(task), ""
    try:
        run = _train(task, config, path, source.dataset(task), watch)
    except DivergedError as error:
        run = load_run(path, device="cpu")
        note = str(error).partition(";")[0]  # the rest is about files that are about to be removed
    watch.look_at_device()
    try:
        return _record(task, run, store, watch.commit, note)
    except (RunError, *DAMAGE) as error:
        raise _unusable(task, path, error) from None


def _config(task: Task, place: Place, store: Store) -> Config:
    device = "cpu" if place.device == "cpu" else "cuda"
    every = 1 if store.quick else CHECKPOINT_EVERY
    return store.config(task).with_values("training", device=device, threads=place.threads, checkpoint_every=every)


def _train(task: Task, config: Config, path: Path, data: Dataset, watch: _Watch) -> Run:
    """Train, or go on from the last checkpoint."""
    from selfens.training.loop import train

    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return train(config, path, dataset=data, progress=watch)
    try:
        return _continue(path, config, data, watch)
    except (SelfensError, *DAMAGE) as error:
        if watch.epochs:
            raise
        raise _unusable(task, path, error) from None


def _continue(path: Path, config: Config, data: Dataset, watch: _Watch) -> Run:
    """Resume; only read the run if the training was done but the record not written."""
    from selfens.runs.run import load_run
    from selfens.training.loop import resume

    begun = load_run(path, device="cpu")
    if not same_experiment(begun.config, config):
        raise RunError("it was begun with another configuration than the cell has now")
    if begun.finished:
        begun.check_dataset(data)
        return begun
    if begun.config.training.device != config.training.device:
        device = "the CPU" if begun.config.training.device == "cpu" else "a GPU"
        raise RunError(f"it was begun on {device} and can go on only there")
    return resume(path, dataset=data, progress=watch)


def _unusable(task: Task, path: Path, error: Exception) -> UnusableError:
    return UnusableError(f"{task} was begun and cannot go on ({one_line(error)}); remove {path} to do it again.")


def _record(task: Task, run: Run, store: Store, commit: str | None, note: str) -> Record:
    """The record of a run from what its directory holds; with a note, of one that diverged."""
    errors = tuple(epoch["test_error"] for epoch in run.history)
    seconds = [epoch["seconds"] for epoch in run.history] or [0.0]
    extra = run.about.get("extra", {"rows": 0})
    return Record(
        table=task.cell.table,
        cell=task.cell.name,
        seed=task.seed,
        quick=store.quick,
        config=run.config.with_values("data", folder=None),
        labelled_rows=rows_hash(run.labels),
        data=run.about["fingerprint"],
        test_error=errors,
        final_error=None if note else errors[-1],
        seconds=round(sum(seconds), 3),
        seconds_per_epoch=round(statistics.median(seconds), 4),
        shared_device=store.is_shared(task),
        environment=run.about["environment"],
        commit=", then ".join(store.commits(task)) or commit,
        note=note,
        extra={"source": Path(extra["source"]).name, "rows": extra["rows"]} if extra["rows"] else {},
    )


class _Watch(Silent):
    """The progress of a training: prints a line now and then, and notes what the record must say."""

    warned: set[str] = set()  # shared by all runs of the process, which mostly have the same warnings

    def __init__(self, task: Task, store: Store, device: DeviceUse, commit: str | None) -> None:
        self.task, self.store, self.device, self.commit = task, store, device, commit
        self.epochs, self.last = 0, time.monotonic()

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.epochs = epochs
        self.store.note_commit(self.task, self.commit)
        self._say(f"goes on after epoch {first_epoch}/{epochs}" if first_epoch else f"started, {epochs} epochs")

    def epoch(self, record: dict[str, Any]) -> None:
        self.look_at_device()
        if time.monotonic() - self.last > LINE_EVERY_SECONDS:
            self.last = time.monotonic()
            self._say(f"epoch {record['epoch'] + 1}/{self.epochs}, test error {record['test_error']:.2f} %")

    def warn(self, message: str) -> None:
        if message not in self.warned:
            self.warned.add(message)
            self._say(f"warning: {message}")

    def look_at_device(self) -> None:
        """At every epoch: what is not noted before a checkpoint is not known after a kill."""
        if self.device.is_shared():
            self.store.mark_shared(self.task)

    def _say(self, text: str) -> None:
        try:
            sys.stdout.write(f"{self.task}: {text}\n")
            sys.stdout.flush()
        except OSError:  # nobody reads it any more, so nobody wants the run: stop at a checkpoint
            self._say = lambda text: None  # type: ignore[method-assign]
            signal.raise_signal(signal.SIGTERM)


class DeviceUse:
    """Whether another run, of any command of this user on this machine, has been on the same device meanwhile.

    Each run holds a shared lock on the device's file and appends a byte when it begins. So whoever comes later finds the
    lock, and whoever was there before finds the file longer.
    """

    def __init__(self, device: str) -> None:
        name = device if device == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES", device)
        self.path = Path(tempfile.gettempdir()) / f"selfens-{os.getuid()}-{name.replace('/', '-')}.lock"
        self._file: int | None = None
        self._length = sys.maxsize
        self._met_others = False

    def __enter__(self) -> DeviceUse:
        with contextlib.suppress(OSError):  # then nobody can know; the run itself does not need it
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # one at a time, because changing a lock's kind is not atomic
            self._met_others = not locks.take(self._file)
            locks.take(self._file, shared=True)
            os.write(self._file, b".")
            self._length = os.fstat(self._file).st_size
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def is_shared(self) -> bool:
        return self._met_others or (self._file is not None and os.fstat(self._file).st_size > self._length)


def current_commit() -> str | None:
    """The commit of this code: $SELFENS_COMMIT, else what git says of the folder that holds the package, if it is one."""
    stated = os.environ.get("SELFENS_COMMIT")
    repository = Path(__file__).parents[2]
    if stated or not (repository / ".git").exists():
        return stated or None
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=repository, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
