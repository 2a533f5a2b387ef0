"""The runner: one worker per device, until nothing is missing, the time is up, or a person stops it.

Kill it at any moment and start it again: what was finished is not repeated, what was begun goes on from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from selfens.errors import ConfigError, DataError, DeviceError
from selfens.experiments import quick
from selfens.experiments.cells import OFFICIAL_ROWS, Cell
from selfens.experiments.extra_images import ExtraImages
from selfens.experiments.records import Store
from selfens.experiments.tables import Task
from selfens.experiments.view import View
from selfens.experiments.worker import Event, Place, work
from selfens.training.interrupt import StopRequest

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a call of the runner ended."""

    missing: int
    """Runs without a record; another runner may be doing some of them."""
    stopped: bool
    """A person stopped it."""
    failures: tuple[str, ...]
    """One sentence for each run or worker that could not go on, where that has left something missing."""
    time_is_up: bool = False
    trained: bool = field(default=False, compare=False)
    """At least one epoch."""


@dataclass(frozen=True)
class Failure:
    """Why a run, or a worker with all that it might have done, could not go on."""

    sentence: str
    task: Task | None = None


@dataclass
class Process:
    """A worker as the runner sees it."""

    place: Place
    process: SpawnProcess
    pipe: Connection
    asked_to_stop: bool = False
    explained: bool = False
    """It has said why it ended, or the person has been told that it did."""
    trained: bool = False
    """It has told of an epoch."""

    def ask_to_stop(self) -> None:
        """Once: a second signal would end it before its checkpoint is written."""
        if not self.asked_to_stop and self.process.is_alive():
            self.process.terminate()
        self.asked_to_stop = True


def run(
    tasks: Sequence[Task],
    store: Store,
    *,
    places: Sequence[Place],
    view: View,
    data_dir: Path | None = None,
    extra: ExtraImages | None = None,
    max_minutes: float | None = None,
) -> Outcome:
    """Do the runs among `tasks` that have no record yet."""
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    images = {} if store.quick else _check_data(tasks, store, data_dir, extra)
    missing = [task for task in tasks if not store.has(task)]
    failures: list[Failure] = []
    workers: list[Process] = []
    stopped = time_is_up = False
    if missing:
        with StopRequest() as stop, view:
            workers = [_start(store, missing, place, data_dir, extra) for place in places[: len(missing)]]
            try:
                while any(worker.process.is_alive() for worker in workers):
                    _listen(workers, view, failures)
                    time_is_up = time_is_up or (deadline is not None and time.monotonic() > deadline)
                    if stop.requested or time_is_up:
                        for worker in workers:
                            worker.ask_to_stop()
                _listen(workers, view, failures)
            finally:
                _end(workers)
            stopped = stop.requested
    store.check_images(images)  # again: another command may have filled a cell with others meanwhile
    left = {task for task in tasks if not store.has(task)}
    matter = [failure.sentence for failure in failures if failure.task in left or (failure.task is None and left)]
    trained = any(worker.trained for worker in workers)
    return Outcome(len(left), stopped, tuple(dict.fromkeys(matter)), time_is_up, trained)


def _check_data(
    tasks: Sequence[Task], store: Store, data_dir: Path | None, extra: ExtraImages | None
) -> dict[Cell, dict[str, Any]]:
    """Read, and if need be download, each data set once before several processes want it.

    Returns the extra images of each cell that has some, having refused a cell whose records have others.
    """
    from selfens.data import sources

    with_images = {task.cell for task in tasks if task.cell.extra is not None} if extra is not None else set()
    if extra is not None:
        store.check_images({cell: {"source": extra.name} for cell in with_images})  # before anything is downloaded
    wanted = [task for task in tasks if task.cell in with_images or not store.has(task)]
    first = {(task.cell.config.data.name, task.cell.extra): task for task in reversed(wanted)}
    images: dict[Cell, dict[str, Any]] = {}
    for (name, which), task in first.items():
        main = sources.load(name, data_dir=data_dir, progress=True)
        _check_size(name, main.main_rows, len(main.test_labels))
        if which is not None and extra is not None:
            rows = extra.added_to(main, task.cell, task.seed, data_dir).extra_rows
            images |= {cell: {"source": extra.name, "rows": rows} for cell in with_images if cell.extra == which}
    store.check_images(images)
    return images


def _check_size(name: str, rows: int, test_rows: int) -> None:
    """Refuse data that cannot be the paper's."""
    expected = OFFICIAL_ROWS.get(name)
    if expected and (rows, test_rows) != expected:
        raise DataError(
            f"{name} has {rows:,} training and {test_rows:,} test images here; the official files, which the paper's tables "
            f"are about, have {expected[0]:,} and {expected[1]:,}. Name their folder by --data-dir."
        )


def _start(store: Store, tasks: list[Task], place: Place, data_dir: Path | None, extra: ExtraImages | None) -> Process:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(store, tasks, place, data_dir, theirs, extra))
    process.start()
    theirs.close()
    return Process(place, process, ours)


def _listen(workers: Sequence[Process], view: View, failures: list[Failure]) -> None:
    """Pass on what the workers have said."""
    for worker, event in _said(workers):
        _heard(worker, event, view, failures)
    for worker in workers:
        if worker.pipe.closed and (sentence := _unexplained_end(worker)):
            worker.explained = True
            failures.append(Failure(sentence))
            view.show(Event("warning", text=sentence))
    view.refresh()


def _said(workers: Sequence[Process]) -> list[tuple[Process, Event]]:
    """What has come through the pipes within a moment; one is closed where nothing can come any more."""
    talking = {worker.pipe: worker for worker in workers if not worker.pipe.closed}
    if not talking:
        time.sleep(POLL_SECONDS)
    events = []
    for pipe in wait(list(talking), POLL_SECONDS):
        assert isinstance(pipe, Connection)
        try:
            while pipe.poll():
                events.append((talking[pipe], pipe.recv()))
        except (EOFError, OSError):
            pipe.close()
    return events


def _end(workers: Sequence[Process]) -> None:
    """Where this process cannot go on, its output gone or its disk full: the workers stop at a checkpoint too.

    What they say until then is read, because a pipe that is full would hold them up.
    """
    while any(worker.process.is_alive() for worker in workers):
        for worker in workers:
            worker.ask_to_stop()
        _said(workers)


def _heard(worker: Process, event: Event, view: View, failures: list[Failure]) -> None:
    view.show(event)
    worker.trained = worker.trained or event.kind == "finished" or (event.kind == "epoch" and event.error is not None)
    if event.kind == "failed":
        worker.explained = True
        failures.append(Failure(event.text))
    elif event.kind == "refused":
        failures.append(Failure(event.text, event.task))


def _unexplained_end(worker: Process) -> str | None:
    worker.process.join()
    code = worker.process.exitcode
    expected = (0, -signal.SIGTERM) if worker.asked_to_stop else (0,)
    if worker.explained or code in expected:
        return None
    return f"the worker on {worker.place.device} ended unexpectedly (code {code}); call again to go on."


def parse_devices(text: str | None, *, quick_runs: bool) -> list[Place]:
    """`0,1` or `cpu`; a device named twice gets two workers. By default every GPU, else the CPU."""
    names = _default_devices(quick_runs) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != "cpu" and not name.isdecimal():
            raise ConfigError(f"--devices is '{text}'; expected numbers of GPUs such as 0,1, or cpu.")
    _check_present([int(name) for name in names if name != "cpu"])
    # Quick runs are too small for a second thread, which would only be in the way of other programs.
    threads = 1 if quick_runs else max(1, (os.cpu_count() or 1) // max(1, names.count("cpu")))
    return [Place(name, threads if name == "cpu" else None) for name in names]


def _default_devices(quick_runs: bool) -> list[str]:
    if quick_runs:
        return ["cpu"] * min(quick.SEEDS, os.cpu_count() or 1)
    import torch

    return [str(number) for number in range(torch.cuda.device_count())] or ["cpu"]


def _check_present(gpus: list[int]) -> None:
    if not gpus:
        return
    import torch

    count = torch.cuda.device_count()
    if max(gpus) >= count:
        seen = f"torch sees {count} of them, numbered from 0" if count else "torch sees none here"
        raise DeviceError(f"GPU {max(gpus)} was asked for, but {seen}; use --devices cpu or other numbers.")
