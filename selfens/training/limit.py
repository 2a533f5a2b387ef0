"""A time limit: the first steps and the end of an epoch are measured, and the schedule becomes as long as fits.

What was measured is undone, so the run is the same, bit for bit, as one that was asked for that number of epochs.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from selfens.errors import ConfigError
from selfens.runs.directory import RunDirectory
from selfens.training import checkpoint as checkpoints
from selfens.training.distributed import MAX, MIN
from selfens.training.setup import Parts

FIRST_STEPS, MIN_STEPS = 4, 6  # not measured: a GPU compiles and captures in them; measured at least
MEASURED = 0.03  # of the time that is left when measuring begins, if that is enough for MIN_STEPS
KEPT_BACK = 0.03  # of the time for training, because a machine is not always as fast


def fit_schedule(parts: Parts, deadline: float) -> None:
    """Change the number of epochs of a run that has not begun, so that it ends before `deadline`, by time.perf_counter."""
    began = time.perf_counter()
    epoch = _seconds_per_epoch(parts, began + MEASURED * (deadline - began))
    left = max(deadline - time.perf_counter(), 0.0)
    epochs = parts.group.all_reduce_int(int(min(left * (1 - KEPT_BACK) / epoch, 1e9)), MIN)
    if epochs < 1:
        raise ConfigError(
            f"the time limit leaves {left:.1f} s for training, and one epoch takes about {epoch:.1f} s; allow "
            f"{epoch / (1 - KEPT_BACK) - left + 2:.0f} s more, or use fewer rows or a smaller network."
        )
    parts.fit_schedule(epochs)


def _seconds_per_epoch(parts: Parts, until: float) -> float:
    """Steps, the end of an epoch, evaluation and checkpoint."""
    ensemble, prepared, training = parts.method.ensemble, parts.prepared, parts.config.training
    in_file = ensemble is not None and ensemble.file is not None
    with ExitStack() as undo, tempfile.TemporaryDirectory(prefix="selfens-") as folder:
        for restore in parts.step.snapshot():
            undo.callback(restore)
        if ensemble is not None:
            before = {} if in_file else {name: each.clone() for name, each in ensemble.state_dict().items()}
            undo.callback(ensemble.forget_epoch if in_file else partial(ensemble.load_state_dict, before))
        seconds = _seconds_per_step(parts, until) * parts.loader.steps_per_epoch
        seconds += _timed(parts.errors) / training.evaluate_every
        if not in_file:  # which would change for good, and whose epochs are long
            seconds += _timed(parts.method.end_epoch)
            trial = RunDirectory.create(Path(folder) / "run", parts.config, prepared.labels, prepared.preprocess, {})
            saving = _timed(partial(checkpoints.save, parts, trial, 0, 0))
            if prepared.device.type == "cpu":  # on a GPU there is one in a while, whatever an epoch takes
                seconds += saving / (training.checkpoint_every or 1)
    parts.step.steps_done = 0
    return seconds


def _seconds_per_step(parts: Parts, until: float) -> float:
    """The mean over the first steps, after those that compile; all processes take as many."""
    parts.step.set(**parts.rates(0))
    start = time.perf_counter()
    for number, rows in enumerate(itertools.chain.from_iterable(map(parts.visit, itertools.count()))):
        measured = number - FIRST_STEPS
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
