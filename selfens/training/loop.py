"""train(): from a config to a run directory. Read this file and `step.py`, and you know what a run does.

set up    data, labels, preprocessing; then network, method, optimizer (`session.py`), or the state of a checkpoint
epoch     set the schedules, take the steps, end the epoch, evaluate; then history and checkpoint, on one GPU while the
          next epoch's steps run
end       write the report
"""

from __future__ import annotations

import copy
import math
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import nn

from selfens.config import IN_MEMORY, Config
from selfens.core import launcher
from selfens.core.device import TURN, Awaited, Stopwatch, environment, resolve_device, torch_settings
from selfens.core.randomness import PROCESS, stream
from selfens.data import preprocess, sources
from selfens.data.dataset import Dataset
from selfens.data.labels import LabelChoice, choose_labels, unnamed_labels
from selfens.data.rows import is_mapped
from selfens.errors import ConfigError, DivergedError, RunError, check_kind
from selfens.files import targets_file
from selfens.methods.base import Method
from selfens.report.page import write_report
from selfens.runs.directory import REPORT, RunDirectory, check_free
from selfens.runs.run import Run
from selfens.training import distributed
from selfens.training.distributed import LEAST, MOST, Group
from selfens.training.interrupt import StopRequest
from selfens.training.progress import Mute, Progress, Silent
from selfens.training.setup import Session

Rows = NDArray[np.int64]
NEGLIGIBLE_WEIGHT = 1e-3
COLLAPSED_SPREAD = 1e-2
SHOWN_CLASSES = 10
SECONDS_BETWEEN_CHECKPOINTS = 10  # on one GPU, where an epoch may take less than one
STEPS_TO_AGREE = 8  # after which several processes ask each other whether one was told to stop


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
    method    used instead of `config.method.name`: any `Method`
    progress  told what happens; by default nothing is shown
    """
    check_kind("config", config, Config, "a Config, such as presets.get('digits')")
    _check_dataset_kind(dataset)
    path, device = Path(run_dir), resolve_device(config.training.device)
    config = _with_absolute_targets(config)
    if launcher.restarts() and _holds(path, config):
        return resume(path, dataset=dataset, network=network, method=method, progress=progress)
    with TURN, distributed.joined(device) as group:
        show = (progress or Silent()) if group.is_first else Mute()
        with group.first_before_others():
            if group.is_first:
                check_free(path, config)
                _check_targets_free(config, path)
            data = dataset or sources.from_config(config, progress=show.talkative)
        _check_extra(config, data)
        seeds = config.seed
        choice = choose_labels(data, config.data, label_seed=seeds.of("labels"), split_seed=seeds.of("split"))
        fitted = preprocess.fit(config.data.preprocess, data.inputs, device, _fitted_rows(data, choice)).to(device)
        group.take_from_first([*fitted.state_dict().values()])
        with torch_settings(config.training, device, _process_seed(config, group)):
            session = Session(config, device, data, choice, fitted, network, method, show.warn, group)
            directory = RunDirectory(path)
            with closing(session):
                session.check_targets_new()
                if group.is_first:
                    own = {"data": dataset, "network": network, "method": method}
                    about = session.about(data) | {f"own_{part}": given is not None for part, given in own.items()}
                    RunDirectory.create(path, config, choice, fitted, about)
                _check_seen_by_all(path, group)
                _warn_of_data(config, data, show)
                with directory.locked(group.is_first):
                    _train_epochs(session, directory, show)
        run = Run(path, network=network, device=device.type)
        if group.is_first:
            _write_report(run, data, network, show)
    return run


def resume(
    run_dir: str | Path,
    *,
    dataset: Dataset | None = None,
    network: nn.Module | None = None,
    method: Method | None = None,
    progress: Progress | None = None,
) -> Run:
    """Continue a run from its last checkpoint. Data, network and method passed to `train` must be passed again."""
    _check_dataset_kind(dataset)
    run = Run(run_dir, network=network)
    config, device = run.config, resolve_device(run.config.training.device)
    run.directory.check_config_unchanged()
    run.directory.check_can_go_on()
    for part, given in (("network", network), ("method", method)):
        if run.about[f"own_{part}"] != (given is not None):
            how = "with a" if run.about[f"own_{part}"] else "without a"
            raise RunError(
                f"{run.path} was begun {how} {part} of your own; resume it the same way: resume(path, {part}=...)."
            )
    with TURN, distributed.joined(device) as group, run.directory.locked(group.is_first):
        show, was_finished = (progress or Silent()) if group.is_first else Mute(), run.finished
        with group.first_before_others():
            data = dataset or run.dataset()
        run.check_dataset(data)
        if config.training.residence == "auto":  # as before, though memory may be scarcer now, or not
            before = run.about.get("residence", "device")
            here = "ram" if before == "file" and not is_mapped(data.inputs) else before
            config = config.with_values("training", residence=here)
        fitted = run.directory.preprocess().to(device)
        checkpoint = run.directory.load_checkpoint() if run.directory.has_checkpoint() else None
        options = config.training
        if options.threads is None and run.about.get("processes", 1) == group.size:
            # As many as before, because sums over threads round differently.
            options = replace(options, threads=run.about["environment"]["threads"])
        with torch_settings(options, device, _process_seed(config, group)):
            session = Session(config, device, data, run.labels, fitted, network, method, show.warn, group)
            with closing(session):
                if checkpoint:
                    session.load(checkpoint)
                    del checkpoint  # its tensors are mapped, and would keep the disk's space of a file long replaced
                _warn_of_changes(run.about["environment"], environment(device, session.precision), show)
                _train_epochs(session, run.directory, show)
        run = Run(run.path, network=network, device=device.type)
        if group.is_first and not was_finished:
            _write_report(run, data, network, show)
    return run


def _holds(path: Path, config: Config) -> bool:
    """Whether a run of this configuration is there."""
    return (path / "config.json").is_file() and RunDirectory.open(path).config() == config


def _warn_of_data(config: Config, data: Dataset, show: Progress) -> None:
    """What was left out, or is not as one might think."""
    if data.unreadable:
        count = f"{len(data.unreadable)} files that" if len(data.unreadable) > 1 else "1 file that"
        show.warn(f"left out {count} could not be read, the first {data.unreadable[0]}; run.json lists them.")
    for note in data.notes:
        show.warn(note)
    if Path(config.data.name).is_dir() and data.row_names and config.data.labels is None and (data.labels >= 0).all():
        counts = np.bincount(data.labels, minlength=data.num_classes)
        each = ", ".join(f"{name} {count:,}" for name, count in zip(data.classes[:SHOWN_CLASSES], counts, strict=False))
        more = ", ..." if data.num_classes > SHOWN_CLASSES else ""
        show.warn(
            f"every image lies in the folder of a class ({each}{more}); those without a class belong into unlabeled/."
        )
    if config.data.label_choice == "file" and (unused := unnamed_labels(data, Path(str(config.data.labels_file)))):
        count = f"{unused:,} labels of the data are" if unused > 1 else "1 label of the data is"
        show.warn(
            f"{count} not used, because {config.data.labels_file} does not name their "
            "rows; to keep them, add its labels to theirs by --add-labels (data.label_choice=added)."
        )


def _check_seen_by_all(path: Path, group: Group) -> None:
    """The first process writes the run, and all read it at the end."""
    group.wait()
    if not group.agreed(int((path / "config.json").is_file()), LEAST):
        if group.is_first:
            shutil.rmtree(path)  # made a moment ago, and of no use
        raise RunError(
            f"{path.absolute()} is not seen by all processes; name the run's directory by a path that is the same folder "
            "for all."
        )


def _check_dataset_kind(dataset: Dataset | None) -> None:
    if dataset is not None:
        check_kind("dataset", dataset, Dataset, "a Dataset, such as Dataset.from_npz(path) reads")


def _process_seed(config: Config, group: Group) -> int:
    """The seed itself for the first process, one of its own for each other."""
    seed = config.seed.of("training")
    return seed if group.is_first else int(stream(seed, PROCESS, group.rank).integers(2**62))


def _check_extra(config: Config, data: Dataset) -> None:
    if config.data.extra is not None and data.extra_rows == 0:
        raise ConfigError(
            f"data.extra is {config.data.extra}, but a data set of your own was passed; give it its extra rows by "
            "dataset.with_extra(...)."
        )


def _write_report(run: Run, data: Dataset, network: nn.Module | None, show: Progress) -> None:
    """The page of a run that has come to its end. A page that cannot be written costs a warning, not the run."""
    if not run.config.training.report:
        return
    try:
        # A copy of the user's module, because reading a run back puts weights into it.
        own = Run(run.path, network=copy.deepcopy(network), device=run.device.type)
        write_report(own, run.path / REPORT, dataset=data)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        show.warn(f"the run is complete, but its report could not be written ({reason.rstrip('.')}).")


def _with_absolute_targets(config: Config) -> Config:
    """The config with the path of a targets file made good for any folder a resume is typed in."""
    kept = config.method.targets
    return config if kept in IN_MEMORY else config.with_values("method", targets=str(Path(kept).absolute()))


def _check_targets_free(config: Config, run_dir: Path) -> None:
    """Refuse a file for the targets that cannot become the run's, before anything is loaded."""
    if config.method.targets in IN_MEMORY:
        return
    path = Path(config.method.targets)
    if path.resolve().is_relative_to(run_dir.resolve()):
        raise RunError(
            f"{path} is inside the run's directory, which must be new; let method.targets (--targets) name a file elsewhere."
        )
    targets_file.check_free(path)


def _fitted_rows(data: Dataset, choice: LabelChoice) -> Rows | None:
    """The rows that preprocessing may be fitted on, neither extra nor held out; None where these are all."""
    if data.extra_rows == 0 and len(choice.validation) == 0:
        return None
    return np.setdiff1d(np.arange(data.main_rows), choice.validation)


def _train_epochs(session: Session, directory: RunDirectory, progress: Progress) -> None:
    epochs = session.config.schedule.epochs
    if session.group.is_first:
        directory.truncate_history(session.first_epoch)
    progress.start(
        _title(session, directory),
        epochs=epochs,
        first_epoch=session.first_epoch,
        steps_per_epoch=session.loader.steps_per_epoch,
    )
    _warn_before(session, progress)
    if not session.group.first_says(directory.has_checkpoint()):
        session.save(directory, 0, 0)  # the weights of a module of the user's own are nowhere else
    try:
        with StopRequest() as stop:
            ends = _EpochEnds(session, directory, progress)
            for epoch in range(session.first_epoch, epochs):
                ends.add(_train_epoch(session, ends, epoch, stop))
    finally:
        progress.close()


@dataclass
class _Ended:
    """An epoch whose steps have all been given out."""

    epoch: int
    rates: dict[str, float]
    images: int
    stopwatch: Stopwatch
    outcome: Awaited


class _EpochEnds:
    """Ends each epoch once its numbers are known, on one GPU while the steps of the next one run: record and checkpoint.

    Where a checkpoint is due it waits for the numbers, because none may follow an epoch that has diverged.
    """

    def __init__(self, session: Session, directory: RunDirectory, progress: Progress) -> None:
        self.session, self.directory, self.progress = session, directory, progress
        self.waiting: _Ended | None = None
        self.began = time.perf_counter() - session.seconds_spent
        self.saved = time.perf_counter()

    def add(self, ended: _Ended) -> None:
        self.finish()
        self.waiting = ended
        due = self._is_checkpoint_due(ended.epoch)
        if due or not self.session.evaluates_later:
            self.finish(save=due)
        self.look()

    def _is_checkpoint_due(self, epoch: int) -> bool:
        done, every = epoch + 1, self.session.config.training.checkpoint_every
        if done == self.session.config.schedule.epochs:
            return True
        if every is None and self.session.evaluates_later:
            return time.perf_counter() - self.saved >= SECONDS_BETWEEN_CHECKPOINTS
        return done % (every or 1) == 0

    def look(self) -> None:
        """Write what is known by now."""
        if self.waiting and self.waiting.outcome.are_known():
            self.finish()

    def finish(self, *, save: bool = False) -> None:
        """Wait for the device and write the record, and then a checkpoint where that is wanted."""
        if self.waiting is None:
            return
        ended, self.waiting = self.waiting, None
        known = ended.outcome.read()
        _check_finite(self.session, self.directory, ended.epoch, known)
        _warn_of_collapse(self.session, ended.epoch, known, self.progress)
        # From the end of the epoch before, its checkpoint included: the seconds of a run add up to its time.
        now = time.perf_counter()
        record = _record(self.session, ended, known) | {"seconds": now - self.began}
        self.began = now
        if self.session.group.is_first:
            self.directory.append_history(record)
        if save:
            self.save(ended.epoch + 1, 0)
        self.progress.epoch(record)

    def save(self, epoch: int, step: int) -> None:
        spent = time.perf_counter() - self.began if step else 0.0
        self.session.save(self.directory, epoch, step, spent)
        self.saved = time.perf_counter()


def _train_epoch(session: Session, ends: _EpochEnds, epoch: int, stop: StopRequest) -> _Ended:
    """One visit of the training set. With inputs and targets on the device nothing in here waits for it, but to stop."""
    rates = {
        "learning_rate": session.learning_rate(epoch),
        "beta1": session.beta1(epoch),
        "weight": session.weight(epoch),
    }
    step, stopwatch = session.step, Stopwatch(session.device)
    step.set(**rates)
    stopwatch.mark()
    first = session.first_step if epoch == session.first_epoch else 0
    for number, rows in enumerate(session.visit(epoch, first), start=first):
        if _told_to_stop(session, stop, number):
            ends.finish()
            _stop(session, ends, epoch, number)
        step(rows)
        ends.look()
        ends.progress.step(epoch, number)
    session.end_epoch()
    stopwatch.mark()
    images = (session.loader.steps_per_epoch - first) * session.loader.batch_size * session.group.size
    return _Ended(epoch, rates, images, stopwatch, session.close_epoch())


def _stop(session: Session, ends: _EpochEnds, epoch: int, step: int) -> NoReturn:
    if session.is_finite():
        ends.save(epoch, step)
    again = "" if session.group.size == 1 else f" by torchrun in {session.group.size} processes, as before"
    raise KeyboardInterrupt(f"stopped in epoch {epoch + 1}; go on with 'selfens resume {ends.directory.path}'{again}.")


def _record(session: Session, ended: _Ended, known: dict[str, float]) -> dict[str, Any]:
    """What the history keeps of an epoch."""
    variance = known.get("ensemble_variance", math.nan)
    errors = {
        name: 100.0 * int(known[name]) / rows.in_all if rows.in_all else None
        for name, rows in session.evaluated.items()
    }
    return {
        "epoch": ended.epoch,
        "supervised": known["supervised"],
        "unsupervised": known["unsupervised"],
        "total": known["total"],
        **errors,
        **ended.rates,
        "ensemble_variance": variance if math.isfinite(variance) else None,
        "images_per_second": ended.images / ended.stopwatch.seconds(),
    }


def _told_to_stop(session: Session, stop: StopRequest, step: int) -> bool:
    """Whether this process was; of several, whether one was, which they ask each other now and then to stop at one step."""
    if session.group.size == 1:
        return stop.requested
    return step % STEPS_TO_AGREE == 0 and bool(session.group.agreed(int(stop.requested), MOST))


def _check_finite(session: Session, directory: RunDirectory, epoch: int, known: dict[str, float]) -> None:
    if known["finite"]:
        return
    good, step = directory.reached()
    position = f"after epoch {good}" + (f" and {step} steps" if step else "")
    there = (good, step) != (0, 0)
    where = f"the last good checkpoint, {position}, is in {directory.path}" if there else "no checkpoint was reached"
    raise DivergedError(
        f"the loss stopped being finite in epoch {epoch + 1}; {where}. Try optimizer.beta2=0.99, a slower ramp-up "
        f"(schedule.rampup_epochs={2 * session.config.schedule.rampup:g}) or a lower optimizer.learning_rate."
    )


def _title(session: Session, directory: RunDirectory) -> str:
    """What is trained on what and how, in a few lines."""
    config, parameters = session.config, sum(p.numel() for p in session.optimizer.parameters)
    extra = f"{session.extra_rows:,} of them extra, " if session.extra_rows else ""
    streamed = {"device": "", "ram": ", inputs streamed from RAM", "file": ", inputs streamed from their file"}
    sides = " x ".join(map(str, session.input_shape[1:]))
    pixels = f", images of {sides}" if sides else ""
    return (
        f"{session.data_name}: {len(session.visited):,} rows, {extra}{session.num_labelled:,} labelled, "
        f"{session.evaluated['test_error'].in_all:,} to test on; run in {directory.path}\n"
        f"{session.method_name}, {session.network_name} ({parameters:,} parameters), {session.device.type} "
        f"{session.precision}; {config.schedule.epochs} epochs, w_max {config.method.weight_max:g}, learning rate "
        f"{config.optimizer.learning_rate:g}, translation {config.augment.translation}, preprocessing {config.data.preprocess}"
        f"{pixels}{streamed[session.residence]}"
    )


def _warn_before(session: Session, progress: Progress) -> None:
    """Say so when self-ensembling cannot be working."""
    if session.evaluated["test_error"].in_all == 0:
        progress.warn("there are no test rows, so no test error is reported.")
    if not session.method.uses_unlabeled:
        if session.extra_rows:
            progress.warn(
                f"{session.method_name} training learns nothing from the {session.extra_rows:,} extra rows; they only fill "
                "batches."
            )
        return
    if session.num_labelled == len(session.visited):
        progress.warn(
            f"every training row is labelled: with nothing unlabeled, {session.method_name} training gains only from the "
            "consistency of its predictions on labelled rows."
        )
    if session.weight_max < NEGLIGIBLE_WEIGHT:
        progress.warn(
            f"the unsupervised weight reaches only {session.weight_max:.2g}, so this is supervised training in all but "
            "name; raise method.weight_max or set method.weight_scale=none."
        )


def _warn_of_collapse(session: Session, epoch: int, known: dict[str, float], progress: Progress) -> None:
    alike = known["spread"] < COLLAPSED_SPREAD and epoch >= session.config.schedule.rampup
    if alike and session.method.uses_unlabeled and not session.warned_of_collapse:
        session.warned_of_collapse = True
        progress.warn(
            f"in epoch {epoch + 1} all rows have the same prediction, so their targets teach nothing; the unsupervised "
            "weight may rise too fast: lower method.weight_max or lengthen schedule.rampup_epochs."
        )


def _warn_of_changes(before: dict[str, Any], now: dict[str, Any], progress: Progress) -> None:
    changed = [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]
    if changed:
        progress.warn(
            f"resumed under other conditions, so results may differ in the last digits ({', '.join(changed)})."
        )
