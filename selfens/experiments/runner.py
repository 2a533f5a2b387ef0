"""The runner: one worker per device, until nothing is missing, the time is up, or a person stops it.

Kill it at any moment and start it again: what was finished is not repeated, what was begun goes on from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from selfens.errors import ConfigError, DeviceError
from selfens.experiments import quick
from selfens.experiments.extras import ExtraImages
from selfens.experiments.records import Store
from selfens.experiments.tables import Task
from selfens.experiments.view import View
from selfens.experiments.worker import Event, Place, work
from selfens.interrupt import StopRequest

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Outcome:
    """How a call of the runner ended."""

    missing: int
    """Runs without a record; another runner may be doing some of them."""
    stopped: bool
    """A person stopped it."""
    failures: tuple[str, ...]
    """One sentence for each worker that could not go on."""


@dataclass
class Process:
    """A worker as the runner sees it."""

    place: Place
    process: SpawnProcess
    pipe: Connection
    asked_to_stop: bool = False
    explained: bool = False
    """It has said why it ended."""

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
    missing = [task for task in tasks if not store.has(task)]
    failures: list[str] = []
    stopped = False
    if missing:
        _check_data(missing, store, data_dir, extra)
        with StopRequest() as stop, view:
            workers = [_start(store, missing, place, data_dir, extra) for place in places[: len(missing)]]
            while any(worker.process.is_alive() for worker in workers):
                _listen(workers, view, failures)
                if stop.requested or (deadline is not None and time.monotonic() > deadline):
                    for worker in workers:
                        worker.ask_to_stop()
            _listen(workers, view, failures)
            stopped = stop.requested
        failures += [sentence for worker in workers if (sentence := _unexplained_end(worker))]
    return Outcome(sum(not store.has(task) for task in tasks), stopped, tuple(failures))


def _check_data(tasks: Sequence[Task], store: Store, data_dir: Path | None, extra: ExtraImages | None) -> None:
    """Read, and if need be download, each data set once before several processes want it."""
    from selfens.data import sources

    if store.quick:
        return
    first = {(task.cell.config.data.name, task.cell.extra): task for task in reversed(tasks)}
    for (name, which), task in first.items():
        main = sources.load(name, data_dir=data_dir, progress=True)
        if which is not None and extra is not None:
            extra.added_to(main, task.cell, task.seed, data_dir)


def _start(store: Store, tasks: list[Task], place: Place, data_dir: Path | None, extra: ExtraImages | None) -> Process:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(store, tasks, place, data_dir, theirs, extra))
    process.start()
    theirs.close()
    return Process(place, process, ours)


def _listen(workers: Sequence[Process], view: View, failures: list[str]) -> None:
    """Pass on what the workers have said, waiting a moment for it."""
    talking = {worker.pipe: worker for worker in workers if not worker.pipe.closed}
    for pipe in wait(list(talking), POLL_SECONDS):
        assert isinstance(pipe, Connection)
        try:
            while pipe.poll():
                _heard(talking[pipe], pipe.recv(), view, failures)
        except (EOFError, OSError):
            pipe.close()
    if not talking:
        time.sleep(POLL_SECONDS)
    view.refresh()


def _heard(worker: Process, event: Event, view: View, failures: list[str]) -> None:
    view.show(event)
    if event.kind == "failed":
        worker.explained = True
        failures.append(event.text)


def _unexplained_end(worker: Process) -> str | None:
    worker.process.join()
    code = worker.process.exitcode
    expected = (0, -signal.SIGTERM) if worker.asked_to_stop else (0,)
    if worker.explained or code in expected:
        return None
    return f"the worker on {worker.place.device} ended unexpectedly (code {code}); call again to go on."


def parse_devices(text: str | None, *, quick_runs: bool) -> list[Place]:
    """`0,1` or `cpu`; a device named twice gets two workers. By default every GPU, else the CPU."""
    names = [name.strip() for name in text.split(",")] if text else _default_devices(quick_runs)
    for name in names:
        if name != "cpu" and not name.isdecimal():
            raise ConfigError(f"--devices is '{text}'; expected numbers of GPUs such as 0,1, or cpu.")
    _check_present([int(name) for name in names if name != "cpu"])
    on_cpu = names.count("cpu")
    threads = max(1, (os.cpu_count() or 1) // on_cpu) if on_cpu else None
    return [Place(name, threads if name == "cpu" else None, names.count(name) > 1) for name in names]


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
