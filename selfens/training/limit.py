"""A time limit: measure the first steps and the end of an epoch, and set the number of epochs that fit.

What was measured is undone, so the run is the same, bit for bit, as one with that number of epochs in its config.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from selfens.errors import ConfigError
from selfens.runs.directory import RunDirectory
from selfens.training.checkpoint import Checkpointer
from selfens.training.components import Components
from selfens.training.distributed import MAX, MIN

SKIPPED_STEPS = 4  # not measured, because a GPU compiles and captures in them
MIN_STEPS = 6  # measured
MEASURED = 0.03  # fraction of the remaining time spent measuring, if that is enough for MIN_STEPS
RESERVE = 0.03  # fraction of the training time, because a machine is not always equally fast


def fit_schedule(parts: Components, checkpointer: Checkpointer, deadline: float) -> None:
    """Set the number of epochs of a new run so that it ends before `deadline`, by time.perf_counter."""
    began = time.perf_counter()
    epoch = seconds_per_epoch(parts, checkpointer, began + MEASURED * (deadline - began))
    left = max(deadline - time.perf_counter(), 0.0)
    epochs = parts.group.all_reduce_int(int(min(left * (1 - RESERVE) / epoch, 1e9)), MIN)
    if epochs < 1:
        raise ConfigError(
            f"the time limit leaves {left:.1f} s for training, and one epoch takes about {epoch:.1f} s; allow "
            f"{epoch / (1 - RESERVE) - left + 2:.0f} s more."
        )
    parts.set_epochs(epochs)


def seconds_per_epoch(parts: Components, checkpointer: Checkpointer, until: float) -> float:
    """Measure steps, the end of an epoch, evaluation and checkpoint."""
    ensemble, prepared, training = parts.method.ensemble, parts.prepared, parts.config.training
    with ExitStack() as undo, tempfile.TemporaryDirectory(prefix="selfens-") as folder:
        for restore in parts.step.snapshot():
            undo.callback(restore)
        if ensemble is not None:
            before = {name: each.clone() for name, each in ensemble.state_dict().items()}
            undo.callback(ensemble.load_state_dict, before)
        seconds = _seconds_per_step(parts, until) * parts.loader.steps_per_epoch
        seconds += _timed(parts.errors) / training.evaluate_every
        seconds += _timed(parts.method.end_epoch)
        if training.checkpoint_every or parts.group.size > 1:  # otherwise checkpoints are rare
            path = Path(folder) / "run"
            trial = RunDirectory.create(path, parts.config, prepared.labels, prepared.preprocess, parts.info())
            seconds += _timed(partial(checkpointer.save, trial, 0, 0)) / (training.checkpoint_every or 1)
    parts.step.steps_done = 0
    return seconds


def _seconds_per_step(parts: Components, until: float) -> float:
    """Measure the mean over the first steps, after those that compile; all processes take the same number."""
    parts.step.set(**parts.rates(0))
    start = time.perf_counter()
    for number, rows in enumerate(itertools.chain.from_iterable(map(parts.visit, itertools.count()))):
        measured = number - SKIPPED_STEPS
        if measured == 0:
            _ = float(parts.step.sums[-1])  # waits for the device
            start = time.perf_counter()
        if measured >= MIN_STEPS and parts.group.all_reduce_int(int(time.perf_counter() >= until), MAX):
            break
        parts.step(rows)
    _ = float(parts.step.sums[-1])
    return (time.perf_counter() - start) / measured


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
