"""What a person sees of a training: how much of it fits a line, and which warnings are left out."""

import io
import re

import pytest
from rich.console import Console

from selfens.errors import SelfensWarning
from selfens.training.progress import Bar, Silent, Untroubled, describe

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
        (70, "loss 1.2345 + 29.9 x 0.00123  test error 12.34 %  12,346 img/s"),
        (50, "loss 1.2345 + 29.9 x 0.00123  test error 12.34 %"),
        (32, "loss 1.2345  test error 12.34 %"),
        (18, "test error 12.34 %"),
        (0, "test error 12.34 %"),
    ],
)
def test_where_there_is_less_room_less_is_said(room, line):
    assert describe(RECORD, room) == line


def test_without_an_error_the_loss_is_said():
    assert describe(RECORD | {"test_error": None}, 18) == "loss 1.2345"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_bar_and_the_time_left_fit_the_terminal(width):
    bar = Bar()
    bar.bar.live.console = bar.console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    bar.start("title", epochs=300, first_epoch=0, steps_per_epoch=10)
    bar.epoch(RECORD)
    bar.close()
    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", bar.console.file.getvalue())
    line = [line for line in re.split(r"[\r\n]", plain) if "121/300" in line][-1]
    assert line.count("\u2501") + line.count("\u2578") >= 9
    assert "test error 12.34 %" in line
    assert line.rstrip().endswith(("-:--:--", "0:00:00"))


def test_the_bar_never_goes_back_when_a_record_comes_after_the_next_epochs_steps():
    bar = Bar()
    bar.bar.live.console = bar.console = Console(file=io.StringIO(), width=100, force_terminal=True)
    bar.start("title", epochs=300, first_epoch=120, steps_per_epoch=10)
    reached = []
    for epoch, step in [(120, 9), (121, 0), (121, 4)]:
        bar.step(epoch, step)
        reached.append(bar.bar.tasks[0].completed)
    bar.epoch(RECORD)  # of epoch 120
    reached.append(bar.bar.tasks[0].completed)
    bar.step(121, 5)
    reached.append(bar.bar.tasks[0].completed)
    bar.close()
    assert reached == [1209, 1210, 1214, 1214, 1215]


def test_warnings_of_what_is_meant_to_be_so_are_left_out_whoever_shows_the_rest():
    seen = []

    class Keep(Silent):
        def warn(self, message):
            seen.append(message)

    progress = Untroubled(Keep())
    progress.warn("there are no test rows, so no test error is reported.")
    progress.warn("all is lost.")
    assert seen == ["all is lost."]
    with pytest.warns(SelfensWarning, match="all is lost"):
        Untroubled().warn("all is lost.")
