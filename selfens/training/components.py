"""The components of a run: network, method, optimizer, schedule, loader, step.

If several processes train together (see `distributed.py`), each has the components for the rows it owns, numbered from 0: their
inputs, labels and targets. A checkpoint is of all rows, so any number of processes can resume from it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens import networks
from selfens.config import Config
from selfens.core import optim, schedules
from selfens.core.device import environment, resolve_precision
from selfens.core.views import Views
from selfens.data import prefetch, preprocess
from selfens.data.dataset import UNLABELED
from selfens.data.loader import Loader
from selfens.data.rows import LazyRows, Rows, pieces
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.methods.base import Method, TrainingRows, WeightedOptions
from selfens.runs.info import RunInfo
from selfens.training.distributed import MIN, Group
from selfens.training.evaluate import EvaluatedRows, misclassified
from selfens.training.overrides import Overrides, check_output, check_shareable, check_state
from selfens.training.prepare import Prepared
from selfens.training.step import Step, start_compiler

LABELED, WITHOUT_LABEL, HELD_OUT = range(3)


@dataclass(frozen=True)
class RowShare:
    """The training rows, and which of them this process owns."""

    visited: Rows
    """Of all rows, those that training visits: all but the held-out ones, or only the labeled ones."""
    kinds: NDArray[np.int64]
    """Of all rows: LABELED, WITHOUT_LABEL or HELD_OUT."""
    owned: Rows
    """Those of this process; its components number them from 0."""
    main_is_labeled: bool
    """Every visited row of the main set has a label."""

    @property
    def num_labeled(self) -> int:
        return int((self.kinds == LABELED).sum())


class Components:
    """What a run is made of, on the device. Those that have state have `state_dict` and `load_state_dict`."""

    def __init__(self, prepared: Prepared, overrides: Overrides, group: Group, warn: Callable[[str], None]) -> None:
        """Validate first; allocate the (possibly huge) targets last."""
        config, device, data = prepared.config, prepared.device, prepared.data
        self.prepared, self.overrides, self.group = prepared, overrides, group
        if overrides.network is None:
            copies = 3 if config.optimizer.name == "sgd" else 4  # weights, gradients and moments
            self.network = networks.build(
                config.network, data.input_shape, data.num_classes, copies=copies, device=device
            )
        else:
            self.network = overrides.network
        on_gpu = device.type == "cuda"
        compile = config.training.compile == "on" or (on_gpu and config.training.compile == "auto")
        # After a user's own network was imported, because two threads must not import the same modules at a time.
        compiler = start_compiler() if compile and on_gpu else None
        self.rows = _share_rows(prepared, group)
        self.method: Method = METHODS.build(config.method) if overrides.method is None else overrides.method
        sampler = _sampler(config, self.rows, group, self.method.labeled_share)
        self.residence, self.loader = _loader(prepared, self.rows, sampler, group, self.method)
        """Where the inputs are kept, and the loader of this process's rows."""
        _set_up_network(self.network, prepared, self.loader, group, is_new=overrides.network is None)
        self.optimizer = _optimizer(config, self.network)
        self.weight_max = _weight_max(self.method, self.rows, split=self.loader.num_labeled > 0)
        """The largest unsupervised weight, scaled."""
        _set_up_method(self.method, self.network, prepared, self.rows, self.loader, group)
        if compiler:
            compiler.join()
        self.precision = resolve_precision(config.training.precision, device)
        for name in ("capture", "kernels"):
            if getattr(config.training, name) == "on" and not on_gpu:
                warn(f"training.{name}=on has no effect without a GPU.")
        self.step = Step(
            network=self.network,
            method=self.method,
            optimizer=self.optimizer,
            loader=self.loader,
            group=group,
            precision=self.precision,
            compile=compile,
            kernels=on_gpu and config.training.kernels != "off",
            capture=on_gpu and config.training.capture != "off",
            warn=warn,
        )
        self.rates = make_rates(config, self.weight_max)
        """Returns what `step.set` takes, at a progress in epochs."""
        self.evaluated = _evaluated_rows(prepared, group)
        """The rows on which the network is evaluated, by the name of the error in the history."""

    @property
    def config(self) -> Config:
        return self.prepared.config

    def visit(self, epoch: int, first_step: int = 0) -> Iterable[Tensor]:
        """Yield the rows of each step of an epoch, each when its inputs are available."""
        return self.loader.visit(self.loader.order(epoch)[first_step:])

    def set_epochs(self, epochs: int) -> None:
        """Train for another number of epochs, ramps in proportion."""
        self.prepared = replace(self.prepared, config=self.config.with_epochs(epochs))
        self.rates = make_rates(self.config, self.weight_max)

    def errors(self) -> dict[str, float | None]:
        """Return the current errors in percent, by their name in the history."""
        network = self.method.evaluated(self.network)
        return {name: misclassified(network, rows, self.precision, self.group) for name, rows in self.evaluated.items()}

    def info(self) -> RunInfo:
        """Return what run.json records."""
        data, overrides = self.prepared.data, self.overrides
        notes = (overrides.note, "epochs that fit into the time limit" * bool(overrides.deadline))
        return RunInfo(
            data=data.dataset.name,
            fingerprint=data.fingerprint,
            test_fingerprint=data.dataset.test_fingerprint(),
            rows=data.num_rows,
            extra_rows=data.dataset.extra_rows,
            extra=data.dataset.extra_name,
            labeled=self.rows.num_labeled,
            test_rows=len(data.test_labels),
            classes=data.classes,
            input_shape=data.input_shape,
            encoder=data.encoder.to_dict(),
            skipped=data.dataset.skipped,
            residence=self.residence,
            processes=self.group.size,
            parameters=self.optimizer.flat.numel(),
            environment=environment(self.prepared.device, self.precision),
            custom_network=overrides.network is not None,
            custom_method=overrides.method is not None,
            custom_options="" if overrides.method is None else repr(overrides.method.options),
            note="; ".join(filter(None, notes)),
        )


# Rows


def _share_rows(prepared: Prepared, group: Group) -> RowShare:
    data, labels = prepared.data, prepared.labels
    visited = labels.visited(data.num_rows, prepared.config.training.rows)
    training_labels = labels.training_labels(data.num_rows)
    kinds = np.full(data.num_rows, HELD_OUT)
    kinds[visited] = np.where(training_labels[visited] == UNLABELED, WITHOUT_LABEL, LABELED)
    all_labeled = int((labels.rows < data.num_main).sum()) == int((visited < data.num_main).sum())
    return RowShare(visited, kinds, group.share(kinds), all_labeled)


def _sampler(config: Config, rows: RowShare, group: Group, labeled_share: float) -> Sampler:
    """Return the order of this process's rows; all processes take the same number of steps and rows."""
    training, per_epoch, size = config.training, config.training.unlabeled_per_epoch, group.size
    labeled, seed, num_labeled = rows.kinds == LABELED, config.seed.of("training"), training.labeled_per_batch
    if num_labeled is None and (per_epoch is not None or training.rows == "labeled"):
        num_labeled = 0
    elif num_labeled is None:
        fewest = group.all_reduce_int(int(labeled[rows.owned].sum()), MIN)
        num_labeled = min(round(labeled_share * training.batch_size), fewest)
    whole = Sampler(
        rows.visited,
        labeled[rows.visited],
        training.batch_size,
        seed,
        per_epoch=per_epoch,
        num_labeled=num_labeled,
        min_steps=training.min_steps_per_epoch,
    )
    if size == 1:
        return whole
    if (fewest := min(len(rows.visited), per_epoch or len(rows.visited))) < size:
        raise ConfigError(f"{size} processes have {fewest} rows an epoch to share; use fewer processes.")
    own, each = np.flatnonzero(rows.kinds[rows.owned] != HELD_OUT), per_epoch and per_epoch // size
    sampler = replace(whole, visited=own, labeled=labeled[rows.owned[own]], per_epoch=each, process=group.rank)
    sampler = replace(sampler, batch_size=group.all_reduce_int(sampler.batch_size, MIN))
    return replace(sampler, max_steps=group.all_reduce_int(sampler.steps, MIN))


def _loader(prepared: Prepared, rows: RowShare, sampler: Sampler, group: Group, method: Method) -> tuple[str, Loader]:
    """Return where the inputs are kept, and the loader of this process's rows."""
    config, device, data = prepared.config, prepared.device, prepared.data
    inputs = data.inputs if group.size == 1 else LazyRows([data.inputs], rows.owned)
    Views(data.input_shape).check(method.views)
    views = Views(data.input_shape, config.views, pixels=prepared.views_see_pixels(method.views))
    labels = torch.from_numpy(prepared.labels.training_labels(data.num_rows)[rows.owned]).to(device)
    later = prepared.preprocesses_views(method.views)
    before, after = (None, prepared.preprocess) if later else (prepared.preprocess, None)
    residence = prefetch.choose_residence(config.training.residence, inputs, data.dataset.name, device, raw=later)
    source = prefetch.from_residence(residence, inputs, before, sampler.batch_size, device)
    return residence, Loader(source, labels, sampler, views, after)


def _evaluated_rows(prepared: Prepared, group: Group) -> dict[str, EvaluatedRows]:
    data, labels, device = prepared.data, prepared.labels, prepared.device
    own = slice(group.rank, None, group.size)
    sets = {
        "validation_error": (data.inputs[labels.validation[own]], labels.validation_labels),
        "test_error": (data.test_inputs[own], data.test_labels),
    }
    return {
        name: EvaluatedRows(
            preprocess.apply(prepared.preprocess, inputs, device),
            torch.from_numpy(all_labels[own]).to(device),
            len(all_labels),
        )
        for name, (inputs, all_labels) in sets.items()
    }


# Network, method, optimizer, rates


def _set_up_network(network: nn.Module, prepared: Prepared, loader: Loader, group: Group, *, is_new: bool) -> None:
    """Move the network to the device, the same in all processes; a new one gets initial gains from a first batch."""
    config, device = prepared.config, prepared.device
    network.to(device)
    if is_new or not network.training:  # a passed network may have parts frozen in evaluation mode
        network.train()
    for rows in loader.visit(loader.order(0)[:1]):
        if is_new:  # a passed network may be trained already
            networks.calibrate(network, loader.batch(rows, ("weak",)).views[0])
        if not is_new or networks.is_factory(config.network.name):
            check_output(network, loader.batch(rows, ("none",)).views[0], prepared.data.num_classes)
    group.broadcast([*network.state_dict().values()])


def _optimizer(config: Config, network: nn.Module) -> optim.Optimizer:
    options = config.optimizer
    common: dict[str, Any] = {"weight_decay": options.weight_decay, "multipliers": options.learning_rate_multipliers}
    if options.name == "sgd":
        return optim.Sgd(network, momentum=options.momentum, **common)
    kind = optim.Adam if options.name == "adam" else optim.AdamW
    return kind(network, beta2=options.beta2, epsilon=options.epsilon, **common)


def _weight_max(method: Method, rows: RowShare, *, split: bool) -> float:
    """Return w_max M/N, without the M/N if the options say so; N counts extra rows, drawn or not."""
    options = method.options
    if not method.uses_unlabeled or not isinstance(options, WeightedOptions):
        return 0.0
    unscaled = options.weight_scale == "none" or (options.weight_scale == "original" and rows.main_is_labeled)
    if unscaled or split:
        return options.weight_max
    return options.weight_max * rows.num_labeled / len(rows.visited)


def make_rates(config: Config, weight_max: float) -> Callable[[float], dict[str, float]]:
    """Return a function from progress in epochs to everything that changes with time."""
    schedule, optimizer = config.schedule, config.optimizer
    found: dict[str, schedules.Schedule] = {}
    if schedule.name == "paper":
        up = schedules.gaussian_rampup(schedule.rampup, schedule.rampup_constant)
        down = schedules.gaussian_rampdown(schedule.epochs, schedule.rampdown, schedule.rampdown_constant)
        start, end = optimizer.beta1, optimizer.beta1_end if optimizer.name == "adam" else optimizer.beta1
        found["learning_rate"] = schedules.per_epoch(lambda epoch: optimizer.learning_rate * up(epoch) * down(epoch))
        found["beta1"] = schedules.per_epoch(lambda epoch: start * down(epoch) + end * (1 - down(epoch)))
    else:
        cosine = schedules.warmup_cosine(schedule.epochs, schedule.warmup_epochs)
        found["learning_rate"] = lambda epoch: optimizer.learning_rate * cosine(epoch)
        found["beta1"] = lambda epoch: optimizer.beta1
    if optimizer.name == "sgd":
        del found["beta1"]
    found["weight"] = schedules.unsupervised_weight(
        weight_max, schedule.weight_rampup, schedule.rampup_constant, from_start=schedule.weight_rampup_epochs == 0
    )
    return lambda progress: {name: value(progress) for name, value in found.items()}


def _set_up_method(
    method: Method, network: nn.Module, prepared: Prepared, rows: RowShare, loader: Loader, group: Group
) -> None:
    """Let the method build what it remembers, for this process's rows."""
    data, labels = prepared.data, prepared.labels.training_labels(prepared.data.num_rows)
    counts = np.bincount(labels[rows.kinds == LABELED], minlength=data.num_classes)
    own = TrainingRows(
        num_rows=len(rows.owned),
        classes=data.classes,
        labels=loader.labels,
        class_counts=torch.from_numpy(counts).float().to(prepared.device),
        device=prepared.device,
        inputs=partial(_all_inputs, prepared, rows),
    )
    method.setup(network, own)
    check_state(method, own)
    if group.size > 1:
        check_shareable(method, {data.num_rows, own.num_rows} - {data.num_classes}, group.size)
    group.broadcast([*method.state_dict().values()])  # each process drew different values
    if method.teacher is not None:
        group.broadcast([*method.teacher.network.state_dict().values()])


def _all_inputs(prepared: Prepared, rows: RowShare) -> Iterable[Tensor]:
    for piece in pieces(prepared.data.inputs, preprocess.CHUNK, rows.owned):
        yield preprocess.transform(prepared.preprocess, torch.from_numpy(piece).to(prepared.device))
