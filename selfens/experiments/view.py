"""What a person sees while a table fills: a live board in a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from selfens.experiments.records import Store
from selfens.experiments.tables import Task
from selfens.experiments.worker import Event
from selfens.training.progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINE_EVERY_SECONDS = 60
READ_EVERY_SECONDS = 5


class View(Protocol):
    def __enter__(self) -> object: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, event: Event) -> None: ...
    def refresh(self) -> None: ...


class Tally:
    """How far all runs are. Epochs of unequal cost count alike, so the estimate is rough until each kind has run."""

    def __init__(self, tasks: Sequence[Task], store: Store) -> None:
        self.tasks = list(tasks)
        self.epochs = {task: store.config(task).schedule.epochs for task in tasks}
        self.done = {task for task in tasks if store.has(task)}
        self.reached = {task: self.epochs[task] if task in self.done else 0 for task in tasks}
        self.errors: dict[Task, float] = {}
        self.running: set[Task] = set()
        self.began = self._read = time.monotonic()
        self._store = store
        self._found = sum(self.reached.values())

    def note(self, event: Event) -> None:
        task = event.task
        if task is None:
            return
        if event.kind == "started":
            self.running.add(task)
        elif event.kind == "epoch":
            if event.error is None:  # the first message of a training only says where it begins
                self._found += event.epoch - self.reached[task]
            self.reached[task] = event.epoch
        elif event.kind in ("finished", "diverged", "refused", "failed"):
            self.running.discard(task)
            if event.kind in ("finished", "diverged"):
                self._end(task)
        if event.error is not None:
            self.errors[task] = event.error

    def _end(self, task: Task) -> None:
        self.running.discard(task)
        self.done.add(task)
        self.reached[task] = self.epochs[task]

    def reread(self) -> None:
        """Now and then: which runs other commands have done meanwhile."""
        if time.monotonic() - self._read > READ_EVERY_SECONDS:
            self._reread()

    def close(self) -> None:
        """No worker is left."""
        self._reread()
        self.running.clear()

    def _reread(self) -> None:
        self._read = time.monotonic()
        for task in self.tasks:
            if task not in self.done and self._store.has(task):
                self._end(task)

    def seconds_left(self) -> float | None:
        """At the speed so far, with what other commands have done; None before the first epoch."""
        reached = sum(self.reached.values())
        trained, left = reached - self._found, sum(self.epochs.values()) - reached
        return (time.monotonic() - self.began) / trained * left if trained > 0 else None

    def sentence(self) -> str:
        left = self.seconds_left()
        estimate = "" if left is None or not left else f", about {duration(left)} left"
        return f"{len(self.done)} of {len(self.tasks)} runs done, {len(self.running)} running{estimate}"


class Lines:
    """A line when a run starts or ends, and one a minute between."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self.tally, self.console = tally, console
        self.warned: set[str] = set()
        self.last = time.monotonic()

    def __enter__(self) -> Lines:
        self._line(self.tally.sentence())
        return self

    def __exit__(self, *exception: object) -> None:
        self.tally.close()
        self._line(self.tally.sentence())

    def show(self, event: Event) -> None:
        self.tally.note(event)
        text = describe(event)
        if text and (event.kind != "warning" or event.text not in self.warned):
            self.warned.add(event.text)
            self._line(text if event.kind == "warning" else f"{text}  ({self.tally.sentence()})")

    def refresh(self) -> None:
        self.tally.reread()
        if time.monotonic() - self.last > LINE_EVERY_SECONDS:
            running = ", ".join(f"{task} at {self.tally.reached[task]}" for task in self.tally.running)
            self._line(f"{self.tally.sentence()}: {running}")

    def _line(self, text: str) -> None:
        self.last = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def describe(event: Event) -> str:
    """The line for an event; none for an epoch."""
    words = {
        "started": "started",
        "finished": "finished" if event.error is None else f"finished, test error {event.error:.2f} %",
        "diverged": "diverged; this is recorded as its result",
        "refused": f"left out: {event.text}",
        "failed": f"failed: {event.text}",
        "warning": f"warning: {event.text}",
    }
    who = f"{event.task}: " if event.task and event.kind not in ("refused", "failed") else ""  # they name it themselves
    return f"{who}{words[event.kind]}" if event.kind in words else ""


class Board:
    """One line per cell: a mark per seed, and the run that is going on."""

    MARKS, PLAIN_MARKS = ("○", "◐", "●"), ("-", "o", "#")

    def __init__(self, tally: Tally, console: Console) -> None:
        from rich.live import Live

        self.tally, self.console = tally, console
        self.marks = self.MARKS if _can_show("".join(self.MARKS), console.encoding) else self.PLAIN_MARKS
        self.warned: set[str] = set()
        self.live = Live(console=console, refresh_per_second=4, get_renderable=self._table)

    def __enter__(self) -> Board:
        self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.tally.close()
        self.live.stop()

    def show(self, event: Event) -> None:
        self.tally.note(event)
        if event.kind in ("warning", "diverged", "refused", "failed") and event.text not in self.warned:
            self.warned.add(event.text)
            self.console.print(describe(event), highlight=False, markup=False)

    def refresh(self) -> None:
        self.tally.reread()
        self.live.refresh()

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(title=self.tally.sentence(), box=None, pad_edge=False)
        for name in ("cell", "seeds", "now", "latest errors %"):
            table.add_column(name)
        for cell in dict.fromkeys(task.cell.key for task in self.tally.tasks):
            table.add_row(*self._row(cell))
        return table

    def _row(self, cell: str) -> tuple[str, str, str, str]:
        tally = self.tally
        mine = sorted((task for task in tally.tasks if task.cell.key == cell), key=lambda task: task.seed)
        marks = "".join(self.marks[2 if task in tally.done else task in tally.running] for task in mine)
        running = [task for task in mine if task in tally.running]
        now = ", ".join(f"seed {task.seed}: epoch {tally.reached[task]}/{tally.epochs[task]}" for task in running)
        errors = " ".join(f"{tally.errors[task]:.2f}" for task in mine if task in tally.errors)
        return cell, marks, now, errors


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def for_console(tally: Tally, console: Console) -> View:
    """The board where a person looks on, lines where output goes to a file or pipe."""
    return Board(tally, console) if console.is_terminal else Lines(tally, console)
