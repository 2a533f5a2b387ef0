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
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from selfens.config import Config
from selfens.core import launcher
from selfens.core.device import TORCH_GLOBALS_LOCK, Stopwatch, environment, resolve_device, torch_settings
from selfens.core.randomness import PROCESS, stream
from selfens.data import preprocess, sources
from selfens.data.dataset import Dataset
from selfens.data.labels import LabelChoice, choose_labels
from selfens.data.rows import is_mapped
from selfens.errors import ConfigError, DivergedError, RunError, check_kind
from selfens.methods.base import Method
from selfens.runs.directory import RunDirectory, check_free
from selfens.runs.run import Run
from selfens.training import checkpoint as checkpoints
from selfens.training import distributed, notices, setup
from selfens.training.checkpoint import Start
from selfens.training.distributed import MAX, MIN, Group
from selfens.training.evaluate import misclassified
from selfens.training.interrupt import StopRequest
from selfens.training.progress import Mute, Progress, Silent
from selfens.training.setup import Given, Parts, Prepared

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
) -> Run:
    """Train what `config` says and leave everything in `run_dir`, which must be new.

    dataset   trained on instead of `config.data.name`
    network   trained instead of `config.network.name`: any module from inputs to logits
    method    used instead of `config.method`: any `Method`
    progress  told what happens; by default nothing is shown
    """
    check_kind("config", config, Config, "a Config, such as presets.get('digits')")
    config = replace(config, method=config.method.with_absolute_paths())
    given, path = Given(dataset, network, method), Path(run_dir)
    if launcher.restarts() and _holds(path, config):
        return resume(path, dataset=dataset, network=network, method=method, progress=progress)
    return _run(path, config, given, progress)


def resume(
    run_dir: str | Path,
    *,
    dataset: Dataset | None = None,
    network: nn.Module | None = None,
    method: Method | None = None,
    progress: Progress | None = None,
) -> Run:
    """Continue a run from its last checkpoint. Data, network and method passed to `train` must be passed again."""
    run, given = Run(run_dir, network=network), Given(dataset, network, method)
    run.directory.check_resumable()
    _check_given_again(run, given)
    return _run(run.path, run.config, given, progress, resumed=run)


def _run(path: Path, config: Config, given: Given, progress: Progress | None, resumed: Run | None = None) -> Run:
    """The one path of new and resumed runs. A resumed run is locked before anything is read, a new one once it exists."""
    given.check()
    device, directory = resolve_device(config.training.device), RunDirectory(path)
    with ExitStack() as stack:
        stack.enter_context(TORCH_GLOBALS_LOCK)
        group = stack.enter_context(distributed.joined(device))
        show = (progress or Silent()) if group.is_first else Mute()
        if resumed:
            stack.enter_context(directory.locked() if group.is_first else nullcontext())
            prepared = _prepare_again(resumed, given, device, group)
        else:
            prepared = _prepare(path, config, given, device, group, show)
        threads, seed = _threads(config, resumed), _process_seed(config, group)
        stack.enter_context(torch_settings(config.training.precision, threads, device, seed))
        parts = setup.build(prepared, given, group, show.warn)
        stack.callback(parts.close)
        if resumed:
            start = _continue(resumed, parts, show)
        else:
            start = _create(path, parts, show)
            stack.enter_context(directory.locked() if group.is_first else nullcontext())
        _train_epochs(parts, directory, show, start)
    return Run(path, network=given.network, device=device.type, dataset=prepared.data)


def _prepare(path: Path, config: Config, given: Given, device: torch.device, group: Group, show: Progress) -> Prepared:
    """Data, labels and preprocessing of a new run. What can be refused is refused before data is loaded."""
    with group.first_process_first():
        if group.is_first:
            check_free(path)
            config.method.check(processes=group.size, new_run=path)
        data = given.dataset or sources.from_config(config, progress=show.talkative)
    _check_extra(config, data)
    seeds = config.seed
    labels = choose_labels(data, config.data, label_seed=seeds.of("labels"), split_seed=seeds.of("split"))
    fitted = preprocess.fit(config.data.preprocess, data.inputs, device, _fitted_rows(data, labels)).to(device)
    group.broadcast([*fitted.state_dict().values()])
    return Prepared(config, device, data, labels, fitted)


def _prepare_again(run: Run, given: Given, device: torch.device, group: Group) -> Prepared:
    """Data, labels and preprocessing of a run that is resumed."""
    with group.first_process_first():
        data = given.dataset or run.dataset()
    run.check_dataset(data)
    return Prepared(_as_before(run, data), device, data, run.labels, run.directory.preprocess().to(device))


def _create(path: Path, parts: Parts, show: Progress) -> Start:
    """The directory of a new run."""
    parts.check_targets_new()
    prepared = parts.prepared
    if parts.group.is_first:
        RunDirectory.create(path, parts.config, prepared.labels, prepared.preprocess, parts.about())
    _check_seen_by_all(path, parts.group)
    notices.warn_about_data(parts.config, prepared.data, show)
    return Start()


def _continue(run: Run, parts: Parts, show: Progress) -> Start:
    """The state of the checkpoint, if there is one."""
    now = environment(parts.prepared.device, parts.precision)
    notices.warn_about_changes(run.about["environment"], now, show)
    if not run.directory.has_checkpoint():
        return Start()
    return checkpoints.load(parts, run.directory.load_checkpoint())


def _train_epochs(parts: Parts, directory: RunDirectory, progress: Progress, start: Start) -> None:
    epochs, steps = parts.config.schedule.epochs, parts.loader.steps_per_epoch
    if parts.group.is_first:
        directory.truncate_history(start.epoch)
    progress.start(notices.title(parts, directory), epochs=epochs, first_epoch=start.epoch, steps_per_epoch=steps)
    try:
        notices.warn_before(parts, progress)
        if not parts.group.broadcast_object(directory.has_checkpoint()):
            checkpoints.save(parts, directory, 0, 0)  # the weights of a module that was passed are nowhere else
        clock, collapsed = Clock(parts.prepared.device, start.seconds), False
        with StopRequest() as stop:
            for epoch in range(start.epoch, epochs):
                first = start.step if epoch == start.epoch else 0
                clock.start_epoch()
                for number, rows in enumerate(parts.visit(epoch, first), start=first):
                    if _told_to_stop(parts, stop, number):
                        _stop(parts, directory, epoch, number, clock)
                    parts.step.set(**parts.rates(epoch + number / steps))
                    parts.step(rows)
                    progress.step(epoch, number)
                parts.method.end_epoch()
                clock.end_steps((steps - first) * parts.loader.batch_size * parts.group.size)
                losses, spread = _means(parts)
                _check_finite(parts, directory, epoch, losses)
                collapsed = collapsed or notices.warn_about_collapse(parts, epoch, spread, progress)
                record = {
                    "epoch": epoch,
                    **losses,
                    **_errors(parts),
                    **parts.rates(epoch),
                    "ensemble_variance": _ensemble_variance(parts),
                    **clock.end_epoch(),
                }
                if parts.group.is_first:
                    directory.append_history(record)
                if _is_checkpoint_due(parts, epoch, clock):
                    checkpoints.save(parts, directory, epoch + 1, 0)
                    clock.saved = time.perf_counter()
                progress.epoch(record)
    finally:
        progress.close()


class Clock:
    """Seconds of each epoch, from the end of the one before, so that they add up to the run's; images per second of its
    steps."""

    def __init__(self, device: torch.device, seconds_spent: float) -> None:
        self.device = device
        self.saved = time.perf_counter()
        self.began = self.saved - seconds_spent

    def start_epoch(self) -> None:
        self.stopwatch = Stopwatch(self.device)
        self.stopwatch.mark()

    def end_steps(self, images: int) -> None:
        self.stopwatch.mark()
        self.images = images

    def seconds(self) -> float:
        """Of the present epoch, so far."""
        return time.perf_counter() - self.began

    def end_epoch(self) -> dict[str, float]:
        """After the host has waited for the device."""
        seconds = self.seconds()
        self.began += seconds
        return {"images_per_second": self.images / self.stopwatch.seconds(), "seconds": seconds}


# The end of an epoch


def _means(parts: Parts) -> tuple[dict[str, float], float]:
    """The means of the loss's parts over the steps of all processes, and how far predictions differ."""
    checkpoints.average_buffers(parts)
    checkpoints.join_sums(parts)
    means = {name: float(value) for name, value in parts.step.take_means().items()}
    return means, means.pop("spread")


def _errors(parts: Parts) -> dict[str, float | None]:
    network = parts.method.evaluated(parts.network)
    return {name: misclassified(network, rows, parts.precision, parts.group) for name, rows in parts.evaluated.items()}


def _ensemble_variance(parts: Parts) -> float | None:
    if parts.method.ensemble is None:
        return None
    spread = float(parts.group.mean(parts.method.ensemble.spread.to(parts.prepared.device)))
    return spread if math.isfinite(spread) else None


def _check_finite(parts: Parts, directory: RunDirectory, epoch: int, means: dict[str, float]) -> None:
    if _is_finite(parts, math.isfinite(means["total"])):
        return
    good, step = directory.reached()
    position = f"after epoch {good}" + (f" and {step} steps" if step else "")
    there = (good, step) != (0, 0)
    where = f"the last good checkpoint, {position}, is in {directory.path}" if there else "no checkpoint was reached"
    config, advice = parts.config, "a lower optimizer.learning_rate"
    if config.schedule.name == "paper":
        advice = f"a slower ramp-up (schedule.rampup_epochs={2 * config.schedule.rampup:g}) or {advice}"
    if config.optimizer.name != "sgd":
        advice = f"optimizer.beta2=0.99, {advice}"
    raise DivergedError(f"the loss stopped being finite in epoch {epoch + 1}; {where}. Try {advice}.")


def _is_finite(parts: Parts, loss_is_finite: bool) -> bool:
    """The loss and the weights, in all processes."""
    here = loss_is_finite and bool(parts.optimizer.flat.isfinite().all())
    return bool(parts.group.all_reduce_int(int(here), MIN))


def _is_checkpoint_due(parts: Parts, epoch: int, clock: Clock) -> bool:
    done, every = epoch + 1, parts.config.training.checkpoint_every
    if done == parts.config.schedule.epochs:
        return True
    if every is None and parts.prepared.device.type == "cuda" and parts.group.size == 1:
        return time.perf_counter() - clock.saved >= SECONDS_BETWEEN_CHECKPOINTS
    return done % (every or 1) == 0


# Stopping


def _told_to_stop(parts: Parts, stop: StopRequest, step: int) -> bool:
    """Whether to stop. Several processes ask each other every few steps, so that all stop at the same one."""
    if parts.group.size == 1:
        return stop.requested
    return step % STEPS_BETWEEN_STOP_CHECKS == 0 and bool(parts.group.all_reduce_int(int(stop.requested), MAX))


def _stop(parts: Parts, directory: RunDirectory, epoch: int, step: int, clock: Clock) -> NoReturn:
    if _is_finite(parts, bool(parts.step.total.isfinite())):
        checkpoints.save(parts, directory, epoch, step, clock.seconds() if step else 0.0)
    again = "" if parts.group.size == 1 else f" by torchrun in {parts.group.size} processes, as before"
    raise KeyboardInterrupt(f"stopped in epoch {epoch + 1}; {directory.path} can be resumed{again}.")


# Preparing a run


def _holds(path: Path, config: Config) -> bool:
    """Whether a run of this configuration is there."""
    return (path / "config.json").is_file() and RunDirectory.open(path).config() == config


def _check_extra(config: Config, data: Dataset) -> None:
    if config.data.extra is not None and data.extra_rows == 0:
        raise ConfigError(
            f"data.extra is {config.data.extra}, but a data set of your own was passed; give it its extra rows by "
            "dataset.with_extra(...)."
        )


def _check_given_again(run: Run, given: Given) -> None:
    for part, module in (("network", given.network), ("method", given.method)):
        if run.about[f"own_{part}"] != (module is not None):
            how = "with a" if run.about[f"own_{part}"] else "without a"
            raise RunError(
                f"{run.path} was started {how} {part} of your own; resume it the same way: resume(path, {part}=...)."
            )


def _as_before(run: Run, data: Dataset) -> Config:
    """The run's config, with inputs where they were, though there may be more or less memory now."""
    if run.config.training.residence != "auto":
        return run.config
    before = run.about.get("residence", "device")
    here = "ram" if before == "file" and not is_mapped(data.inputs) else before
    return run.config.with_values("training", residence=here)


def _threads(config: Config, resumed: Run | None) -> int | None:
    """As many as before, because sums over threads round differently."""
    if resumed and config.training.threads is None and resumed.about.get("processes", 1) == launcher.size():
        return int(resumed.about["environment"]["threads"])
    return config.training.threads


def _fitted_rows(data: Dataset, labels: LabelChoice) -> NDArray[np.int64] | None:
    """The rows that preprocessing may be fitted on, neither extra nor held out; None if these are all."""
    if data.extra_rows == 0 and len(labels.validation) == 0:
        return None
    return np.setdiff1d(np.arange(data.main_rows), labels.validation)


def _process_seed(config: Config, group: Group) -> int:
    """The seed itself for the first process, another one for each other."""
    seed = config.seed.of("training")
    return seed if group.is_first else int(stream(seed, PROCESS, group.rank).integers(2**62))


def _check_seen_by_all(path: Path, group: Group) -> None:
    """The first process writes the run, and all read it at the end."""
    group.barrier()
    if not group.all_reduce_int(int((path / "config.json").is_file()), MIN):
        if group.is_first:
            shutil.rmtree(path)  # made a moment ago, and of no use
        raise RunError(
            f"{path.absolute()} is not seen by all processes; give the run's directory a path that is the same folder for "
            "all."
        )
