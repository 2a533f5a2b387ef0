"""From a config to the parts of a run: data and labels, network, method, optimizer, schedule, loader, step.

If several processes train together (see `distributed.py`), each has the parts for the rows it owns, numbered from 0: their
inputs, labels and targets. A checkpoint is of all rows, so any number of processes can resume from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from selfens import methods, networks
from selfens.config import Config
from selfens.core import optim, schedules
from selfens.core.device import environment, resolve_precision
from selfens.core.views import Views
from selfens.data import prefetch, preprocess
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.labels import LabelChoice, choose_labels
from selfens.data.loader import Loader
from selfens.data.rows import LazyRows, pieces
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError
from selfens.methods.base import Method, TrainingRows, WeightedOptions
from selfens.networks.layers import normalized_layers, synchronize_means
from selfens.runs.run import Run
from selfens.training.distributed import MIN, Group
from selfens.training.evaluate import EvaluatedRows, misclassified
from selfens.training.own import Given, check_ensemble, check_output, check_saved, check_shareable
from selfens.training.step import Step, start_compiler

Rows = NDArray[np.int64]
Rates = Callable[[float], dict[str, float]]
LABELED, WITHOUT_LABEL, HELD_OUT = range(3)


@dataclass(frozen=True)
class Prepared:
    """What is decided before anything is built: the same in all processes, and kept in the run's directory."""

    config: Config
    device: torch.device
    data: Dataset
    labels: LabelChoice
    preprocess: nn.Module


def prepare(config: Config, device: torch.device, data: Dataset, group: Group) -> Prepared:
    """Labels are chosen and preprocessing is fitted, for a new run."""
    if config.data.extra is not None and data.extra_rows == 0:
        raise ConfigError(
            f"data.extra is {config.data.extra}, but a data set of your own was passed; give it its extra rows by "
            "dataset.with_extra(...)."
        )
    if config.data.backbone is not None and data.origin is None:
        raise ConfigError(
            f"data.backbone is {config.data.backbone}, but a data set of your own was passed, which is not of its features; "
            "make them by open_store(config.data, device).with_features(dataset), of selfens.data.features."
        )
    seeds = config.seed
    labels = choose_labels(data, config.data, label_seed=seeds.of("labels"), split_seed=seeds.of("split"))
    fitted_on = None  # all rows
    if config.data.preprocess_rows == "labeled":
        fitted_on = labels.rows
    elif data.extra_rows or len(labels.validation):
        fitted_on = np.setdiff1d(np.arange(data.main_rows), labels.validation)
    kind, sets = config.data.preprocess, {"training": data.inputs, "test": data.test_inputs}
    if kind != "channel":  # which takes no squares of raw values in float32, and makes large ones small
        preprocess.check_range(preprocess.Nothing(), sets, device)
    fitted = preprocess.fit(kind, data.inputs, device, fitted_on)
    if kind == "channel":
        preprocess.check_range(fitted, sets, device)
    group.broadcast([*fitted.state_dict().values()])
    return Prepared(config, device, data, labels, fitted)


def prepare_again(run: Run, device: torch.device, data: Dataset) -> Prepared:
    """Labels and preprocessing are those of a run that is resumed, and inputs stay where they stayed."""
    run.check_dataset(data)
    config = run.config
    if config.training.residence == "auto":  # there may be more or less memory now
        config = config.with_values("training", residence=run.about.get("residence", "device"))
    return Prepared(config, device, data, run.labels, run.directory.preprocess().to(device))


@dataclass(frozen=True)
class OwnRows:
    """The training rows, and which of them this process owns."""

    visited: Rows
    """Of all rows, those that training visits: all but the held-out ones, or only the labeled ones."""
    kinds: NDArray[np.int64]
    """Of all rows: LABELED, WITHOUT_LABEL or HELD_OUT."""
    owned: Rows
    """Those of this process; its parts number them from 0."""
    main_is_labeled: bool
    """Every visited row of the main set has a label."""

    @property
    def num_labeled(self) -> int:
        return int((self.kinds == LABELED).sum())


class Parts:
    """What a run is made of, on the device. Those that have state have `state_dict` and `load_state_dict`.

    residence   where the inputs stay
    rates       from progress in epochs to the values that `step.set` takes
    weight_max  the largest unsupervised weight, scaled
    evaluated   the rows on which the network is evaluated, by the name of the error in the history
    shapes      type and shape of what a checkpoint holds of network and method
    """

    def __init__(self, prepared: Prepared, given: Given, group: Group, warn: Callable[[str], None]) -> None:
        """What may be refused comes first; targets may be a large file, so they come last."""
        config, device, data = prepared.config, prepared.device, prepared.data
        self.prepared, self.given, self.group = prepared, given, group
        if given.network is None:
            copies = 3 if config.optimizer.name == "sgd" else 4  # weights, gradients and moments
            self.network = networks.build(
                config.network, data.input_shape, data.num_classes, copies=copies, device=device
            )
        else:
            self.network = given.network
        on_gpu = device.type == "cuda"
        compile = config.training.compile == "on" or (on_gpu and config.training.compile == "auto")
        # After a network of the user's own, because two threads must not import the same modules at a time.
        compiler = start_compiler() if compile and on_gpu else None
        self.rows = _own_rows(prepared, group)
        self.method = methods.build(config.method) if given.method is None else given.method
        sampler = _sampler(config, self.rows, group, self.method.labeled_share)
        self.residence, self.loader = _loader(prepared, self.rows, sampler, group)
        self.loader.views.check(self.method.views)
        _set_up_network(self.network, prepared, self.loader, group, is_new=given.network is None)
        self.optimizer = _optimizer(config, self.network)
        self.weight_max = _weight_max(self.method, self.rows, split=self.loader.first > 0)
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
        self.rates = _rates(config, self.weight_max)
        self.shapes: dict[str, str] = {}
        self.evaluated = _evaluated_rows(prepared, group)

    @property
    def config(self) -> Config:
        return self.prepared.config

    def visit(self, epoch: int, first_step: int = 0) -> Iterable[Tensor]:
        """The rows of each step of an epoch, each when its inputs and targets are at hand."""
        order = self.loader.order(epoch)[first_step:]
        if self.method.ensemble is None:
            return self.loader.visit(order)
        targets = self.method.ensemble.visit(order[:, self.loader.first :])
        return (rows for _, rows in zip(targets, self.loader.visit(order), strict=True))

    def fit_schedule(self, epochs: int) -> None:
        """Train for another number of epochs, ramps in proportion."""
        config = replace(self.config, schedule=self.config.schedule.scaled(epochs))
        self.prepared = replace(self.prepared, config=config)
        self.rates = _rates(self.config, self.weight_max)

    def errors(self) -> dict[str, float | None]:
        """Of the network as it is, in percent, by the name in the history."""
        network = self.method.evaluated(self.network)
        return {name: misclassified(network, rows, self.precision, self.group) for name, rows in self.evaluated.items()}

    def about(self) -> dict[str, Any]:
        """What run.json records."""
        data, given = self.prepared.data, self.given
        return {
            "data": data.name,
            "fingerprint": data.fingerprint(),
            "test_fingerprint": data.test_fingerprint(),
            "test_files": data.test_files(),
            "rows": data.num_rows,
            "extra": {"source": data.extra_name, "rows": data.extra_rows},
            "residence": self.residence,
            "labeled": self.rows.num_labeled,
            "test_rows": len(data.test_labels),
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "input_type": str(data.inputs.dtype),
            "input_range": data.value_range,
            "unreadable": list(data.unreadable),
            "backbone": data.origin and data.origin.backbone,
            "processes": self.group.size,
            "parameters": self.optimizer.flat.numel(),
            "environment": environment(self.prepared.device, self.precision),
            "own_data": given.dataset is not None,
            "own_network": given.network is not None,
            "own_method": given.method is not None,
            "note": "; ".join(filter(None, (given.note, "epochs that fit into the time limit" * bool(given.deadline)))),
            "own_method_options": None if given.method is None else repr(given.method.options),
            **({} if data.columns is None else {"columns": asdict(data.columns)}),
        }


# Rows


def _own_rows(prepared: Prepared, group: Group) -> OwnRows:
    data, choice = prepared.data, prepared.labels
    visited = choice.visited(data.num_rows, prepared.config.training.rows)
    labels = choice.training_labels(data.num_rows)
    kinds = np.full(data.num_rows, HELD_OUT)
    kinds[visited] = np.where(labels[visited] == UNLABELED, WITHOUT_LABEL, LABELED)
    all_labeled = int((choice.rows < data.main_rows).sum()) == int((visited < data.main_rows).sum())
    return OwnRows(visited, kinds, group.share(kinds), all_labeled)


def _sampler(config: Config, rows: OwnRows, group: Group, labeled_share: float) -> Sampler:
    """The order of this process's rows; all processes take as many steps, of as many rows."""
    training, per_epoch, size = config.training, config.data.extra_per_epoch, group.size
    labeled, seed, first = rows.kinds == LABELED, config.seed.of("training"), training.labeled_per_batch
    if first is None and (per_epoch is not None or training.rows == "labeled"):
        first = 0
    elif first is None:
        fewest = group.all_reduce_int(int(labeled[rows.owned].sum()), MIN)
        first = min(round(labeled_share * training.batch_size), fewest)
    whole = Sampler(
        rows.visited,
        labeled[rows.visited],
        training.batch_size,
        seed,
        per_epoch=per_epoch,
        first=first,
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


def _loader(prepared: Prepared, rows: OwnRows, sampler: Sampler, group: Group) -> tuple[str, Loader]:
    """Where the inputs stay, and the loader of this process's rows."""
    config, device, data = prepared.config, prepared.device, prepared.data
    inputs = data.inputs if group.size == 1 else LazyRows([data.inputs], rows.owned)
    later = config.data.preprocess_after_views and data.are_pixels  # else 0, which views fill with, must be the mean
    residence = prefetch.choose_residence(config.training.residence, inputs, data.name, device, raw=later)
    views = Views(data.input_shape, pixels=range_is_known(config, data), **asdict(config.augment))
    labels = torch.from_numpy(prepared.labels.training_labels(data.num_rows)[rows.owned]).to(device)
    before, after = (None, prepared.preprocess) if later else (prepared.preprocess, None)
    source = prefetch.from_residence(residence, inputs, before, sampler.batch_size, device)
    return residence, Loader(source, labels, sampler, views, after)


def range_is_known(config: Config, data: Dataset) -> bool:
    """Whether the inputs of a view are known to be from 0 to 1: they are pixels, and not yet preprocessed."""
    return (config.data.preprocess_after_views or config.data.preprocess == "none") and data.are_pixels


def _evaluated_rows(prepared: Prepared, group: Group) -> dict[str, EvaluatedRows]:
    data, choice, device = prepared.data, prepared.labels, prepared.device
    own = slice(group.rank, None, group.size)

    def rows(inputs: Any, labels: NDArray[np.int64]) -> EvaluatedRows:
        prepared_inputs = preprocess.apply(prepared.preprocess, inputs, device)
        return EvaluatedRows(prepared_inputs, torch.from_numpy(labels[own]).to(device), len(labels))

    return {
        "validation_error": rows(data.inputs[choice.validation[own]], choice.validation_labels),
        "test_error": rows(data.test_inputs[own], data.test_labels),
    }


# Network, method, optimizer, rates


def _set_up_network(network: nn.Module, prepared: Prepared, loader: Loader, group: Group, *, is_new: bool) -> None:
    """Bring the network to the device, with initial gains from a first batch if it is new, the same in all processes."""
    config, device = prepared.config, prepared.device
    network.to(device)
    if is_new or not network.training:  # one that was passed may have parts frozen in evaluation mode
        network.train()
    for rows in loader.visit(loader.order(0)[:1]):
        if is_new:  # one that was passed may be trained already
            networks.calibrate(network, loader.batch(rows, ("weak",)).views[0])
        if not is_new or ":" in config.network.name:
            check_output(network, loader.batch(rows, ("none",)).views[0], prepared.data.num_classes)
    group.broadcast([*network.state_dict().values()])
    if config.training.means == "joint" and not any(normalized_layers(network)):
        raise ConfigError(
            "training.means is joint, but the network has no layers of mean-only batch normalization, whose means are all that "
            "processes can share; leave it out, or set network.normalization=mean if the network has that."
        )
    if config.training.means == "joint" and group.size > 1:
        synchronize_means(network, group.mean_with_gradient)


def _optimizer(config: Config, network: nn.Module) -> optim.Optimizer:
    options = config.optimizer
    common: dict[str, Any] = {"weight_decay": options.weight_decay, "multipliers": options.learning_rate_multipliers}
    if options.name == "sgd":
        return optim.Sgd(network, momentum=options.momentum, **common)
    kind = optim.Adam if options.name == "adam" else optim.AdamW
    return kind(network, beta2=options.beta2, epsilon=options.epsilon, **common)


def _weight_max(method: Method, rows: OwnRows, *, split: bool) -> float:
    """w_max M/N, without the M/N if the method's options say so; N counts extra rows, drawn or not."""
    options = method.options
    if not method.uses_unlabeled or not isinstance(options, WeightedOptions):
        return 0.0
    unscaled = options.weight_scale == "none" or (options.weight_scale == "original" and rows.main_is_labeled)
    if unscaled or split:
        return options.weight_max
    return options.weight_max * rows.num_labeled / len(rows.visited)


def _rates(config: Config, weight_max: float) -> Rates:
    """What changes with time, as one function of progress in epochs."""
    schedule, optimizer = config.schedule, config.optimizer
    found: dict[str, schedules.Schedule] = {}
    if schedule.name == "paper":
        up = schedules.gaussian_rampup(schedule.rampup, schedule.rampup_constant)
        down = schedules.gaussian_rampdown(schedule.epochs, schedule.rampdown, schedule.rampdown_constant)
        first, last = optimizer.beta1, optimizer.beta1_end if optimizer.name == "adam" else optimizer.beta1
        found["learning_rate"] = schedules.per_epoch(lambda epoch: optimizer.learning_rate * up(epoch) * down(epoch))
        found["beta1"] = schedules.per_epoch(lambda epoch: first * down(epoch) + last * (1 - down(epoch)))
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
    method: Method, network: nn.Module, prepared: Prepared, rows: OwnRows, loader: Loader, group: Group
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
    check_saved(method)
    if group.size > 1:
        check_shareable(method, {data.num_rows, own.num_rows} - {data.num_classes}, group.size)
    group.broadcast([*method.state_dict().values()])  # what it drew itself is different in each process
    check_ensemble(method, own)


def _all_inputs(prepared: Prepared, rows: OwnRows) -> Iterable[Tensor]:
    for piece in pieces(prepared.data.inputs, preprocess.CHUNK, rows.owned):
        yield preprocess.transform(prepared.preprocess, torch.from_numpy(piece).to(prepared.device))
