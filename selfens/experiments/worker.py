"""A worker: one process that goes through the runs and does those that are neither done nor being done.

Workers need no queue: a run is claimed by its lock, so any number of them, of any number of runners, share the work. A
worker is asked to stop by SIGTERM: within the training that means a checkpoint first; anywhere else the process may end
at once, because what it was doing is repeated or found done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from selfens.config import Config
from selfens.errors import DivergedError, RunError, SelfensError
from selfens.experiments.extra_images import ExtraImages
from selfens.experiments.presence import present
from selfens.experiments.quick import made_up, with_made_up_extra
from selfens.experiments.records import DAMAGE, Record, Store, rows_hash, same_experiment
from selfens.experiments.tables import Task
from selfens.training.progress import Silent

if TYPE_CHECKING:
    from selfens.data.dataset import Dataset
    from selfens.runs.run import Run

CHECKPOINT_EVERY = 10  # epochs: a kill without warning costs some seconds on a GPU


@dataclass(frozen=True)
class Place:
    """Where a worker computes."""

    device: str
    """A GPU's number, or `cpu`."""
    threads: int | None = None


@dataclass(frozen=True)
class Event:
    """What a worker tells the runner."""

    kind: Literal["started", "epoch", "finished", "diverged", "refused", "stopped", "failed", "warning"]
    task: Task | None = None
    epoch: int = 0
    error: float | None = None
    text: str = ""


class UnusableError(RunError):
    """A run that was begun and cannot go on; the others can."""


def work(
    store: Store,
    tasks: Sequence[Task],
    place: Place,
    data_dir: Path | None,
    pipe: Connection,
    extra: ExtraImages | None = None,
) -> None:
    """Do what is missing; the body of a worker's process."""
    os.setpgrp()  # Ctrl-C reaches the runner alone, which passes it on once: a second signal would skip the checkpoint
    threading.Thread(target=_stop_with_runner, daemon=True).start()
    if place.device != "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(int(place.device))
    worker = Worker(store, place, data_dir, pipe, extra)
    try:
        while any(worker.consider(task) for task in tasks):
            pass  # from the beginning each time: another worker may have been killed, and left its run to us
    except KeyboardInterrupt:
        worker.tell(Event("stopped"))
    except SelfensError as error:
        worker.tell(Event("failed", worker.task, text=str(error)))
        sys.exit(1)


def _stop_with_runner() -> None:
    """End, after a checkpoint, when the process that started this one is gone."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        runner.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _visible(number: int) -> str:
    """The GPU of that number among those this process may see."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = allowed.split(",") if allowed else []
    return names[number] if number < len(names) else str(number)


class Worker(Silent):
    """Also the `Progress` of its trainings: it passes on what happens."""

    def __init__(
        self,
        store: Store,
        place: Place,
        data_dir: Path | None,
        pipe: Connection,
        extra: ExtraImages | None = None,
    ) -> None:
        self.store, self.place, self.data_dir, self.pipe, self.extra = store, place, data_dir, pipe, extra
        self.commit = commit()  # now: by the end of a run the repository may have gone on
        self.task: Task | None = None
        self.refused: set[Task] = set()
        self._training = False
        self._loaded: tuple[str, Dataset] | None = None

    def consider(self, task: Task) -> bool:
        """Do a run unless it is done or another process has it; says whether it was ours to do."""
        if task in self.refused or (self.store.has(task) and not self.store.unfinished_path(task).exists()):
            return False
        with self.store.claimed(task) as ours:
            if not ours:
                return False
            if self.store.has(
                task
            ):  # done between the two questions, or by one that was killed before it had cleared up
                self.store.clear(task)
                return False
            self.task = task
            self.store.make_room(task)
            try:
                with self._present(task):
                    self._do(task)
            except UnusableError as error:
                self.refused.add(task)
                self.tell(Event("refused", task, text=str(error)))
            return True

    def _present(self, task: Task) -> AbstractContextManager[None]:
        if not self.store.unfinished_path(task).exists():
            self.store.clear(task)  # marks of a run that somebody has removed
        device = "cpu" if self.place.device == "cpu" else os.environ["CUDA_VISIBLE_DEVICES"]
        return present(device, self.store.shared_mark(task))

    def _do(self, task: Task) -> None:
        from selfens.runs.run import load_run

        self.tell(Event("started", task))
        try:
            run = self._train(task)
        except DivergedError as error:
            run = load_run(self.store.unfinished_path(task), device="cpu")
            reason = str(error).partition(";")[0]  # what follows is about files that are gone then
            self.store.write(task, self._record(task, run, note=reason, diverged=True))
            self.tell(Event("diverged", task, text=str(error)))
            return
        record = self._record(task, run)
        self.store.write(task, record)
        self.tell(Event("finished", task, record.config.schedule.epochs, record.final_error))

    def _train(self, task: Task) -> Run:
        """Trained, or picked up where it was left."""
        from selfens.training.loop import train

        path, config, data = self.store.unfinished_path(task), self._config(task), self._data(task)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return train(config, path, dataset=data, progress=self)
        self._training = False
        try:
            return self._picked_up(path, config, data)
        except (SelfensError, *DAMAGE) as error:
            if self._training:
                raise
            raise self._unusable(task, error) from None

    def _picked_up(self, path: Path, config: Config, data: Dataset) -> Run:
        """Continued, or only read where the training was done but the record not written."""
        from selfens.runs.run import load_run
        from selfens.training.loop import resume

        begun = load_run(path, device="cpu")
        if not same_experiment(begun.config, config):
            raise RunError("it was begun with another configuration than the cell has now")
        if begun.finished:
            begun.check_dataset(data)
            return begun
        if begun.config.training.device != config.training.device:
            where = "the CPU" if begun.config.training.device == "cpu" else "a GPU"
            raise RunError(f"it was begun on {where}, where --devices can let it go on")
        return resume(path, dataset=data, progress=self)

    def _unusable(self, task: Task, error: Exception) -> UnusableError:
        reason = " ".join(str(error).split()).rstrip(".")
        path = self.store.unfinished_path(task)
        return UnusableError(f"{task} was begun and cannot go on ({reason}); remove {path} to do it anew.")

    def _config(self, task: Task) -> Config:
        device: Literal["cpu", "cuda"] = "cpu" if self.place.device == "cpu" else "cuda"
        every = 1 if self.store.quick else CHECKPOINT_EVERY
        return self.store.config(task).with_values(
            "training", device=device, threads=self.place.threads, checkpoint_every=every, report=False
        )

    def _data(self, task: Task) -> Dataset:
        """The data set, kept from one run to the next, with the extra images of the cell."""
        from selfens.data import sources

        name = task.cell.config.data.name
        if self._loaded is None or self._loaded[0] != name:
            data = made_up(name) if self.store.quick else sources.load(name, data_dir=self.data_dir)
            self._loaded = (name, data)
        main = self._loaded[1]
        if task.cell.extra is None:
            return main
        if self.store.quick:
            return with_made_up_extra(main)
        assert self.extra is not None, "a cell with extra images is chosen only where there are some"
        return self.extra.added_to(main, task.cell, task.seed, self.data_dir)

    def _record(self, task: Task, run: Run, *, note: str = "", diverged: bool = False) -> Record:
        try:
            return make_record(
                task,
                config=run.config,
                about=run.about,
                history=run.history,
                labelled_rows=rows_hash(run.labels),
                quick=self.store.quick,
                shared_device=self.store.shared_mark(task).exists(),
                commit=", then ".join(self.store.commits(task)) or self.commit,
                note=note,
                diverged=diverged,
            )
        except (RunError, *DAMAGE) as error:
            raise self._unusable(task, error) from None

    def tell(self, event: Event) -> None:
        with contextlib.suppress(OSError):  # the runner is gone, and we are about to be stopped
            self.pipe.send(event)

    # What a training tells its Progress

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self._training = True
        assert self.task is not None
        self.store.note_commit(self.task, self.commit)
        self.tell(Event("epoch", self.task, first_epoch))

    def epoch(self, record: dict[str, Any]) -> None:
        self.tell(Event("epoch", self.task, record["epoch"] + 1, record["test_error"]))

    def warn(self, message: str) -> None:
        self.tell(Event("warning", self.task, text=message))


def make_record(
    task: Task,
    *,
    config: Config,
    about: dict[str, Any],
    history: list[dict[str, Any]],
    labelled_rows: str,
    quick: bool,
    shared_device: bool,
    commit: str | None,
    note: str = "",
    diverged: bool = False,
) -> Record:
    """The record of a run from what its directory holds."""
    errors = tuple(epoch["test_error"] for epoch in history)
    seconds = [epoch["seconds"] for epoch in history] or [0.0]
    extra = about.get("extra", {"rows": 0})
    return Record(
        table=task.cell.table,
        cell=task.cell.name,
        seed=task.seed,
        quick=quick,
        config=config.with_values("data", folder=None),
        labelled_rows=labelled_rows,
        data=about["fingerprint"],
        test_error=errors,
        final_error=None if diverged else errors[-1],
        seconds=round(sum(seconds), 3),
        seconds_per_epoch=round(statistics.median(seconds), 4),
        shared_device=shared_device,
        environment=about["environment"],
        commit=commit,
        note=note,
        extra={"source": Path(extra["source"]).name, "rows": extra["rows"]} if extra["rows"] else {},
    )


def commit() -> str | None:
    """The commit this code is of: $SELFENS_COMMIT, else what git says of the folder the package lies in, if it is one."""
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
