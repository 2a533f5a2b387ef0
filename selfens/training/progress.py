"""Progress displays. The trainer calls these methods and never prints by itself."""

import math
import sys
import time
import warnings
from datetime import timedelta
from typing import Any

from selfens.errors import SelfensWarning, visible

BESIDE_LATEST = 54  # characters in the line of the bar, without the description of the latest epoch


class Progress:
    """The base class of progress displays, which shows nothing."""

    has_bars = False
    """Downloading and decoding may show progress bars."""
    deadline: float | None = None
    """When training must end, by time.perf_counter; set before `start` if there is a time limit."""

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        pass

    def step(self, epoch: int, step: int) -> None:
        """Show that a step was launched. On a GPU it may not be done yet."""

    def epoch(self, record: dict[str, Any]) -> None:
        pass

    def say(self, line: str) -> None:
        """Report anything that is not an epoch, such as the start of the next fold."""

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
        from rich.progress import BarColumn, ProgressColumn, Task
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        class TimeLeft(ProgressColumn):
            max_refresh = 0.5  # seconds

            def render(column, task: Task) -> Text:
                left = task.time_remaining if self.deadline is None else max(self.deadline - time.perf_counter(), 0.0)
                return Text(f"{'-:--:--' if left is None else timedelta(seconds=int(left))} left", "progress.remaining")

        self.console = Console()
        columns = "epoch {task.fields[epoch]}", BarColumn(bar_width=24), "{task.fields[latest]}", TimeLeft()
        self.bar = RichProgress(*columns, console=self.console)

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
    """Describe an epoch in one line: losses, errors and speed, or as much of it as fits."""
    both = "supervised" in record and "unsupervised" in record  # a method may have other parts
    loss = f"loss {record['supervised' if both else 'total']:.4f}"
    losses = f"{loss} + {record['weight']:.3g} x {record['unsupervised']:.5f}" if both else loss
    measured = [name for name in ("validation_error", "test_error") if record.get(name) is not None]
    errors = [f"{name.replace('_', ' ')} {record[name]:.2f} %" for name in measured]
    speed = f"{record['images_per_second']:,.0f} rows/s"
    lines = ["  ".join(parts) for parts in ([losses, *errors, speed], [losses, *errors], [loss, *errors])]
    return next((line for line in lines if len(line) <= room), (errors or [loss])[-1])


def duration(seconds: float) -> str:
    """Format a duration: 59 s, 1 min 01 s, 1 h 01 min."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def for_terminal(quiet: bool = False) -> Progress:
    """Return a bar for a terminal, or lines if the output goes to a file or a pipe."""
    if quiet:
        return Quiet()
    return Bar() if sys.stdout.isatty() else Lines()
