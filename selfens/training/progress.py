"""Progress displays. The trainer calls these methods and never prints by itself."""

from __future__ import annotations

import math
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

from selfens.errors import SelfensWarning, visible

if TYPE_CHECKING:
    from rich.console import Console

BESIDE_LATEST = 54  # characters of the bar and what else stands on its line


class Progress:
    """The base class of progress displays, which shows nothing."""

    has_bars = False
    """Downloads and decoding may show progress bars."""

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        pass

    def until(self, deadline: float) -> None:
        """Training has a deadline, by time.perf_counter. Called before `start`."""

    def step(self, epoch: int, step: int) -> None:
        """A step was launched; on a GPU it may not be done yet."""

    def epoch(self, record: dict[str, Any]) -> None:
        pass

    def say(self, line: str) -> None:
        """Report anything besides the epochs of one run, such as the next of several folds."""

    def warn(self, message: str) -> None:
        pass

    def close(self) -> None:
        pass


class WarningsOnly(Progress):
    """A display that forwards only warnings, as Python warnings: the library's default."""

    def warn(self, message: str) -> None:
        warnings.warn(message, SelfensWarning, stacklevel=3)


class Quiet(Progress):
    """A display that prints only warnings."""

    def warn(self, message: str) -> None:
        print(f"warning: {visible(message)}", file=sys.stderr)  # noqa: T201


class Lines(Quiet):
    """One line per epoch, for logs and pipes."""

    has_bars = True
    deadline: float | None = None

    def until(self, deadline: float) -> None:
        self.deadline = deadline

    def say(self, line: str) -> None:
        print(line, flush=True)  # noqa: T201

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.epochs, self.first_epoch, self.began = epochs, first_epoch, time.perf_counter()
        self.say(title)

    def epoch(self, record: dict[str, Any]) -> None:
        done, now = record["epoch"] + 1, time.perf_counter()
        left = (now - self.began) / (done - self.first_epoch) * (self.epochs - done)
        left = left if self.deadline is None else max(self.deadline - now, 0.0)
        self.say(f"epoch {done}/{self.epochs}  {describe(record)}  {duration(left)} left")


class Bar(Quiet):
    """A live bar in a terminal."""

    has_bars = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.console = Console()
        self.bar = RichProgress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[latest]}"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("left"),
            console=self.console,
        )

    def until(self, deadline: float) -> None:
        from rich.progress import ProgressColumn, Task
        from rich.text import Text

        class Countdown(ProgressColumn):
            def render(self, task: Task) -> Text:
                left = max(int(deadline - time.perf_counter()), 0)
                return Text(f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}", style="progress.remaining")

        self.bar.columns = (*self.bar.columns[:-2], Countdown(), self.bar.columns[-1])

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.say(title)
        self.epochs, self.steps = epochs, steps_per_epoch
        total, done = epochs * steps_per_epoch, first_epoch * steps_per_epoch
        self.task = self.bar.add_task("train", total=total, completed=done, latest="", epoch=f"{first_epoch}/{epochs}")
        self.bar.start()

    def step(self, epoch: int, step: int) -> None:
        self.bar.update(self.task, completed=epoch * self.steps + step)

    def epoch(self, record: dict[str, Any]) -> None:
        done = record["epoch"] + 1
        latest = describe(record, self.console.width - BESIDE_LATEST)
        self.bar.update(self.task, completed=done * self.steps, latest=latest, epoch=f"{done}/{self.epochs}")

    def warn(self, message: str) -> None:
        self.say(f"warning: {visible(message)}")

    def close(self) -> None:
        self.bar.stop()


def describe(record: dict[str, Any], room: float = math.inf) -> str:
    """Describe an epoch in one line: losses, errors and speed, or fewer of them if there is no room."""
    both = "supervised" in record and "unsupervised" in record  # a method may have other parts
    loss = f"loss {record['supervised' if both else 'total']:.4f}"
    losses = f"{loss} + {record['weight']:.3g} x {record['unsupervised']:.5f}" if both else loss
    names = {"validation_error": "validation error", "test_error": "test error"}
    errors = [f"{name} {record[key]:.2f} %" for key, name in names.items() if record.get(key) is not None]
    speed = f"{record['images_per_second']:,.0f} rows/s"
    lines = ["  ".join(parts) for parts in ([losses, *errors, speed], [losses, *errors], [loss, *errors])]
    return next((line for line in lines if len(line) <= room), (errors or [loss])[-1])


def wide_console(least: int) -> Console:
    """Return a console of at least this width, so that the terminal wraps tables rather than truncating figures."""
    from rich.console import Console

    return Console(width=max(Console().width, least))


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(59), duration(61), duration(3700)
    ('59 s', '1 min 01 s', '1 h 01 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def for_terminal(quiet: bool = False) -> Progress:
    """Return a bar for a terminal, or lines if the output goes to a file or a pipe."""
    if quiet:
        return Quiet()
    return Bar() if sys.stdout.isatty() else Lines()
