"""The pool: does a list of runs, and continues if one of them fails.

It may be killed at any moment. Started again, it skips finished runs and continues the others from their checkpoints. Workers
decide where the runs are done: `Processes` on this machine, `cluster.Cluster` on a Ray cluster. Both call `work`.
"""

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from selfens.errors import SelfensError, visible
from selfens.training.interrupt import StopRequest

POLL_SECONDS = 0.2
CONTEXT: Any = multiprocessing.get_context("spawn")  # CUDA does not survive a fork


class Job(Protocol):
    """A picklable description of a run. All of its files are below a folder, `root`."""

    @property
    def threads(self) -> int | None:
        """CPU threads that the run needs; None: all."""

    @property
    def data(self) -> str:
        """The name of the data, which are checked once for all runs that share them."""

    def run(self, root: Path, device: str, *, is_shared: bool) -> None:
        """Start or continue the run. Return without doing anything if it is done or another process is doing it."""

    def is_done(self, root: Path) -> bool: ...

    def claimed(self, root: Path) -> AbstractContextManager[bool]:
        """Claim the run while the context lasts; yield False if another process has it."""

    def kept(self, root: Path) -> list[Path]:
        """Return the files and folders that hold the run, its result and its checkpoint."""

    def clear(self, root: Path) -> None:
        """Remove what a finished run no longer needs."""

    def check_data(self) -> None:
        """Find or download the data of the run on this machine."""


class Workers(Protocol):
    """Where runs are done. A future's result is False if the run failed. If its worker died, it raises one of `lost`."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]: ...

    @property
    def retries(self) -> int:
        """How many times a run is started again if its worker died."""

    def start(self, job: Job, root: Path) -> Future[bool] | None:
        """Start a run, or return None if another command is doing it."""

    def has_room(self) -> bool: ...

    def poll(self) -> None:
        """Fetch new output and files of the runs."""

    def ended(self, future: Future[bool]) -> None:
        """Release the device or lock of a run that has ended."""

    def stop(self, running: Collection[Future[bool]]) -> None:
        """Stop all runs at a checkpoint, and wait for them."""


def run_all(jobs: Sequence[Job], root: Path, workers: Workers, say: Callable[[str], None]) -> tuple[int, bool]:
    """Do the runs that are not done yet. Return how many failed, and whether Ctrl-C or SIGTERM stopped the pool."""
    waiting = [job for job in jobs if not job.is_done(root)]
    for job in jobs:
        if job not in waiting:
            job.clear(root)  # what a kill left behind
    with jobs[0].claimed(root):
        pass  # refuse a read-only folder now, not in every run
    running: dict[Future[bool], Job] = {}
    failed, losses = 0, Counter[str]()
    with StopRequest() as stop:
        try:
            while (waiting or running) and not stop.requested:
                while waiting and workers.has_room():
                    job = waiting.pop(0)
                    if (started := workers.start(job, root)) is not None:
                        running[started] = job
                ended = wait(running, POLL_SECONDS, FIRST_COMPLETED).done
                workers.poll()
                for future in ended:
                    job = running.pop(future)
                    workers.ended(future)
                    error = future.exception()
                    is_lost = isinstance(error, workers.lost) and not job.is_done(root)
                    if is_lost and losses[str(job)] < workers.retries:
                        losses[str(job)] += 1
                        say(f"{job}: its node or process died; starting it again.")
                        waiting.insert(0, job)
                        continue
                    if job.is_done(root):
                        job.clear(root)  # checkpoints sent by another machine
                    if (error or not future.result()) and not job.is_done(root):
                        failed += 1
                        reason = "its process died" if isinstance(error, workers.lost) else str(error or "see above")
                        say(f"warning: {job} was left out ({reason}); run it again to continue.")
                    say(f"{sum(each.is_done(root) for each in jobs)} of {len(jobs)} runs done")
        finally:  # the runs stop at a checkpoint, even if our output is closed or the disk is full
            workers.stop(running)
    return failed, stop.requested


def work(job: Job, root: Path, device: str, is_shared: bool) -> bool:
    """Do a run in this process. If it fails, print why and return False."""
    try:
        job.run(root, device, is_shared=is_shared)
    except SelfensError as error:
        sys.stderr.write(f"{visible(str(error))}\n")
        return False
    except (KeyboardInterrupt, SystemExit):
        pass
    except Exception:
        traceback.print_exc()
        return False
    return True


class Processes:
    """A process for each run, one at a time on each device.

    Each run has a device, and an executor of its own, so that a crash ends no other run. Runs stop at a checkpoint if the
    command is stopped or killed.

    Parameters
    ----------
    devices
        GPU numbers, or `cpu`. A device that is listed twice gets two runs at a time.
    """

    lost, retries = (BrokenProcessPool,), 0

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices, self.free = list(devices), list(devices)
        self.running: dict[Future[bool], tuple[ProcessPoolExecutor, str]] = {}
        self.stopping, self.stopper = CONTEXT.Pipe(duplex=False)

    def has_room(self) -> bool:
        return bool(self.free)

    def start(self, job: Job, root: Path) -> Future[bool]:
        device = self.free.pop(0)
        executor = ProcessPoolExecutor(1, CONTEXT, _enter, (device, self.stopping))
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: no Ctrl-C while it starts
        future = executor.submit(work, job, root, device, self.devices.count(device) > 1)
        signal.signal(signal.SIGINT, before)
        self.running[future] = executor, device
        return future

    def poll(self) -> None:
        """Do nothing: the processes print, and write their files, themselves."""

    def ended(self, future: Future[bool]) -> None:
        executor, device = self.running.pop(future)
        executor.shutdown()  # waits for the process, which may hold memory of the device
        self.free.append(device)

    def stop(self, running: Collection[Future[bool]]) -> None:
        self.stopper.send_bytes(b"stop")  # nobody reads it, so all processes see it
        for future in running:
            self.ended(future)


def _enter(device: str, stopping: Any) -> None:
    """Prepare a process for a run on a device."""
    os.setpgrp()  # so that Ctrl-C reaches only the pool, which passes it on once
    threading.Thread(target=_stop_with_parent, args=(stopping,), daemon=True).start()
    if device != "cpu":  # CUDA is not initialized yet, and will see only this one of the GPUs visible now
        allowed, number = os.environ.get("CUDA_VISIBLE_DEVICES"), int(device)
        names = allowed.split(",") if allowed else []
        os.environ["CUDA_VISIBLE_DEVICES"] = names[number] if number < len(names) else str(number)


def _stop_with_parent(stopping: Any) -> None:
    """Stop this process at a checkpoint when its parent says so or ends."""
    parent = multiprocessing.parent_process()
    connection.wait([stopping, *([parent.sentinel] if parent else [])])
    os.kill(os.getpid(), signal.SIGTERM)
