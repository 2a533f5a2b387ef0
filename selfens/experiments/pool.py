"""The pool: one worker process per place, each given one run after the other.

Kill it at any moment and start it again: what was finished is not repeated, what was begun goes on from its checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from selfens.errors import ConfigError, DeviceError, SelfensError
from selfens.experiments.cells import Cell, Task
from selfens.experiments.data import QUICK_SEEDS, Source, official
from selfens.experiments.records import Record, Store
from selfens.experiments.worker import Place, UnusableError, current_commit, run_cell, see_only
from selfens.training.interrupt import StopRequest

POLL_SECONDS = 0.2
CONTEXT: Any = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
Result = Record | SelfensError | None
"""What comes back from a worker: None if there was nothing to do."""


@dataclass(frozen=True)
class Outcome:
    """How a call of the pool ended."""

    missing: int
    """Runs without a record; another command may be doing some of them."""
    stopped: bool = False
    """A person stopped it."""
    time_is_up: bool = False
    failures: tuple[str, ...] = ()
    """One sentence for each run or worker that could not go on, if that has left something missing."""


class Worker:
    """A process that does runs, as its pool sees it."""

    def __init__(self, place: Place, store: Store, source: Source, commit: str | None) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, place, store, source, commit))
        resource_tracker.ensure_running()  # before, because starting it unblocks the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the new process inherits
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self.place = place
        self.task: Task | None = None
        self.asked_to_stop = False

    def begin(self, task: Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # if it has died, `result` will tell
            self.pipe.send(task)

    def result(self) -> Result:
        """What has become of its task; raises EOFError if the process has ended instead."""
        try:
            answer: Result = self.pipe.recv()
        except OSError:
            raise EOFError from None
        self.task = None
        return answer

    def stop(self) -> None:
        """Once: a second signal would end it before its checkpoint is written."""
        if not self.asked_to_stop and self.process.is_alive():
            self.process.terminate()
        self.asked_to_stop = True


def _serve(pipe: Connection, place: Place, store: Store, source: Source, commit: str | None) -> None:
    """The body of a worker's process."""
    os.setpgrp()  # Ctrl-C reaches only the pool, which passes it on once: a second signal would skip the checkpoint
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also one that came before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    see_only(place)
    try:
        while True:
            task = pipe.recv()
            try:
                result: Result = run_cell(task, place, store, source, commit)
            except SelfensError as error:
                result = error
            pipe.send(result)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass


def _stop_with_parent() -> None:
    """Stop, after a checkpoint, when the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class Pool:
    """Does runs in as many processes as there are places."""

    def __init__(self, store: Store, source: Source, places: Sequence[Place], say: Callable[[str], None]) -> None:
        self.store, self.source, self.places, self.say = store, source, places, say
        self.waiting: deque[Task] = deque()
        self.elsewhere: list[Task] = []
        """Another process had them when we asked; it may have been stopped since."""
        self.failures: list[tuple[Task | None, str]] = []
        self.workers: list[Worker] = []

    def run(self, tasks: Sequence[Task], deadline: float | None = None) -> Outcome:
        """Do the runs among `tasks` that have no record yet, until a deadline by the monotonic clock."""
        left_behind = (task for task in tasks if self.store.has(task) and self.store.unfinished_path(task).exists())
        self.waiting.extend([*(task for task in tasks if not self.store.has(task)), *left_behind])
        self.tasks, commit, time_is_up = tasks, current_commit(), False
        with StopRequest() as stop:
            try:
                for place in self.places[: len(self.waiting)]:
                    self.workers.append(Worker(place, self.store, self.source, commit))
                while self._hand_out(stopping=stop.requested or time_is_up):
                    self._collect()
                    time_is_up = time_is_up or (deadline is not None and time.monotonic() > deadline)
                    if stop.requested or time_is_up:
                        for worker in self.workers:
                            worker.stop()
            finally:  # if our own output is gone or the disk is full, the workers stop at a checkpoint too
                for worker in self.workers:
                    worker.stop()
                for worker in list(self.workers):
                    self._retire(worker)
        left = [task for task in tasks if not self.store.has(task)]
        matter = [text for task, text in self.failures if task in left or (task is None and left)]
        return Outcome(len(left), stop.requested, time_is_up, tuple(dict.fromkeys(matter)))

    def _hand_out(self, *, stopping: bool) -> bool:
        """Give every idle worker something to do; says whether any is at work."""
        for worker in self.workers:
            if worker.task is None and self.waiting and not stopping:
                worker.begin(self.waiting.popleft())
        return any(worker.task for worker in self.workers)

    def _collect(self) -> None:
        """What the workers have finished within a moment."""
        busy = {worker.pipe: worker for worker in self.workers if worker.task}
        for pipe in wait(list(busy), POLL_SECONDS):
            worker = busy[pipe]
            task = worker.task
            assert task is not None
            try:
                self._take(worker, task, worker.result())
            except EOFError:
                self._lost(worker, task)

    def _take(self, worker: Worker, task: Task, result: Result) -> None:
        if isinstance(result, Record):
            self.waiting.extend(self.elsewhere)
            self.elsewhere.clear()
            error = result.final_error
            outcome = (
                "diverged; this is recorded as its result" if error is None else f"finished, test error {error:.2f} %"
            )
            done = sum(map(self.store.has, self.tasks))
            self.say(f"{task}: {outcome}  ({done} of {len(self.tasks)} runs done)")
        elif result is not None:
            self.failures.append((task if isinstance(result, UnusableError) else None, str(result)))
            self.say(f"left out: {result}")
            if not isinstance(result, UnusableError):  # such as a full disk, which the next run would meet too
                self._retire(worker)
        elif not self.store.has(task):
            self.elsewhere.append(task)

    def _lost(self, worker: Worker, task: Task) -> None:
        """A worker has ended; its run is left to the others."""
        self._retire(worker)
        if not worker.asked_to_stop:
            self.waiting.append(task)
            code = worker.process.exitcode
            sentence = f"the worker on {worker.place.device} ended unexpectedly (code {code}); call again to go on."
            self.failures.append((None, sentence))
            self.say(f"warning: {sentence}")

    def _retire(self, worker: Worker) -> None:
        worker.pipe.close()  # which an idle worker takes as the end; a signal may have met the end of its last run
        worker.process.join()
        self.workers.remove(worker)


def check_data(tasks: Sequence[Task], store: Store, source: Source) -> dict[Cell, dict[str, Any]]:
    """Read, and if need be download, each data set once before several processes want it.

    Returns the extra images of each cell that has some, having refused a cell whose records have others.
    """
    with_images = {task.cell for task in tasks if task.cell.extra}
    store.check_images({cell: {"source": source.extra_name} for cell in with_images})  # before anything is downloaded
    needed = [task for task in reversed(tasks) if task.cell.extra or not store.has(task)]
    first = {(task.cell.config.data.name, task.cell.extra): task for task in needed}
    rows = {which: source.dataset(task, progress=True).extra_rows for (_, which), task in first.items()}
    official.cache_clear()  # only the workers need it from now on
    images = {cell: {"source": source.extra_name, "rows": rows[cell.extra]} for cell in with_images}
    store.check_images(images)
    return images


def parse_devices(text: str | None, *, quick: bool) -> list[Place]:
    """`0,1` or `cpu`; a device named twice gets two workers. By default every GPU, else the CPU."""
    import torch

    cores, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    default = ["cpu"] * min(QUICK_SEEDS, cores) if quick else [str(number) for number in range(gpus)] or ["cpu"]
    names = default if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name != "cpu" and not name.isdecimal():
            raise ConfigError(f"devices is '{text}'; expected numbers of GPUs such as 0,1, or cpu.")
        if name != "cpu" and int(name) >= gpus:
            seen = f"torch sees {gpus} of them, numbered from 0" if gpus else "torch sees none here"
            raise DeviceError(f"GPU {name} was asked for, but {seen}; name other numbers, or cpu.")
    # Quick runs are too small for a second thread, which would only slow other programs down.
    threads = 1 if quick else max(1, cores // max(1, names.count("cpu")))
    return [Place(name, threads if name == "cpu" else None) for name in names]
