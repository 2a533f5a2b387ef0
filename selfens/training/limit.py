"""Time limits: time some steps and the end of an epoch, and choose the number of epochs that fit.

The measured steps are undone, so the run is the same, bit for bit, as one with that number of epochs in its config.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from selfens.errors import ConfigError
from selfens.files.scratch import scratch_folder
from selfens.runs.directory import RunDirectory
from selfens.training.checkpoint import Checkpointer
from selfens.training.components import Components

SKIPPED_STEPS = 4  # not timed, because a GPU compiles and captures in them
MIN_STEPS = 6  # timed
MEASURED = 0.03  # fraction of the remaining time spent measuring, if that is enough for MIN_STEPS
RESERVE = 0.03  # fraction of the training time, because a machine's speed varies


def fit_schedule(components: Components, checkpointer: Checkpointer, deadline: float) -> None:
    """Set the number of epochs of a new run so that it ends before `deadline`, by time.perf_counter."""
    began = time.perf_counter()
    epoch = seconds_per_epoch(components, checkpointer, began + MEASURED * (deadline - began))
    left = max(deadline - time.perf_counter(), 0.0)
    epochs = components.group.min(int(min(left * (1 - RESERVE) / epoch, 1e9)))
    if epochs < 1:
        found = f"the time limit leaves {left:.1f} s for training, and one epoch takes about {epoch:.1f} s"
        raise ConfigError(f"{found}; allow {epoch / (1 - RESERVE) - left + 2:.0f} s more.")
    components.prepared = replace(components.prepared, config=components.config.with_epochs(epochs))


def seconds_per_epoch(components: Components, checkpointer: Checkpointer, until: float) -> float:
    """Time steps, evaluation, the end of an epoch and a checkpoint, then restore the state."""
    ensemble, prepared, training = components.method.ensemble, components.prepared, components.config.training
    undo = components.step.snapshot()
    if ensemble is not None:
        before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
        undo.append(partial(ensemble.load_state_dict, before))
    seconds = _seconds_per_step(components, until) * components.loader.steps_per_epoch
    seconds += _timed(components.errors) / training.evaluate_every + _timed(components.method.end_epoch)
    if training.checkpoint_every or components.group.size > 1:  # otherwise checkpoints are rare
        with scratch_folder() as folder:
            trial = RunDirectory.create(
                folder / "trial", components.config, prepared.labels, prepared.preprocess, components.info()
            )
            seconds += _timed(partial(checkpointer.save, trial, 0, 0)) / (training.checkpoint_every or 1)
    for restore in undo:
        restore()
    components.step.steps_done = 0
    return seconds


def _seconds_per_step(components: Components, until: float) -> float:
    """Time steps, except the first, which compile. All processes take the same number."""
    rows, measured = itertools.chain.from_iterable(map(components.visit, itertools.count())), 0
    components.step.set(**components.rates(0))
    for unmeasured in itertools.islice(rows, SKIPPED_STEPS):
        components.step(unmeasured)
    _ = float(components.step.sums[-1])  # waits for the device
    start = time.perf_counter()
    while measured < MIN_STEPS or not components.group.any(time.perf_counter() >= until):
        components.step(next(rows))
        measured += 1
    _ = float(components.step.sums[-1])
    return (time.perf_counter() - start) / measured


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
