"""train(): from a config to a run directory. Read this file and `step.py`, and you know what a run does.

prepare   data, labels and preprocessing, or those of the run that is resumed
set up    network, method, optimizer, schedule, loader, step (`setup.py`), or their state in the checkpoint
epochs    steps, evaluation, history, checkpoint
"""

from __future__ import annotations

import math
import shutil
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from selfens.config import Config
from selfens.core import launcher
from selfens.core.device import TORCH_GLOBALS_LOCK, resolve_device, torch_settings
from selfens.core.randomness import PROCESS, stream
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.errors import DivergedError, RunError, check_kind
from selfens.methods.base import Method
from selfens.runs.directory import RunDirectory, check_free
from selfens.runs.run import Run
from selfens.settings import seconds
from selfens.training import checkpoint as checkpoints
from selfens.training import distributed, limit, notices, setup
from selfens.training.checkpoint import Position
from selfens.training.distributed import MAX, MIN, Group
from selfens.training.interrupt import StopRequest
from selfens.training.own import Given, check_given_again
from selfens.training.progress import Progress, Silent
from selfens.training.setup import Parts

SECONDS_BETWEEN_CHECKPOINTS = 10  # on one GPU, if an epoch takes less
STEPS_BETWEEN_STOP_CHECKS = 8  # after which several processes ask each other whether one was told to stop


def train(
    config: Config,
    run_dir: str | Path,
    *,
    dataset: Dataset | None = None,
    network: nn.Module | None = None,
    method: Method | None = None,
    progress: Progress | None = None,
    time_limit: float | str | None = None,
    note: str = "",
) -> Run:
    """Train what `config` says and leave everything in `run_dir`, which must be new.

    dataset   trained on instead of `config.data.name`
    network   trained instead of `config.network.name`: any module from inputs to logits
    method    used instead of `config.method`: any `Method`
    progress  told what happens; by default nothing is shown
    time_limit  seconds, or text such as "5m", from now to the return: as many epochs as fit, instead of the config's; ramps
              keep their proportion, and the run's config has the number that was chosen
    note      a line about how the config was chosen; it is shown, and kept in run.json
    """
    deadline = None if time_limit is None else time.perf_counter() + seconds("time_limit", time_limit)
    check_kind("config", config, Config, "a Config, such as presets.get('digits')")
    given, path = Given(dataset, network, method, deadline, note), Path(run_dir)
    if launcher.restarts() and (path / "config.json").is_file():
        found = RunDirectory.open(path).config()
        asked = config if deadline is None else replace(config, schedule=config.schedule.scaled(found.schedule.epochs))
        if asked == found:  # so the caller's config names the same code as the run's
            return resume(path, dataset=dataset, network=network, method=method, progress=progress, trust_code=True)
    return _run(path, config, given, progress)


def resume(
    run_dir: str | Path,
    *,
    dataset: Dataset | None = None,
    network: nn.Module | None = None,
    method: Method | None = None,
    progress: Progress | None = None,
    trust_code: bool = False,
) -> Run:
    """Continue a run from its last checkpoint. Data, network and method passed to `train` must be passed again.

    trust_code  import the code that the run's config names for its network (module:factory)
    """
    run, given = Run(run_dir, network=network, trust_code=trust_code), Given(dataset, network, method)
    run.directory.check_resumable()
    check_given_again(run, given)
    run.check_code()
    return _run(run.path, run.config, given, progress, resumed=run)


def _run(path: Path, config: Config, given: Given, progress: Progress | None, resumed: Run | None = None) -> Run:
    """The one path of new and resumed runs. A resumed run is locked before anything is read, a new one once it exists."""
    given.check(config)
    device, directory = resolve_device(config.training.device), RunDirectory(path)
    with ExitStack() as stack:
        stack.enter_context(TORCH_GLOBALS_LOCK)
        group = stack.enter_context(distributed.joined(device))
        show = (progress or Silent()) if group.is_first else Progress()
        if resumed:
            stack.enter_context(directory.locked() if group.is_first else nullcontext())
        data = _load_data(path, config, given, resumed, group, show)
        prepared = setup.prepare_again(resumed, device, data) if resumed else setup.prepare(config, device, data, group)
        threads, seed = _threads(config, resumed), _process_seed(config, group)
        stack.enter_context(torch_settings(config.training.precision, threads, device, seed))
        parts = Parts(prepared, given, group, show.warn)
        if parts.method.ensemble is not None:
            stack.callback(parts.method.ensemble.close)
        parts.shapes = checkpoints.shapes(parts)
        start = Position()
        if resumed:
            notices.warn_about_changes(resumed.about["environment"], parts, show)
            if directory.has_checkpoint():
                start = checkpoints.load(parts, directory.load_checkpoint())
        else:
            if given.deadline is not None:
                limit.fit_schedule(parts, given.deadline)
                show.until(given.deadline)
            _create(path, parts)
            notices.warn_about_data(parts, show)
            stack.enter_context(directory.locked() if group.is_first else nullcontext())
        _train_epochs(parts, directory, show, start)
    return Run(path, network=given.network, device=device.type, dataset=data, trust_code=True)  # it has run just now


def _threads(config: Config, resumed: Run | None) -> int | None:
    """As many as before, because sums over threads round differently."""
    if resumed and config.training.threads is None and resumed.about.get("processes", 1) == launcher.world_size():
        return int(resumed.about["environment"]["threads"])
    return config.training.threads


def _process_seed(config: Config, group: Group) -> int:
    """The seed itself for the first process, another one for each other."""
    seed = config.seed.of("training")
    return seed if group.is_first else int(stream(seed, PROCESS, group.rank).integers(2**62))


def _load_data(path: Path, config: Config, given: Given, resumed: Run | None, group: Group, show: Progress) -> Dataset:
    """The data of the run. What can be refused before it is loaded is refused here."""
    with group.first_process_first():
        if resumed:
            return given.dataset or resumed.dataset()
        if group.is_first:
            check_free(path)
        return given.dataset or sources.from_config(config, progress=show.talkative)


def _create(path: Path, parts: Parts) -> None:
    """The directory of a new run. The first process writes it, and all must see it, because all read it at the end."""
    group, prepared = parts.group, parts.prepared
    if parts.method.ensemble is not None:
        _ = parts.method.ensemble.arrays  # refuses a file that a checkpoint of another run relies on
    if group.is_first:
        RunDirectory.create(path, parts.config, prepared.labels, prepared.preprocess, parts.about())
    group.barrier()
    if not group.all_reduce_int(int((path / "config.json").is_file()), MIN):
        if group.is_first:
            shutil.rmtree(path)  # made a moment ago, and of no use
        raise RunError(
            f"{path.absolute()} is not seen by all processes; give the run's directory a path that is the same folder for "
            "all."
        )


def _train_epochs(parts: Parts, directory: RunDirectory, progress: Progress, start: Position) -> None:
    """The seconds of an epoch count from the end of the one before, so that they add up to the run's."""
    epochs, steps = parts.config.schedule.epochs, parts.loader.steps_per_epoch
    first_epoch, first_step, seconds_before = start
    if parts.group.is_first:
        directory.truncate_history(first_epoch)
    progress.start(notices.title(parts, directory), epochs=epochs, first_epoch=first_epoch, steps_per_epoch=steps)
    try:
        notices.warn_before(parts, progress)
        if not directory.has_checkpoint():
            checkpoints.save(parts, directory, 0, 0)  # the weights of a module that was passed are nowhere else
        last_save = time.perf_counter()
        epoch_start = last_save - seconds_before
        with StopRequest() as stop:
            for epoch in range(first_epoch, epochs):
                steps_start = time.perf_counter()
                for number, rows in enumerate(parts.visit(epoch, first_step), start=first_step):
                    if _told_to_stop(parts, stop, number):
                        _stop(parts, directory, epoch, number, time.perf_counter() - epoch_start)
                    parts.step.set(**parts.rates(epoch + number / steps))
                    parts.step(rows)
                    progress.step(epoch, number)
                parts.method.end_epoch()
                checkpoints.average_over_processes(parts)
                losses = {name: float(mean) for name, mean in parts.step.take_means().items()}  # waits for the device
                images = (steps - first_step) * parts.loader.batch_size * parts.group.size
                images_per_second = images / (time.perf_counter() - steps_start)
                first_step = 0
                _check_finite(parts, directory, epoch, losses["total"])
                record: dict[str, Any] = {
                    "epoch": epoch,
                    **losses,
                    **_errors(parts, epoch + 1),
                    **parts.rates(epoch),
                    "ensemble_variance": _ensemble_variance(parts),
                    "images_per_second": images_per_second,
                    "seconds": time.perf_counter() - epoch_start,
                }
                epoch_start += record["seconds"]
                if parts.group.is_first:
                    directory.append_history(record)
                if _is_checkpoint_due(parts, epoch, seconds=epoch_start - last_save):
                    checkpoints.save(parts, directory, epoch + 1, 0)
                    last_save = time.perf_counter()
                progress.epoch(record)
                if epoch == epochs - 1:
                    notices.warn_after(parts, losses, progress)
    finally:
        progress.close()


# The end of an epoch


def _errors(parts: Parts, done: int) -> dict[str, float | None]:
    """After so many epochs; None if they are not evaluated then, which depends on nothing else."""
    if done % parts.config.training.evaluate_every and done < parts.config.schedule.epochs:
        return dict.fromkeys(parts.evaluated)
    return parts.errors()


def _ensemble_variance(parts: Parts) -> float | None:
    if parts.method.ensemble is None:
        return None
    spread = float(parts.group.mean(parts.method.ensemble.spread.to(parts.prepared.device)))
    return spread if math.isfinite(spread) else None


def _check_finite(parts: Parts, directory: RunDirectory, epoch: int, loss: float) -> None:
    if _is_finite(parts, loss):
        return
    good, step = directory.reached()
    where = "no checkpoint was reached"
    if good or step:
        steps = f" and {step} steps" if step else ""
        where = f"the last good checkpoint, after epoch {good}{steps}, is in {directory.path}"
    raise DivergedError(
        f"the loss stopped being finite in epoch {epoch + 1}; {where}. Try a lower optimizer.learning_rate, a slower ramp-up "
        f"(schedule.rampup_epochs={2 * parts.config.schedule.rampup:g}; with the cosine schedule warmup_epochs) or, with adam "
        "and adamw, optimizer.beta2=0.99."
    )


def _is_finite(parts: Parts, loss: float) -> bool:
    """The loss and the weights, in all processes."""
    here = math.isfinite(loss) and bool(parts.optimizer.flat.isfinite().all())
    return bool(parts.group.all_reduce_int(int(here), MIN))


def _is_checkpoint_due(parts: Parts, epoch: int, seconds: float) -> bool:
    """At the end; else every `checkpoint_every` epochs; by default every epoch, on one GPU at most every 10 seconds."""
    done, every = epoch + 1, parts.config.training.checkpoint_every
    if done == parts.config.schedule.epochs:
        return True
    if every is None and parts.prepared.device.type == "cuda" and parts.group.size == 1:
        return seconds >= SECONDS_BETWEEN_CHECKPOINTS
    return done % (every or 1) == 0


# Stopping


def _told_to_stop(parts: Parts, stop: StopRequest, step: int) -> bool:
    """Whether to stop. Several processes ask each other every few steps, so that all stop at the same one."""
    if parts.group.size == 1:
        return stop.requested
    return step % STEPS_BETWEEN_STOP_CHECKS == 0 and bool(parts.group.all_reduce_int(int(stop.requested), MAX))


def _stop(parts: Parts, directory: RunDirectory, epoch: int, step: int, seconds: float) -> NoReturn:
    if _is_finite(parts, float(parts.step.sums[-1])):
        checkpoints.save(parts, directory, epoch, step, seconds if step else 0.0)
    again = "" if parts.group.size == 1 else f" by torchrun in {parts.group.size} processes, as before"
    raise KeyboardInterrupt(f"stopped in epoch {epoch + 1}; {directory.path} can be resumed{again}.")
