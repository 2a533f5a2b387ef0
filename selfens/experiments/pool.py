"""The pool: every run in a process of its own, one at a time on each device.

Kill it at any moment and start it again: what was finished is not repeated, what was begun continues from its checkpoint.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from selfens.errors import SelfensError, visible
from selfens.experiments.data import DataLocation
from selfens.experiments.records import Store
from selfens.experiments.tables import Task
from selfens.experiments.worker import run_cell
from selfens.training.interrupt import StopRequest

POLL_SECONDS = 0.2
CONTEXT: Any = multiprocessing.get_context("spawn")  # CUDA does not survive a fork


def run_all(
    tasks: Sequence[Task], store: Store, location: DataLocation, devices: Sequence[str], say: Callable[[str], None]
) -> tuple[int, bool]:
    """Do the runs that have no record yet, and return how many failed and whether somebody stopped it.

    `devices` are numbers of GPUs, or `cpu`; one named twice gets two runs at a time.
    """
    for task in filter(store.has, tasks):
        store.clear(task)  # what a kill has left
    with store.claimed(tasks[0]):
        pass  # a folder that cannot be written to is refused once, not by every run
    waiting, free = deque(task for task in tasks if not store.has(task)), list(devices)
    running: dict[Any, tuple[Any, Task, str]] = {}  # process, task and device by what `wait` waits for
    failed = 0
    with StopRequest() as stop:
        try:
            while (waiting or running) and not stop.requested:
                while waiting and free:
                    task, device = waiting.popleft(), free.pop(0)
                    is_shared = devices.count(device) > 1
                    process = CONTEXT.Process(target=_run, args=(task, device, store, location, is_shared))
                    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: no Ctrl-C while it starts
                    process.start()
                    signal.signal(signal.SIGINT, before)
                    running[process.sentinel] = (process, task, device)
                for sentinel in wait(list(running), POLL_SECONDS):
                    process, task, device = running.pop(sentinel)
                    process.join()
                    free.append(device)
                    if process.exitcode and not store.has(task):
                        failed += 1
                        say(f"warning: {task} was left out (exit code {process.exitcode}); run it again to continue.")
                    say(f"{sum(map(store.has, tasks))} of {len(tasks)} runs done")
        finally:  # if our own output is gone or the disk is full, the runs stop at a checkpoint too
            for process, _, _ in running.values():
                process.terminate()  # once: a second signal would end a run before its checkpoint is written
            for process, _, _ in running.values():
                process.join()
    return failed, stop.requested


def _run(task: Task, device: str, store: Store, location: DataLocation, is_shared: bool) -> None:
    """The body of a run's process."""
    os.setpgrp()  # Ctrl-C reaches only the pool, which passes it on once: a second signal would skip the checkpoint
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if device != "cpu":  # torch, which has not started yet, will see only this one of the GPUs that are visible now
        allowed, number = os.environ.get("CUDA_VISIBLE_DEVICES"), int(device)
        names = allowed.split(",") if allowed else []
        os.environ["CUDA_VISIBLE_DEVICES"] = names[number] if number < len(names) else str(number)
    try:
        run_cell(task, device, store, location, is_shared=is_shared)
    except SelfensError as error:
        sys.exit(visible(str(error)))  # prints it; the exit code is 1
    except KeyboardInterrupt:
        pass


def _stop_with_parent() -> None:
    """Stop, after a checkpoint, when the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
