"""The pool: each run in a separate process, one at a time on each device.

It may be killed at any moment. Started again, it skips finished runs and continues the others from their checkpoints.
"""

import multiprocessing
import os
import signal
import sys
import threading
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
    """Do the runs that have no record yet. Return how many failed, and whether Ctrl-C or SIGTERM stopped the pool.

    `devices` are numbers of GPUs, or `cpu`; a device that is listed twice gets two runs at a time.
    """
    for task in filter(store.has, tasks):
        store.clear(task)  # leftovers of a kill
    with store.claimed(tasks[0]):
        pass  # refuse a read-only folder once, not in every run
    waiting, free = [task for task in tasks if not store.has(task)], list(devices)
    running: dict[Any, tuple[Any, Task, str]] = {}  # process, task and device, by sentinel
    failed = 0
    with StopRequest() as stop:
        try:
            while (waiting or running) and not stop.requested:
                while waiting and free:
                    task, device = waiting.pop(0), free.pop(0)
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
        finally:  # the runs stop at a checkpoint, even if our output is closed or the disk is full
            for process, _, _ in running.values():
                process.terminate()  # once: a second signal would end a run without a checkpoint
            for process, _, _ in running.values():
                process.join()
    return failed, stop.requested


def _run(task: Task, device: str, store: Store, location: DataLocation, is_shared: bool) -> None:
    os.setpgrp()  # so that Ctrl-C reaches only the pool, which passes it on once
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if device != "cpu":  # of the GPUs that are visible now, CUDA (not initialized yet) will see only this one
        allowed, number = os.environ.get("CUDA_VISIBLE_DEVICES"), int(device)
        names = allowed.split(",") if allowed else []
        os.environ["CUDA_VISIBLE_DEVICES"] = names[number] if number < len(names) else str(number)
    try:
        run_cell(task, device, store, location, is_shared=is_shared)
    except SelfensError as error:
        sys.exit(visible(str(error)))  # prints the message; the exit code is 1
    except KeyboardInterrupt:
        pass


def _stop_with_parent() -> None:
    """Stop, after a checkpoint, when the parent process has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
