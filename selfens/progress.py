"""What a person sees while a run trains. The trainer calls these methods and never prints by itself."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any, Protocol, TextIO

from selfens.errors import SelfensWarning


class Progress(Protocol):
    talkative: bool
    """Whether downloads and decoding may show bars of their own."""

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None: ...
    def step(self, step: int) -> None: ...
    def epoch(self, record: dict[str, Any]) -> None: ...
    def warn(self, message: str) -> None: ...
    def close(self) -> None: ...


class Silent:
    """Nothing but warnings, as Python warnings: what a library does unless told otherwise."""

    talkative = False

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        pass

    def step(self, step: int) -> None:
        pass

    def epoch(self, record: dict[str, Any]) -> None:
        pass

    def warn(self, message: str) -> None:
        warnings.warn(message, SelfensWarning, stacklevel=3)

    def close(self) -> None:
        pass


class Untroubled(Silent):
    """Silent, also about what is meant to be so in a training that only serves another purpose."""

    MEANT = ("there are no test rows", "every training row is labelled")

    def warn(self, message: str) -> None:
        if not message.startswith(self.MEANT):
            super().warn(message)


class Mute(Silent):
    """Nothing at all: for the processes of a training beside the first."""

    def warn(self, message: str) -> None:
        pass


class Quiet(Silent):
    """Nothing but warnings, as lines."""

    def warn(self, message: str) -> None:
        print(f"warning: {message}", file=sys.stderr)  # noqa: T201


class Lines(Quiet):
    """One line per epoch, for logs and pipes."""

    talkative = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.epochs = 0
        self.began = time.monotonic()
        self.first_epoch = 0

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.epochs, self.first_epoch = epochs, first_epoch
        self.began = time.monotonic()
        self._print(title)

    def epoch(self, record: dict[str, Any]) -> None:
        done = record["epoch"] + 1
        left = (time.monotonic() - self.began) / (done - self.first_epoch) * (self.epochs - done)
        self._print(f"epoch {done}/{self.epochs}  {describe(record)}  {duration(left)} left")

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)  # noqa: T201


class Bar(Quiet):
    """A live bar in a terminal."""

    talkative = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.console = Console()
        self.bar = RichProgress(
            TextColumn("epoch"),
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[latest]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self.console,
        )
        self.done = self.steps = self.epochs = 0

    def start(self, title: str, *, epochs: int, first_epoch: int, steps_per_epoch: int) -> None:
        self.console.print(title, highlight=False, markup=False)
        self.steps, self.epochs, self.done = steps_per_epoch, epochs, first_epoch
        total = epochs * steps_per_epoch
        self.task = self.bar.add_task(
            "train", total=total, completed=first_epoch * steps_per_epoch, latest="", epoch=f"{first_epoch}/{epochs}"
        )
        self.bar.start()

    def step(self, step: int) -> None:
        self.bar.update(self.task, completed=self.done * self.steps + step)

    def epoch(self, record: dict[str, Any]) -> None:
        self.done = record["epoch"] + 1
        self.bar.update(
            self.task, completed=self.done * self.steps, latest=describe(record), epoch=f"{self.done}/{self.epochs}"
        )

    def warn(self, message: str) -> None:
        self.console.print("warning: ", message, sep="", highlight=False, markup=False)

    def close(self) -> None:
        self.bar.stop()


def describe(record: dict[str, Any]) -> str:
    """The losses, the error and the speed of an epoch in one line."""
    parts = [f"loss {record['supervised']:.4f} + {record['weight']:.3g} x {record['unsupervised']:.5f}"]
    for key, name in (("validation_error", "validation error"), ("test_error", "test error")):
        if record.get(key) is not None:
            parts.append(f"{name} {record[key]:.2f} %")
    return "  ".join([*parts, f"{record['images_per_second']:,.0f} img/s"])


def duration(seconds: float) -> str:
    """
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
    """The bar where a person looks on, lines where output goes to a file or pipe."""
    if quiet:
        return Quiet()
    return Bar() if sys.stdout.isatty() else Lines()
