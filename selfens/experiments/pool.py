"""The pool: every run in a process of its own, as many at a time as there are devices to run on.

Kill it at any moment and start it again: what was finished is not repeated, what was begun goes on from its checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

from selfens.errors import SelfensError
from selfens.experiments.cells import Task
from selfens.experiments.data import Source
from selfens.experiments.records import Store
from selfens.experiments.worker import current_commit, run_cell, see_only
from selfens.training.interrupt import StopRequest

POLL_SECONDS = 0.2
CONTEXT: Any = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
REFUSED = 3
"""Exit code of a run that has said why it cannot be done; Python's own is 1."""


class Pool:
    """Does runs; a device named twice gets two at a time."""

    def __init__(self, store: Store, source: Source, devices: Sequence[str], say: Callable[[str], None]) -> None:
        self.store, self.source, self.say = store, source, say
        self.free = list(devices)
        self.running: dict[int, tuple[Any, Task, str]] = {}
        """Process, task and device by what `wait` waits for."""
        self.failed, self.stopped, self.time_is_up = 0, False, False
        self.missing = 0
        """Runs without a record in the end; another command may be doing some of them."""

    def run(self, tasks: Sequence[Task], deadline: float | None = None) -> None:
        """Do the runs among `tasks` that have no record yet, until a deadline by the monotonic clock."""
        for task in filter(self.store.has, tasks):
            self.store.clear(task)  # what a kill has left
        waiting = deque(task for task in tasks if not self.store.has(task))
        commit, told = current_commit(), -1
        with StopRequest() as stop:
            try:
                while (waiting or self.running) and not stop.requested and not self.time_is_up:
                    while waiting and self.free:
                        self._start(waiting.popleft(), commit)
                    if self._collect() and (done := sum(map(self.store.has, tasks))) != told:
                        self.say(f"{done} of {len(tasks)} runs done")
                        told = done
                    self.time_is_up = deadline is not None and time.monotonic() > deadline
            finally:  # if our own output is gone or the disk is full, the runs stop at a checkpoint too
                self._stop()
        self.stopped = stop.requested
        self.missing = sum(not self.store.has(task) for task in tasks)

    def _start(self, task: Task, commit: str | None) -> None:
        with self.store.claimed(task) as is_free:
            if not is_free or self.store.has(task):  # another command is doing it, or has done it
                return
        device = self.free.pop(0)
        process = CONTEXT.Process(target=_run, args=(task, device, self.store, self.source, commit))
        resource_tracker.ensure_running()  # before, because starting it unblocks the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the new process inherits
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self.running[process.sentinel] = (process, task, device)

    def _collect(self) -> bool:
        """Wait a moment for runs to end; says whether one did."""
        ended = wait(list(self.running), POLL_SECONDS)
        for sentinel in ended:
            process, task, device = self.running.pop(sentinel)  # type: ignore[arg-type]
            process.join()
            self.free.append(device)
            if process.exitcode and not self.store.has(task):
                self.failed += 1
                if process.exitcode != REFUSED:
                    self.say(f"warning: {task} ended unexpectedly (code {process.exitcode}); call again to go on.")
        return bool(ended)

    def _stop(self) -> None:
        """One signal each: a second would end a run before its checkpoint is written."""
        for process, _, _ in self.running.values():
            process.terminate()
        for process, _, _ in self.running.values():
            process.join()


def _run(task: Task, device: str, store: Store, source: Source, commit: str | None) -> None:
    """The body of a run's process."""
    os.setpgrp()  # Ctrl-C reaches only the pool, which passes it on once: a second signal would skip the checkpoint
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also one that came before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    see_only(device)
    try:
        run_cell(task, device, store, source, commit)
    except SelfensError as error:
        sys.stdout.write(f"left out: {error}\n")
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        pass


def _stop_with_parent() -> None:
    """Stop, after a checkpoint, when the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
