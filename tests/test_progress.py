"""What a person sees of a training: how much of it fits a line, and how much time is left."""

import io
import re
import time

import pytest
from rich.console import Console

from selfens.training.progress import Bar, Lines, describe

RECORD = {
    "epoch": 120,
    "supervised": 1.2345,
    "weight": 29.9,
    "unsupervised": 0.00123,
    "images_per_second": 12345.6,
    "test_error": 12.34,
}


@pytest.mark.parametrize(
    ("room", "line"),
    [
        (70, "loss 1.2345 + 29.9 x 0.00123  test error 12.34 %  12,346 rows/s"),
        (50, "loss 1.2345 + 29.9 x 0.00123  test error 12.34 %"),
        (32, "loss 1.2345  test error 12.34 %"),
        (18, "test error 12.34 %"),
        (0, "test error 12.34 %"),
    ],
)
def test_if_there_is_less_room_less_is_said(room, line):
    assert describe(RECORD, room) == line


def test_without_an_error_the_loss_is_said():
    assert describe(RECORD | {"test_error": None}, 18) == "loss 1.2345"


def test_the_loss_of_a_method_with_other_parts_is_the_total():
    own = {"epoch": 1, "reconstruction": 0.5, "total": 0.75, "weight": 1.0, "images_per_second": 1.0, "test_error": 1.0}
    assert describe(own) == "loss 0.7500  test error 1.00 %  1 rows/s"


def bar_of(width):
    """A bar in a terminal, and what it has shown so far, line by line."""
    bar = Bar()
    bar.bar.live.console = bar.console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    return bar, lambda: re.split(r"[\r\n]", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", bar.console.file.getvalue()))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_bar_and_the_time_left_fit_the_terminal(width):
    bar, shown = bar_of(width)
    bar.start("title", epochs=300, first_epoch=0, steps_per_epoch=10)
    bar.epoch(RECORD)
    bar.close()
    line = [line for line in shown() if "121/300" in line][-1]
    assert line.count("\u2501") + line.count("\u2578") >= 9
    assert "test error 12.34 %" in line
    assert line.rstrip().endswith(("-:--:-- left", "0:00:00 left"))
    assert line.count(":") == 2  # one time, which is named


def test_the_bar_follows_the_steps_and_begins_where_a_resumed_run_does():
    bar, _ = bar_of(100)
    bar.start("title", epochs=300, first_epoch=120, steps_per_epoch=10)
    reached = [bar.bar.tasks[0].completed]
    bar.step(120, 9)
    reached.append(bar.bar.tasks[0].completed)
    bar.epoch(RECORD)
    reached.append(bar.bar.tasks[0].completed)
    bar.close()
    assert reached == [1200, 1209, 1210]


def test_with_a_time_limit_the_time_left_is_counted_down_to_it(capsys):
    bar, shown = bar_of(100)
    bar.deadline = time.perf_counter() + 3725.9
    bar.start("title", epochs=3, first_epoch=0, steps_per_epoch=10)
    bar.close()
    assert "1:02:05 left" in "".join(shown())
    lines = Lines()
    lines.deadline = time.perf_counter() + 61.5
    lines.start("title", epochs=3, first_epoch=0, steps_per_epoch=10)
    lines.epoch({"epoch": 0, "total": 1.0, "images_per_second": 1.0})
    assert capsys.readouterr().out.endswith("1 min 01 s left\n")
