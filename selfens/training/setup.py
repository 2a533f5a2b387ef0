"""From a config to the parts of a run: data and labels, network, method, optimizer, schedule, loader, step.

If several processes train together (see `distributed.py`), each has the parts for the rows it owns, numbered from 0: their
inputs, labels and targets. A checkpoint is of all rows, so any number of processes can resume from it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from selfens import methods, networks
from selfens.config import Config
from selfens.core import optim, schedules
from selfens.core.device import environment, resolve_precision, resolve_switch
from selfens.core.evaluate import evaluation_mode
from selfens.core.teacher import EmaTeacher
from selfens.core.views import Views
from selfens.data import prefetch, preprocess
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.labels import LabelChoice
from selfens.data.loader import Loader
from selfens.data.rows import LazyRows
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError, check_kind
from selfens.methods.base import Method, Options, TrainingRows, WeightedOptions
from selfens.networks.layers import synchronize_means
from selfens.training.distributed import MIN, Group
from selfens.training.evaluate import EvaluatedRows
from selfens.training.step import Step, start_compiler

Rows = NDArray[np.int64]
Rates = Callable[[float], dict[str, float]]
LABELLED, WITHOUT_LABEL, HELD_OUT = range(3)
RECORD_FIELDS = {"epoch", "total", "spread", "seconds", "images_per_second", "weight", "test_error", "validation_error"}


class Given(NamedTuple):
    """What the caller passes instead of naming it in the config."""

    dataset: Dataset | None = None
    network: nn.Module | None = None
    method: Method | None = None

    def check(self) -> None:
        """Refuse what is of another kind, such as the name or the class of a method."""
        expected: list[tuple[str, Any, type, str]] = [
            ("dataset", self.dataset, Dataset, "a Dataset, such as Dataset.from_npz(path) reads"),
            ("network", self.network, nn.Module, "a module from inputs to logits"),
            ("method", self.method, Method, "an instance of a Method, such as selfens.methods.Pi()"),
        ]
        for name, part, kind, words in expected:
            if part is not None:
                check_kind(name, part, kind, words)
        if self.method is not None:
            _check_method(self.method)

    def about(self) -> dict[str, bool]:
        """For run.json: which parts must be passed again."""
        return {
            "own_data": self.dataset is not None,
            "own_network": self.network is not None,
            "own_method": self.method is not None,
        }


def _check_method(method: Method) -> None:
    """Refuse a method of the user's own that is not made as `Method` says."""
    check_kind("method.options", getattr(method, "options", None), Options, "an instance of its Options")
    for name in ("views", "parts"):
        words = getattr(method, name)
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words) or not words:
            raise ConfigError(f"{type(method).__name__}.{name} is {words!r}; expected a tuple of names.")
    if taken := RECORD_FIELDS & {*method.parts}:
        raise ConfigError(
            f"{type(method).__name__}.parts has '{min(taken)}', which the history uses itself; choose another name."
        )


@dataclass(frozen=True)
class Prepared:
    """What is decided before anything is built: the same in all processes, and kept in the run's directory."""

    config: Config
    device: torch.device
    data: Dataset
    labels: LabelChoice
    preprocess: nn.Module


@dataclass(frozen=True)
class OwnRows:
    """The training rows, and which of them this process owns."""

    visited: Rows
    """Of all rows, those that training visits: all but the held-out ones, or only the labelled ones."""
    kinds: NDArray[np.int64]
    """Of all rows: LABELLED, WITHOUT_LABEL or HELD_OUT."""
    owned: Rows
    """Those of this process; its parts number them from 0."""
    main_is_labelled: bool
    """Every visited row of the main set has a label."""

    @property
    def num_labelled(self) -> int:
        return int((self.kinds == LABELLED).sum())


@dataclass
class Parts:
    """What a run is made of. Those that have state have `state_dict` and `load_state_dict`."""

    prepared: Prepared
    given: Given
    group: Group
    rows: OwnRows
    residence: str
    precision: str
    network: nn.Module
    method: Method
    optimizer: optim.Optimizer
    loader: Loader
    step: Step
    rates: Rates
    """From progress in epochs to the values that `step.set` takes."""
    weight_max: float
    """The largest unsupervised weight, scaled."""
    evaluated: dict[str, EvaluatedRows]
    """By the name of the error in the history."""

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

    def check_targets_new(self) -> None:
        """Refuse a file for the targets that a checkpoint of another run relies on."""
        if self.method.ensemble is not None:
            _ = self.method.ensemble.arrays

    def close(self) -> None:
        """Let go of targets in a file."""
        if self.method.ensemble is not None:
            self.method.ensemble.close()

    def about(self) -> dict[str, Any]:
        """What run.json records."""
        data = self.prepared.data
        return {
            "data": data.name,
            "fingerprint": data.fingerprint(),
            "test_fingerprint": data.test_fingerprint(),
            "rows": data.num_rows,
            "extra": {"source": data.extra_name, "rows": data.extra_rows},
            "residence": self.residence,
            "labelled": self.rows.num_labelled,
            "test_rows": len(data.test_labels),
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "input_type": str(data.inputs.dtype),
            "unreadable": list(data.unreadable),
            "processes": self.group.size,
            "parameters": self.optimizer.flat.numel(),
            "environment": environment(self.prepared.device, self.precision),
            **self.given.about(),
        }


def build(prepared: Prepared, given: Given, group: Group, warn: Callable[[str], None]) -> Parts:
    """All parts, on the device. What may be refused comes first; targets may be a large file, so they come last."""
    config, device, data = prepared.config, prepared.device, prepared.data
    network = given.network
    if network is None:
        network = networks.build(config.network, data.input_shape, data.num_classes)
    compiled = resolve_switch(config.training.compile, device)
    # After a network of the user's own, because two threads must not import the same modules at a time.
    compiler = start_compiler() if compiled and device.type == "cuda" else None
    rows = _own_rows(prepared, group)
    sampler = _sampler(config, rows, group)
    residence, loader = _loader(prepared, rows, sampler, group)
    method = methods.build(config.method) if given.method is None else given.method
    _check_options_used(config, given)
    loader.views.check(method.views)
    _set_up_network(network, prepared, loader, group, warn, is_new=given.network is None)
    optimizer = _optimizer(config, network)
    if given.network is not None or ":" in config.network.name:
        _check_output(network, loader, data.num_classes)
    weight_max = _weight_max(method, config, rows)
    _set_up_method(method, network, prepared, rows, loader, group)
    if compiler:
        compiler.join()
    precision = resolve_precision(config.training.precision, device)
    step = Step(
        network=network,
        method=method,
        optimizer=optimizer,
        loader=loader,
        group=group,
        num_classes=data.num_classes,
        precision=precision,
        compile=compiled,
        capture=_capture_usable(config, device, warn),
        warn=warn,
    )
    return Parts(
        prepared=prepared,
        given=given,
        group=group,
        rows=rows,
        residence=residence,
        precision=precision,
        network=network,
        method=method,
        optimizer=optimizer,
        loader=loader,
        step=step,
        rates=_rates(config, weight_max),
        weight_max=weight_max,
        evaluated=_evaluated_rows(prepared, group),
    )


# Rows


def _own_rows(prepared: Prepared, group: Group) -> OwnRows:
    data, choice = prepared.data, prepared.labels
    if prepared.config.training.rows == "labelled":
        visited = np.sort(choice.rows)
    else:
        visited = np.setdiff1d(np.arange(data.num_rows), choice.validation, assume_unique=True)
    labels = choice.training_labels(data.num_rows)
    kinds = np.full(data.num_rows, HELD_OUT)
    kinds[visited] = np.where(labels[visited] == UNLABELED, WITHOUT_LABEL, LABELLED)
    all_labelled = int((choice.rows < data.main_rows).sum()) == int((visited < data.main_rows).sum())
    return OwnRows(visited, kinds, group.share(kinds), all_labelled)


def _sampler(config: Config, rows: OwnRows, group: Group) -> Sampler:
    """The order of this process's rows; all processes take as many steps, of as many rows."""
    training, per_epoch, size = config.training, config.data.extra_per_epoch, group.size
    options: dict[str, Any] = {
        "batch_size": training.batch_size,
        "seed": config.seed.of("training"),
        "first": training.labelled_per_batch or 0,
    }
    # Made only to be refused, if all rows together cannot give what is asked for.
    Sampler(rows.visited, rows.kinds[rows.visited] == LABELLED, per_epoch=per_epoch, **options)
    if len(rows.visited) < size:
        raise ConfigError(
            f"{size} processes have {len(rows.visited)} rows to visit; expected at least one for each, so use fewer."
        )
    if per_epoch is not None and per_epoch < size:
        raise ConfigError(f"{size} processes share {per_epoch} unlabeled rows an epoch; ask for more, or use fewer.")
    kinds = rows.kinds[rows.owned]
    own = np.flatnonzero(kinds != HELD_OUT)
    each = None if per_epoch is None else per_epoch // size
    sampler = Sampler(own, kinds[own] == LABELLED, per_epoch=each, process=group.rank, **options)
    sampler = replace(sampler, batch_size=group.all_reduce_int(sampler.batch_size, MIN, patient=True))
    return replace(sampler, max_steps=group.all_reduce_int(sampler.steps, MIN))


def _loader(prepared: Prepared, rows: OwnRows, sampler: Sampler, group: Group) -> tuple[str, Loader]:
    """Where the inputs stay, and the loader of this process's rows."""
    config, device, data = prepared.config, prepared.device, prepared.data
    inputs = data.inputs if group.size == 1 else LazyRows([data.inputs], rows.owned)
    later = config.data.preprocess_after_views
    residence = prefetch.choose_residence(config.training.residence, inputs, data.name, device, raw=later)
    views = Views(data.input_shape, pixels=range_is_known(config, data), **asdict(config.augment))
    labels = prepared.labels.training_labels(data.num_rows)[rows.owned]
    source = prefetch.from_residence(
        residence, inputs, None if later else prepared.preprocess, sampler.batch_size, device
    )
    return residence, Loader(
        source, torch.from_numpy(labels).to(device), sampler, views, prepared.preprocess if later else None
    )


def range_is_known(config: Config, data: Dataset) -> bool:
    """Whether the inputs of a view are known to be from 0 to 1: they are bytes, and not yet preprocessed."""
    return data.inputs.dtype == np.uint8 and (config.data.preprocess_after_views or config.data.preprocess == "none")


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


def _set_up_network(
    network: nn.Module,
    prepared: Prepared,
    loader: Loader,
    group: Group,
    warn: Callable[[str], None],
    *,
    is_new: bool,
) -> None:
    """Bring the network to the device, with initial gains from a first batch if it is new, the same in all processes."""
    config, device = prepared.config, prepared.device
    _check_materialized(network)
    network.to(device)
    if is_new or not network.training:  # one that was passed may have parts frozen in evaluation mode
        network.train()
    networks.fuse(network, _kernels_usable(config, device, warn))
    if is_new:  # one that was passed may be trained already
        for rows in loader.visit(loader.order(0)[:1]):
            networks.calibrate(network, loader.batch(rows, ("weak",)).views[0])
    group.broadcast([*network.state_dict().values()])
    if config.training.means == "joint" and group.size > 1:
        synchronize_means(network, group.mean_with_gradient)


def _check_output(network: nn.Module, loader: Loader, num_classes: int) -> None:
    """Refuse a network of the user's own that does not turn the inputs into logits, before a run is made."""
    for rows in loader.visit(loader.order(0)[:1]):
        inputs = loader.batch(rows, ("none",)).views[0]
        try:
            with torch.no_grad(), evaluation_mode(network):
                made = network(inputs)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                f"the network cannot take inputs of shape {tuple(inputs.shape)} ({reason[0][:200]})."
            ) from error
        if not isinstance(made, Tensor) or made.shape != (len(inputs), num_classes):
            found = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise ConfigError(
                f"the network makes {found} of inputs of shape {tuple(inputs.shape)}; expected logits of shape "
                f"{(len(inputs), num_classes)}."
            )


def _optimizer(config: Config, network: nn.Module) -> optim.Optimizer:
    options = config.optimizer
    common: dict[str, Any] = {
        "weight_decay": options.weight_decay,
        "multipliers": options.learning_rate_multipliers,
    }
    if options.name == "sgd":
        return optim.Sgd(network, momentum=options.momentum, **common)
    kind = optim.Adam if options.name == "adam" else optim.AdamW
    return kind(network, beta2=options.beta2, epsilon=options.epsilon, **common)


def _weight_max(method: Method, config: Config, rows: OwnRows) -> float:
    """w_max M/N, without the M/N if the method's options say so; N counts extra rows, drawn or not."""
    options = method.options
    if not method.uses_unlabeled or not isinstance(options, WeightedOptions):
        return 0.0
    unscaled = options.weight_scale == "none" or (options.weight_scale == "original" and rows.main_is_labelled)
    if unscaled or config.training.labelled_per_batch is not None:
        return options.weight_max
    return options.weight_max * rows.num_labelled / len(rows.visited)


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
    classes = prepared.data.num_classes
    counts = np.bincount(
        prepared.labels.training_labels(prepared.data.num_rows)[rows.kinds == LABELLED], minlength=classes
    )
    method.setup(
        network,
        TrainingRows(
            num_rows=len(rows.owned),
            num_classes=classes,
            labels=loader.labels,
            class_counts=torch.from_numpy(counts).float().to(prepared.device),
            device=prepared.device,
        ),
    )
    _check_saved(method)
    _check_shareable(method, prepared, rows, group)
    group.broadcast([*method.state_dict().values()])  # what it drew itself is different in each process
    if method.ensemble is None:
        return
    if method.ensemble.device.type != prepared.device.type:
        raise ConfigError(
            f"the method's ensemble is for the {method.ensemble.device.type}; expected {prepared.device.type}, so make it with "
            "device=rows.device."
        )
    if method.ensemble.num_rows != len(rows.owned):
        raise ConfigError(
            f"the method's ensemble has {method.ensemble.num_rows} rows; expected {len(rows.owned)}, those that `setup` was "
            "told of."
        )


def _check_options_used(config: Config, given: Given) -> None:
    """Refuse options that a method that was passed would ignore: it has its own."""
    place = getattr(config.method, "targets", "device")
    if given.method is not None and place != "device":
        raise ConfigError(
            f"method.targets is {place!r}, but a method of your own was passed, which has its own options; leave it out."
        )


def _check_saved(method: Method) -> None:
    """Refuse what would not be saved: tensors, teachers and the like inside of a list or dict."""
    for name, value in vars(method).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        if any(isinstance(part, Tensor) or hasattr(part, "state_dict") for part in inside):
            raise ConfigError(
                f"{type(method).__name__} keeps '{name}' in a {type(value).__name__}, which is not saved with the run; make "
                "each part an attribute of its own."
            )


def _check_shareable(method: Method, prepared: Prepared, rows: OwnRows, group: Group) -> None:
    """Refuse what a method keeps by row outside of its ensemble: averages over the processes would mix up their rows."""
    numbers = (prepared.data.num_rows, len(rows.owned))
    kept = {name: [tensor] for name, tensor in method.tensors().items()}
    for name, part in method.stateful().items():
        if not isinstance(part, nn.Module | EmaTeacher):  # whose weights may have as many rows by chance
            kept[name] = [*part.state_dict().values()]
    by_row = [name for name, tensors in kept.items() if any(t.ndim and len(t) in numbers for t in tensors)]
    if by_row and group.size > 1:
        raise ConfigError(
            f"{type(method).__name__} keeps '{by_row[0]}' by row, and {group.size} processes have different rows; keep it in "
            "method.ensemble (an EnsembleTargets), or use one process."
        )


def _check_materialized(network: nn.Module) -> None:
    """Refuse a network whose parameters have no shape yet."""
    lazy = [name for name, parameter in network.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ConfigError(
            f"{lazy[0]} of the network has no shape before it is first called; call the network on a batch, such as "
            f"network(torch.zeros(2, *data.input_shape)), before it is trained."
        )


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
        warn("training.capture=on has no effect: only a GPU has CUDA graphs.")
    return wanted and device.type == "cuda"
