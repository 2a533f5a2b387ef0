"""train(): from a config to a run directory. Read this file and `step.py`, and you know what a run does.

prepare   load the data, choose labels, encode, preprocess (`prepare.py`); or take them from the run to resume
build     network, method, optimizer, schedule, loader, step (`components.py`), or restore them from the checkpoint
epochs    steps, evaluation, history, checkpoint
"""

import math
import shutil
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from selfens.config import Config
from selfens.core import launcher
from selfens.core.device import TORCH_GLOBALS_LOCK, resolve_device, torch_settings
from selfens.core.randomness import PROCESS, stream
from selfens.data.dataset import Dataset
from selfens.data.sources import SOURCES
from selfens.errors import ConfigError, DivergedError, RunError, check_type
from selfens.methods.base import Method
from selfens.runs.directory import RunDirectory, check_free
from selfens.runs.run import Run
from selfens.settings import seconds
from selfens.training import distributed, finetune, notices
from selfens.training.checkpoint import Checkpointer, average_over_processes
from selfens.training.components import Components
from selfens.training.interrupt import StopRequest
from selfens.training.limit import fit_schedule
from selfens.training.overrides import Overrides, check_passed_again
from selfens.training.prepare import prepare, prepare_again
from selfens.training.progress import Progress, WarningsOnly

SECONDS_BETWEEN_CHECKPOINTS = 10  # with one process
STEPS_BETWEEN_STOP_CHECKS = 8  # with several processes, which have to ask each other


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
    prior: ArrayLike | str | Path | None = None,
) -> Run:
    """Train, and write everything to a run directory.

    Parameters
    ----------
    config
        All settings, such as `presets.get("digits")`.
    run_dir
        The directory of the run, which must be new or empty.
    dataset
        Replaces `config.source`.
    network
        Replaces `config.network`: any module from inputs to logits.
    method
        Replaces `config.method`: any `Method`.
    progress
        A display; by default only warnings are shown.
    time_limit
        Seconds, or text such as "5m", within which this function returns. The number of epochs that fit replaces the
        config's, and ramps scale with it.
    note
        A line on how the config was chosen; it is shown and saved in run.json.
    prior
        What another model says about the training rows: [rows, classes] probabilities, NaN for rows it says nothing about, a
        label for each row, or a file of these. A method that keeps targets begins with it. The run keeps it.

    Returns
    -------
    Run
        The finished run, ready to predict.
    """
    deadline = None if time_limit is None else time.perf_counter() + seconds("time_limit", time_limit)
    check_type("config", config, Config, "a Config, such as presets.get('digits')")
    overrides, path = Overrides(dataset, network, method, deadline, note, prior), Path(run_dir)
    overrides.check(config)
    if dataset is not None:
        config = replace(config, source=SOURCES.options("memory", dataset=dataset.name))
    if launcher.restarts() and (path / "config.json").is_file():
        found = RunDirectory(path).config()
        asked = replace(config, source=found.source) if config.source.is_completed_by(found.source) else config
        if (asked if deadline is None else asked.with_epochs(found.schedule.epochs)) == found:
            # The caller's config names the same code as the run's, so it can be trusted.
            return resume(path, dataset=dataset, network=network, method=method, progress=progress, trust_code=True)
    return _run(path, config, overrides, progress)


def resume(
    run_dir: str | Path,
    *,
    dataset: Dataset | None = None,
    network: nn.Module | None = None,
    method: Method | None = None,
    progress: Progress | None = None,
    trust_code: bool = False,
) -> Run:
    """Continue a run from its last checkpoint.

    Parameters
    ----------
    run_dir
        The directory of the run.
    dataset, network, method
        Must be passed again if they were passed to `train`.
    progress
        A display; by default only warnings are shown.
    trust_code
        Import the code that the run's config names for its network or backbone (module:factory).

    Returns
    -------
    Run
        The finished run, ready to predict.
    """
    run, overrides = Run(run_dir, network=network, trust_code=trust_code), Overrides(dataset, network, method)
    run.directory.check_resumable()
    overrides.check(run.config)
    check_passed_again(run, overrides)
    run.check_code()
    return _run(run.path, run.config, overrides, progress, resumed=run)


def _run(
    path: Path, config: Config, overrides: Overrides, progress: Progress | None, resumed: Run | None = None
) -> Run:
    """Train a new or resumed run. A resumed run is locked before anything is read, a new one once it exists."""
    device, directory = resolve_device(config.training.device), RunDirectory(path)
    with ExitStack() as stack:
        stack.enter_context(TORCH_GLOBALS_LOCK)
        group = stack.enter_context(distributed.process_group(device))
        show = (progress or WarningsOnly()) if group.is_first else Progress()
        show.deadline = overrides.deadline
        if resumed and group.is_first:
            stack.enter_context(directory.locked())
        if not group.is_first:
            group.barrier()  # the first process goes ahead, so that the others find what it has downloaded
        if resumed:
            prepared = prepare_again(resumed, device, overrides.dataset)
        else:
            if group.is_first:
                check_free(path)
            prepared = prepare(config, device, overrides.dataset, overrides.prior, progress=show.has_bars)
        if group.is_first:
            group.barrier()
        group.broadcast([*prepared.preprocess.state_dict().values()])
        threads, seed = config.training.threads, config.seed.of("training")
        if resumed and threads is None and resumed.info.processes == group.size:
            threads = int(resumed.info.environment["threads"])  # the order of summation changes the last bits
        if not group.is_first:
            seed = int(stream(seed, PROCESS, group.rank).integers(2**62))
        stack.enter_context(torch_settings(config.training.precision, threads, device, seed))
        if finetune.is_finetuned(config) and group.size > 1:
            raise ConfigError("a backbone is fine-tuned by one process; start it without torchrun.")
        components = Components(prepared, overrides, group, show.warn)
        checkpointer = Checkpointer(components)
        start = (0, 0, 0.0)  # epoch, step, seconds
        limit: float | None = None  # seconds for the first stage of fine-tuning
        if resumed:
            notices.warn_about_changes(resumed.info.environment, components, show)
            if directory.has_checkpoint():
                start = checkpointer.load(directory.load_checkpoint())
        else:
            if overrides.deadline is not None:
                left = overrides.deadline - time.perf_counter()
                first = finetune.LIMIT_SHARE * left if finetune.is_finetuned(config) else 0.0
                fit_schedule(components, checkpointer, overrides.deadline - first)
                limit = first or None
            _create(path, components)
            notices.warn_about_data(components, directory, show)
            if group.is_first:
                stack.enter_context(directory.locked())
        if finetune.is_finetuned(config):
            finetune.begin(components, directory, show, train, resume, limit)
            show.deadline = overrides.deadline
        _train_epochs(components, checkpointer, directory, show, start)
    # Trusted, because its code has just run.
    return Run(path, network=overrides.network, device=device.type, data=prepared.data, trust_code=True)


def _create(path: Path, components: Components) -> None:
    """Create the directory of a new run. The first process writes it; all must see it, because all read it later."""
    group, prepared = components.group, components.prepared
    if group.is_first:
        parts = (prepared.labels, prepared.preprocess, components.info(), prepared.data.dataset.train_prior)
        RunDirectory.create(path, components.config, *parts)
    group.barrier()
    if group.any(not (path / "config.json").is_file()):
        if group.is_first:
            shutil.rmtree(path)
        raise RunError(f"{path.absolute()} is not seen by all processes; give the path of a folder that they share.")


def _train_epochs(
    components: Components,
    checkpointer: Checkpointer,
    directory: RunDirectory,
    progress: Progress,
    start: tuple[int, int, float],
) -> None:
    """Train the remaining epochs. The seconds of an epoch count from the end of the previous one, so they add up."""
    first_epoch, first_step, seconds_before = start
    epochs, steps = components.config.schedule.epochs, components.loader.steps_per_epoch
    if components.group.is_first:
        directory.truncate_history(first_epoch)
    progress.start(notices.title(components, directory), epochs=epochs, first_epoch=first_epoch, steps_per_epoch=steps)
    with closing(progress), StopRequest() as stop:
        notices.warn_before(components, progress)
        if not directory.has_checkpoint():
            checkpointer.save(directory, 0, 0)  # the only copy of the weights of a passed network
        last_save = time.perf_counter()
        epoch_start = last_save - seconds_before
        for epoch in range(first_epoch, epochs):
            steps_start = time.perf_counter()
            for number, rows in enumerate(components.visit(epoch, first_step), start=first_step):
                if _stop_requested(components, stop, number):
                    if _is_finite(components, float(components.step.sums[-1])):
                        spent = time.perf_counter() - epoch_start if number else 0.0
                        checkpointer.save(directory, epoch, number, spent)
                    size = components.group.size
                    again = "" if size == 1 else f" by torchrun in {size} processes, as before"
                    raise KeyboardInterrupt(f"stopped in epoch {epoch + 1}; {directory.path} can be resumed{again}.")
                components.step.set(**components.rates(epoch + number / steps))
                components.step(rows)
                progress.step(epoch, number)
            components.method.end_epoch()
            average_over_processes(components)
            losses = {name: float(mean) for name, mean in components.step.take_means().items()}  # waits for the device
            images = (steps - first_step) * components.loader.batch_size * components.group.size
            images_per_second = images / (time.perf_counter() - steps_start)
            first_step = 0
            if not _is_finite(components, losses["total"]):
                raise _diverged(components, directory, epoch)
            done, is_last = epoch + 1, epoch == epochs - 1
            is_evaluated = is_last or done % components.config.training.evaluate_every == 0
            record: dict[str, Any] = {
                "epoch": epoch,
                **losses,
                **(components.errors() if is_evaluated else dict.fromkeys(components.evaluated)),
                **components.rates(epoch),
                "ensemble_variance": _ensemble_variance(components),
                "images_per_second": images_per_second,
                "seconds": time.perf_counter() - epoch_start,
            }
            epoch_start += record["seconds"]
            if components.group.is_first:
                directory.append_history(record)
            if is_last or _is_checkpoint_due(components, done, since_last=epoch_start - last_save):
                checkpointer.save(directory, done, 0)
                last_save = time.perf_counter()
            progress.epoch(record)
            if is_last:
                notices.warn_after(components, losses, progress)


def _ensemble_variance(components: Components) -> float | None:
    ensemble = components.method.ensemble
    spread = math.nan if ensemble is None else float(components.group.mean(ensemble.spread))
    return spread if math.isfinite(spread) else None


def _diverged(components: Components, directory: RunDirectory, epoch: int) -> DivergedError:
    good, step = directory.position()
    where = "no checkpoint was reached"
    if good or step:
        steps = f" and {step} steps" if step else ""
        where = f"the last good checkpoint, after epoch {good}{steps}, is in {directory.path}"
    rampup = 2 * components.config.schedule.rampup
    return DivergedError(
        f"the loss stopped being finite in epoch {epoch + 1}; {where}. Try a lower optimizer.learning_rate, a slower ramp-up "
        f"(schedule.rampup_epochs={rampup:g}; with the cosine schedule warmup_epochs) or, with adam and adamw, "
        "optimizer.beta2=0.99."
    )


def _is_finite(components: Components, loss: float) -> bool:
    """Return True if the loss and the weights are finite in all processes."""
    here = math.isfinite(loss) and bool(components.optimizer.flat.isfinite().all())
    return bool(components.group.min(here))


def _is_checkpoint_due(components: Components, done: int, since_last: float) -> bool:
    """Return True every `checkpoint_every` epochs; by default every ten seconds, or every epoch with several processes."""
    every = components.config.training.checkpoint_every
    if every is None and components.group.size == 1:
        return since_last >= SECONDS_BETWEEN_CHECKPOINTS
    return done % (every or 1) == 0


def _stop_requested(components: Components, stop: StopRequest, step: int) -> bool:
    """Return True if a stop was requested. Several processes ask each other every few steps, so that all stop together."""
    if components.group.size == 1:
        return stop.requested
    return step % STEPS_BETWEEN_STOP_CHECKS == 0 and components.group.any(stop.requested)
