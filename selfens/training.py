"""train(): from a config to a run directory. Read this file and `step.py`, and you know what a run does.

set up    data, labels, preprocessing, network, method, optimizer; or the state of a checkpoint
epoch     set the schedules, take the steps, end the epoch, evaluate, write history and checkpoint
end       write the report
"""

from __future__ import annotations

import copy
import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens import evaluate, methods, networks, schedules
from selfens.config import Config
from selfens.data import preprocess, sources, stream
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.labels import LabelChoice, choose_labels
from selfens.data.loader import Loader
from selfens.data.order import Order
from selfens.data.rows import is_mapped
from selfens.device import Stopwatch, environment, resolve_device, resolve_precision, resolve_switch, torch_settings
from selfens.errors import ConfigError, DivergedError, RunError
from selfens.interrupt import StopRequest
from selfens.methods.base import Method
from selfens.optim import Adam
from selfens.progress import Progress, Silent
from selfens.report.page import write_report
from selfens.run import Run
from selfens.rundir import REPORT, Checkpoint, RunDirectory, TargetsPlace, check_free
from selfens.step import EpochMeans, Step
from selfens.targets import IN_MEMORY
from selfens.targets import file as targets_file

Rows = NDArray[np.int64]
NEGLIGIBLE_WEIGHT = 1e-3
COLLAPSED_SPREAD = 1e-2


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
    device = resolve_device(config.training.device)
    config = _with_absolute_targets(config)
    check_free(Path(run_dir), config)
    _check_targets_free(config, Path(run_dir))
    data = dataset or sources.from_config(config, progress=progress is not None and progress.talkative)
    if config.data.extra is not None and data.extra_rows == 0:
        raise ConfigError(
            f"data.extra is {config.data.extra}, but a data set of your own was passed; give it its extra rows by "
            "dataset.with_extra(...)."
        )
    choice = choose_labels(data, config.data, label_seed=config.seed.of("labels"), split_seed=config.seed.of("split"))
    fitted = preprocess.fit(config.data.preprocess, data.inputs, device, _fitted_rows(data, choice))
    show = progress or Silent()
    with torch_settings(config.training, device, config.seed.of("training")):
        session = Session(config, device, data, choice, fitted, network, method, show.warn)
        own = {"own_data": dataset is not None, "own_network": network is not None, "own_method": method is not None}
        about = session.about(data) | own
        with session.new_targets_file():
            directory = RunDirectory.create(run_dir, config, choice, fitted, about)
            session.claim_targets_file(directory)
        if data.unreadable:
            show.warn(f"{len(data.unreadable)} files could not be read and were left out; they are listed in run.json.")
        with directory.locked():
            _train_epochs(session, directory, show)
    run = Run(directory.path, network=network, device=device.type)
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
    run = Run(run_dir, network=network)
    config, device = run.config, resolve_device(run.config.training.device)
    run.directory.check_config_unchanged()
    for part, given in (("network", network), ("method", method)):
        if run.about[f"own_{part}"] != (given is not None):
            how = "with a" if run.about[f"own_{part}"] else "without a"
            raise RunError(
                f"{run.path} was begun {how} {part} of your own; resume it the same way: resume(path, {part}=...)."
            )
    # The same number of threads as before, because sums over threads round differently.
    options = replace(config.training, threads=config.training.threads or run.about["environment"]["threads"])
    with run.directory.locked(), torch_settings(options, device, config.seed.of("training")):
        data = dataset or run.dataset()
        run.check_dataset(data)
        if config.training.residence == "auto":  # as before, though memory may be scarcer now, or not
            before = run.about.get("residence", "device")
            here = "ram" if before == "file" and not is_mapped(data.inputs) else before
            config = config.with_values("training", residence=here)
        fitted, show = run.directory.preprocess().to(device), progress or Silent()
        if run.directory.has_checkpoint() and run.checkpoint.targets_place:
            _ = run.ensemble  # a file that is not there or not the run's is refused here, and not made anew below
        session = Session(config, device, data, run.labels, fitted, network, method, show.warn)
        session.claim_targets_file(run.directory)
        if run.directory.has_checkpoint():
            session.load(run.directory.load_checkpoint())
        _warn_of_changes(run.about["environment"], environment(device, session.precision), show)
        before = run.finished
        _train_epochs(session, run.directory, show)
    run = Run(run.path, network=network, device=device.type)
    if not before:
        _write_report(run, data, network, show)
    return run


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


class Session:
    """The live objects of a run: what `train` sets up and a checkpoint saves."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        data: Dataset,
        choice: LabelChoice,
        fitted: nn.Module,
        network: nn.Module | None,
        method: Method | None,
        warn: Callable[[str], None],
    ) -> None:
        self.config, self.device = config, device
        self.data_name, self.extra_rows = data.name, data.extra_rows
        self.network_name = type(network).__name__ if network else config.network.name
        self.method_name = type(method).__name__ if method else config.method.name
        self.precision = resolve_precision(config.training.precision, device)
        labels = choice.training_labels(data.num_rows)
        self.visited = _visited_rows(config, data.num_rows, choice)
        order = Order(
            self.visited,
            labels[self.visited] != UNLABELED,
            config.training.batch_size,
            config.seed.of("training"),
            config.training.batches,
            config.data.extra_per_epoch,
        )
        self.residence = stream.choose_residence(config.training.residence, data.inputs, data.name, device)
        self.loader = Loader(
            stream.from_residence(self.residence, data.inputs, fitted, order.batch_size, device),
            torch.from_numpy(labels).to(device),
            order,
            config.augment,
        )
        self.num_labelled = len(choice.rows)
        self.main_is_labelled = int((choice.rows < data.main_rows).sum()) == int((self.visited < data.main_rows).sum())
        self.validation = (
            preprocess.apply(fitted, data.inputs[choice.validation], device),
            torch.from_numpy(choice.validation_labels).to(device),
        )
        self.test = (preprocess.apply(fitted, data.test_inputs, device), torch.from_numpy(data.test_labels).to(device))

        self.network = (
            (network or networks.build(config.network, data.input_shape, data.num_classes)).to(device).train()
        )
        networks.fuse(self.network, _kernels_usable(config, device, warn))
        if network is None:  # one that was passed may be trained already
            for rows in self.loader.visit(self.loader.order(0)[:1]):
                networks.calibrate(self.network, self.loader.batch(rows, 1).views[0])
        self.method = (method or methods.build(config.method, data.num_rows, data.num_classes, device)).to(device)
        if self.method.ensemble:
            self.method.ensemble.to(device)
        elif config.method.targets != "device":
            raise ConfigError(
                f"method.targets is '{config.method.targets}', but {self.method_name} keeps no ensemble; leave --targets out."
            )
        self.optimizer = Adam(self.network.parameters(), config.optimizer.beta2, config.optimizer.epsilon)
        self.step = Step(
            network=self.network,
            method=self.method,
            optimizer=self.optimizer,
            loader=self.loader,
            num_classes=data.num_classes,
            precision=self.precision,
            compile=resolve_switch(config.training.compile, device),
            capture=_capture_usable(config, device, warn),
            warn=warn,
        )
        self.learning_rate = schedules.learning_rate(config.schedule, config.optimizer.learning_rate)
        self.beta1 = schedules.beta1(config.schedule, config.optimizer)
        self.weight_max = self._weight_max()
        self.weight = schedules.unsupervised_weight(config.schedule, self.weight_max)
        self.first_epoch = self.first_step = 0
        self.warned_of_collapse = False

    def _weight_max(self) -> float:
        """w_max M/N, with the M/N left out where `method.weight_scale` says so; N counts extra rows, drawn or not."""
        scale = self.config.method.weight_scale
        if not self.method.uses_unlabeled:
            return 0.0
        if scale == "none" or (scale == "original" and self.main_is_labelled):
            return self.config.method.weight_max
        return self.config.method.weight_max * self.num_labelled / len(self.visited)

    def visit(self, epoch: int, first_step: int = 0) -> Iterable[Tensor]:
        """The rows of each step of an epoch, each when its inputs and targets are at hand."""
        order = self.loader.order(epoch)[first_step:]
        targets = self.method.ensemble.visit(order) if self.method.ensemble else order
        return (rows for rows, _ in zip(targets, self.loader.visit(order), strict=True))

    @contextmanager
    def new_targets_file(self) -> Iterator[None]:
        """While a run is made: a file for its targets must be nobody's, and nothing is left of it where that fails."""
        file = self.method.ensemble.file if self.method.ensemble else None
        if file and not file.ours:
            raise RunError(
                f"{file.path} holds the targets of another run ({file.header['directory']}); name another file."
            )
        try:
            yield
        finally:
            if file:
                file.remove_unclaimed()

    def claim_targets_file(self, directory: RunDirectory) -> None:
        if self.method.ensemble and self.method.ensemble.file:
            self.method.ensemble.file.claim(directory.about()["id"], directory.path)

    def about(self, data: Dataset) -> dict[str, Any]:
        """What run.json records."""
        return {
            "data": data.name,
            "fingerprint": data.fingerprint(),
            "rows": data.num_rows,
            "extra": {"source": data.extra_name, "rows": data.extra_rows},
            "residence": self.residence,
            "labelled": self.num_labelled,
            "test_rows": len(data.test_labels),
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "input_type": str(data.inputs.dtype),
            "unreadable": list(data.unreadable),
            "parameters": sum(p.numel() for p in self.optimizer.parameters),
            "environment": environment(self.device, self.precision),
        }

    def is_finite(self) -> bool:
        """Whether sums and parameters are still numbers."""
        return bool(self.step.sums.isfinite().all() and self.optimizer.flat.isfinite().all())

    def save(self, directory: RunDirectory, epoch: int, step: int) -> None:
        """A checkpoint from which the run goes on at `step` of `epoch`."""
        evaluated = self.method.evaluated(self.network)
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        parts = {
            "network": self.network.state_dict(),
            "evaluated": {} if evaluated is self.network else evaluated.state_dict(),
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state(),
            "sums": self.step.state(),
            "random": random,
        }
        ensemble, place = self.method.ensemble, None
        if ensemble and ensemble.file:
            place = TargetsPlace(str(ensemble.file.path), ensemble.seal(epoch, step))
        elif ensemble:
            parts["targets"] = ensemble.state()
        directory.save_checkpoint(Checkpoint(epoch, step, parts, place))

    def load(self, checkpoint: Checkpoint) -> None:
        parts = checkpoint.tensors
        try:
            self.network.load_state_dict(parts["network"])
            self.method.load_state_dict(parts.get("method", {}))
            self.optimizer.load_state(parts["optimizer"])
            self.step.load_state(parts["sums"], checkpoint.step)
            if self.method.ensemble and checkpoint.targets_place:
                self.method.ensemble.restore(checkpoint.targets_place.half, checkpoint.epoch, checkpoint.step)
            elif self.method.ensemble:
                self.method.ensemble.load_state(parts["targets"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise RunError(f"the checkpoint does not fit the run ({str(error).splitlines()[0]}).") from None
        torch.set_rng_state(parts["random"]["cpu"])
        if self.device.type == "cuda" and "cuda" in parts["random"]:
            torch.cuda.set_rng_state(parts["random"]["cuda"], self.device)
        self.first_epoch, self.first_step = checkpoint.epoch, checkpoint.step


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
            f"{path} is inside the run's directory, which must be new; name a file elsewhere with --targets."
        )
    targets_file.check_free(path)


def _kernels_usable(config: Config, device: torch.device, warn: Callable[[str], None]) -> bool:
    wanted = resolve_switch(config.training.kernels, device)
    if wanted and device.type != "cuda":
        warn("training.kernels=on has no effect: our kernels run on a GPU.")
    elif wanted and importlib.util.find_spec("triton") is None:
        warn("our kernels need Triton, which is not installed; the plain operations are used.")
        return False
    return wanted and device.type == "cuda"


def _capture_usable(config: Config, device: torch.device, warn: Callable[[str], None]) -> bool:
    wanted = resolve_switch(config.training.capture, device)
    if wanted and device.type != "cuda":
        warn("training.capture=on has no effect: CUDA graphs exist on a GPU.")
    return wanted and device.type == "cuda"


def _fitted_rows(data: Dataset, choice: LabelChoice) -> Rows | None:
    """The rows that preprocessing may be fitted on, neither extra nor held out; None where these are all."""
    if data.extra_rows == 0 and len(choice.validation) == 0:
        return None
    return np.setdiff1d(np.arange(data.main_rows), choice.validation)


def _visited_rows(config: Config, num_rows: int, choice: LabelChoice) -> Rows:
    """The rows training visits: all but those held out, or the labelled ones alone."""
    if config.training.rows == "labelled":
        return np.sort(choice.rows)
    return np.setdiff1d(np.arange(num_rows), choice.validation, assume_unique=True)


def _train_epochs(session: Session, directory: RunDirectory, progress: Progress) -> None:
    epochs, every = session.config.schedule.epochs, session.config.training.checkpoint_every
    directory.truncate_history(session.first_epoch)
    progress.start(
        _title(session, directory),
        epochs=epochs,
        first_epoch=session.first_epoch,
        steps_per_epoch=session.loader.steps_per_epoch,
    )
    _warn_before(session, progress)
    if not directory.has_checkpoint():
        session.save(directory, 0, 0)  # the weights of a module of the user's own are nowhere else
    try:
        with StopRequest() as stop:
            ended = time.perf_counter()
            for epoch in range(session.first_epoch, epochs):
                record = _train_epoch(session, directory, epoch, stop, progress)
                # From the end of the epoch before, its checkpoint included: the seconds of a run add up to its time.
                record["seconds"], ended = time.perf_counter() - ended, time.perf_counter()
                directory.append_history(record)
                if (epoch + 1) % every == 0 or epoch + 1 == epochs:
                    session.save(directory, epoch + 1, 0)
                progress.epoch(record)
    finally:
        progress.close()


def _train_epoch(
    session: Session, directory: RunDirectory, epoch: int, stop: StopRequest, progress: Progress
) -> dict[str, Any]:
    """One visit of the training set; returns the record for the history."""
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
        if stop.requested:
            if session.is_finite():
                session.save(directory, epoch, number)
            raise KeyboardInterrupt(f"stopped in epoch {epoch + 1}; go on with 'selfens resume {directory.path}'.")
        step(rows)
        progress.step(number)
    session.method.end_epoch()
    stopwatch.mark()
    wrong = {"validation_error": _wrong(session, session.validation), "test_error": _wrong(session, session.test)}
    means = step.read()  # the one place where an epoch waits for the device, after all its work has been given out
    _check_finite(session, directory, epoch, means)
    _warn_of_collapse(session, epoch, means, progress)
    images = (session.loader.steps_per_epoch - first) * session.loader.batch_size
    return {
        "epoch": epoch,
        "supervised": means.supervised,
        "unsupervised": means.unsupervised,
        "total": means.total,
        **{name: None if count is None else 100.0 * int(count) / rows for name, (count, rows) in wrong.items()},
        **rates,
        "ensemble_variance": _ensemble_variance(session),
        "images_per_second": images / stopwatch.seconds(),
    }


def _ensemble_variance(session: Session) -> float | None:
    """How much the predictions of the epoch's rows have varied: summed over the classes, averaged over the rows."""
    spread = float(session.method.ensemble.spread) if session.method.ensemble else math.nan
    return spread if math.isfinite(spread) else None


def _wrong(session: Session, rows: tuple[Tensor, Tensor]) -> tuple[Tensor | None, int]:
    """How many of the rows are put into the wrong class, still on the device, and of how many."""
    inputs, labels = rows
    if len(labels) == 0:
        return None, 0
    network = session.method.evaluated(session.network)
    return evaluate.error_count(network, inputs, labels, session.precision), len(labels)


def _check_finite(session: Session, directory: RunDirectory, epoch: int, means: EpochMeans) -> None:
    if math.isfinite(means.total) and session.is_finite():
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
    return (
        f"{session.data_name}: {len(session.visited):,} rows, {extra}{session.num_labelled:,} labelled, "
        f"{len(session.test[1]):,} to test on; run in {directory.path}\n"
        f"{session.method_name}, {session.network_name} ({parameters:,} parameters), {session.device.type} "
        f"{session.precision}; {config.schedule.epochs} epochs, w_max {config.method.weight_max:g}, learning rate "
        f"{config.optimizer.learning_rate:g}, translation {config.augment.translation}, preprocessing {config.data.preprocess}"
        f"{streamed[session.residence]}"
    )


def _warn_before(session: Session, progress: Progress) -> None:
    """Say so when self-ensembling cannot be working."""
    if len(session.test[1]) == 0:
        progress.warn("there are no test rows, so no test error is reported.")
    if not session.method.uses_unlabeled:
        if session.extra_rows:
            progress.warn(
                f"{session.method_name} training learns nothing from the {session.extra_rows:,} extra rows; they only fill "
                "batches."
            )
        return
    if session.num_labelled == len(session.visited):
        progress.warn("every training row is labelled, so there is nothing unlabeled to learn from.")
    if session.weight_max < NEGLIGIBLE_WEIGHT:
        progress.warn(
            f"the unsupervised weight reaches only {session.weight_max:.2g}, so this is supervised training in all but "
            "name; raise method.weight_max or set method.weight_scale=none."
        )


def _warn_of_collapse(session: Session, epoch: int, means: EpochMeans, progress: Progress) -> None:
    alike = means.spread < COLLAPSED_SPREAD and epoch >= session.config.schedule.rampup
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
