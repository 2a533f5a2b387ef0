"""The components of a run: network, method, optimizer, schedule, loader, step.

If several processes train together (see `distributed.py`), each has inputs, labels and targets of only its share of the rows,
numbered from 0. A checkpoint holds all rows, so any number of processes can resume from it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfens import networks
from selfens.config import Config
from selfens.core import optim, schedules
from selfens.core.device import environment, resolve_precision
from selfens.core.evaluate import logits
from selfens.core.prior import Prior
from selfens.core.views import Views
from selfens.data import prefetch, preprocess
from selfens.data.dataset import UNLABELED
from selfens.data.loader import Loader
from selfens.data.prior import remark as prior_remark
from selfens.data.rows import LazyRows, Rows, pieces
from selfens.data.sampler import Sampler
from selfens.errors import ConfigError
from selfens.methods import METHODS
from selfens.methods.base import Method, TrainingRows, WeightedOptions
from selfens.runs.info import RunInfo
from selfens.training.distributed import Group
from selfens.training.overrides import Overrides, check_output, check_shareable, check_state
from selfens.training.prepare import Prepared
from selfens.training.step import Step, start_compiler

PRIOR_METHODS = "committee, temporal-teacher or temporal"
MAX_NUMBERS = 2_000_000  # in the inputs of these rows
MIXED = 0.1  # share of inputs with two values that makes a table mixed
SAMPLE = 2000  # rows that show how many values an input has
MAX_LABELED = 5000  # labeled rows that a method may ask for at once; evenly spaced ones if there are more


class Components:
    """The parts of a run, on the device. Those with state have `state_dict` and `load_state_dict`."""

    def __init__(self, prepared: Prepared, overrides: Overrides, group: Group, warn: Callable[[str], None]) -> None:
        # Validate first; allocate the (possibly huge) targets last.
        config, device, data = prepared.config, prepared.device, prepared.data
        self.prepared, self.overrides, self.group = prepared, overrides, group
        network, sizes = overrides.network, (data.input_shape, data.num_classes)
        if network is None:
            copies = 3 if config.optimizer.name == "sgd" else 4  # weights, gradients and moments
            network = networks.build(config.network, *sizes, copies=copies, device=device)
        self.network = network
        on_gpu = device.type == "cuda"
        compile = config.training.compile == "on" or (on_gpu and config.training.compile == "auto")
        # After a user's network was imported, because two threads must not import the same modules at the same time.
        compiler = start_compiler() if compile and on_gpu else None
        self.method: Method = METHODS.build(config.method) if overrides.method is None else overrides.method
        prior = data.dataset.train_prior
        if prior is not None and not self.method.uses_prior:
            name = type(self.method).__name__ if overrides.method is not None else config.method.name
            raise ConfigError(f"the method '{name}' keeps no targets that a prior could begin; choose {PRIOR_METHODS}.")
        self.labels = prepared.labels.training_labels(data.num_rows)
        self.visited = prepared.labels.visited(data.num_rows, config.training.rows)
        """The rows that training visits: all but the held-out ones, or only the labeled ones."""
        kinds = np.full(data.num_rows, 2)  # 0: labeled, 1: unlabeled, 2: not visited
        kinds[self.visited] = self.labels[self.visited] == UNLABELED
        self.owned = group.share(kinds)
        """The rows of this process."""
        given = None if prior is None else torch.from_numpy(prior[self.owned]).to(device)
        if (
            config.network.name == networks.BACKBONE
        ):  # the first stage makes the prior, perhaps from the one that was given
            given = torch.full((len(self.owned), data.num_classes), torch.nan, device=device)
        self.prior = None if given is None else Prior(given)
        self.loader = self._loader(self._sampler())
        self._set_up_network()
        self._set_up_method()
        self.optimizer = _optimizer(config, self.network, self.method.learned)
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
            prior=self.prior,
            group=group,
            precision=self.precision,
            compile=compile,
            kernels=on_gpu and config.training.kernels != "off",
            capture=on_gpu and config.training.capture != "off",
            warn=warn,
        )
        share = slice(group.rank, None, group.size)
        evaluated = {
            "validation_error": (data.inputs[prepared.labels.validation[share]], prepared.labels.validation_labels),
            "test_error": (data.test_inputs[share], data.test_labels),
        }
        self.evaluated = {
            name: (preprocess.apply(prepared.preprocess, inputs, device), torch.from_numpy(labels[share]).to(device))
            for name, (inputs, labels) in evaluated.items()
        }
        """Maps the name of each error to this process's share of the inputs and labels it is computed on."""

    @property
    def config(self) -> Config:
        return self.prepared.config

    @cached_property
    def weight_max(self) -> float:
        """The largest unsupervised weight: w_max M/N, where N includes extra rows, or w_max if the options say so."""
        options, num_main = self.method.options, self.prepared.data.dataset.num_main
        if not self.method.uses_unlabeled or not isinstance(options, WeightedOptions):
            return 0.0
        is_all_labeled = not (self.labels[self.visited[self.visited < num_main]] == UNLABELED).any()
        unscaled = options.weight_scale == "none" or (options.weight_scale == "original" and is_all_labeled)
        if unscaled or self.loader.num_labeled:
            return options.weight_max
        return options.weight_max * self.num_labeled / len(self.visited)

    @property
    def num_labeled(self) -> int:
        return len(self.prepared.labels.rows)

    def visit(self, epoch: int, first_step: int = 0) -> Iterable[Tensor]:
        """Yield the rows of each step of an epoch as soon as their inputs are available."""
        return self.loader.visit(self.loader.order(epoch)[first_step:])

    def rates(self, progress: float) -> dict[str, float]:
        """Return the arguments of `step.set` after `progress` epochs. As long as a prior counts, so do the targets."""
        rates, schedule = rates_at(progress, self.config, self.weight_max), self.config.schedule
        if self.prior is None:
            return rates
        share = schedules.prior_share(schedule.prior * schedule.epochs)(progress)
        return rates | {"prior": share, "weight": max(rates["weight"], share * self.weight_max)}

    def errors(self) -> dict[str, float | None]:
        """Return the current errors in percent, by their name in the history."""
        network = self.method.evaluated(self.network)
        return {
            name: misclassified(network, *rows, self.precision, self.group) for name, rows in self.evaluated.items()
        }

    def info(self) -> RunInfo:
        """Return what run.json records."""
        data, overrides = self.prepared.data, self.overrides
        known = prior_remark(data.dataset.train_prior, self.prepared.labels)
        notes = (
            overrides.note,
            known,
            self.method.remark,
            "epochs that fit into the time limit" * bool(overrides.deadline),
        )
        return RunInfo(
            data=data.dataset.name,
            fingerprint=data.fingerprint,
            test_fingerprint=data.dataset.test_fingerprint(),
            rows=data.num_rows,
            extra_rows=data.dataset.extra_rows,
            extra=data.dataset.extra_name,
            labeled=self.num_labeled,
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

    def _sampler(self) -> Sampler:
        """Return the sampler of this process's rows. All processes have the same number of steps and of rows per step."""
        group, training, per_epoch = self.group, self.config.training, self.config.training.unlabeled_per_epoch
        labeled, num_labeled = self.labels != UNLABELED, training.labeled_per_batch
        if num_labeled is None and (per_epoch is not None or training.rows == "labeled"):
            num_labeled = 0
        elif num_labeled is None:
            wanted = round(self.method.labeled_share * training.batch_size)
            num_labeled = group.min(min(wanted, int(labeled[self.owned].sum())))
        whole = Sampler(
            self.visited,
            labeled[self.visited],
            training.batch_size,
            self.config.seed.of("training"),
            per_epoch=per_epoch,
            num_labeled=num_labeled,
            min_steps=training.min_steps_per_epoch,
        )
        if (fewest := per_epoch or len(self.visited)) < group.size:
            raise ConfigError(f"{group.size} processes have {fewest} rows an epoch to share; use fewer processes.")
        visited, each = np.flatnonzero(np.isin(self.owned, self.visited)), per_epoch and per_epoch // group.size
        labeled = labeled[self.owned[visited]]
        sampler = replace(whole, visited=visited, labeled=labeled, per_epoch=each, process=group.rank)
        sampler = replace(sampler, batch_size=group.min(sampler.batch_size))
        return replace(sampler, max_steps=group.min(sampler.steps))

    def _loader(self, sampler: Sampler) -> Loader:
        prepared, device, data, names = self.prepared, self.prepared.device, self.prepared.data, self.method.views
        inputs = data.inputs if self.group.size == 1 else LazyRows([data.inputs], self.owned)
        Views(data.input_shape).check(names)
        views = Views(data.input_shape, self.config.views, pixels=prepared.views_see_pixels(names))
        later = prepared.preprocesses_views(names)
        before, after = (None, prepared.preprocess) if later else (prepared.preprocess, None)
        self.residence, source = prefetch.load_inputs(
            inputs, data.dataset.name, self.config.training.residence, before, sampler.batch_size, device
        )
        return Loader(source, torch.from_numpy(self.labels[self.owned]).to(device), sampler, views, after)

    def _set_up_network(self) -> None:
        """Move the network to the device, calibrate a new one on the first batch, and give all processes the same weights."""
        network, loader, is_new = self.network, self.loader, self.overrides.network is None
        network.to(self.prepared.device)
        if is_new or not network.training:  # a passed network may have parts frozen in evaluation mode
            network.train()
        for rows in loader.visit(loader.order(0)[:1]):
            if is_new:  # a passed network may be pretrained
                networks.calibrate(network, loader.batch(rows, ("weak",)).views[0])
            if not is_new or networks.is_factory(self.config.network.name):
                check_output(network, loader.batch(rows, ("none",)).views[0], self.prepared.data.num_classes)
        self.group.broadcast([*network.state_dict().values()])

    def _set_up_method(self) -> None:
        """Let the method create its state for this process's rows."""
        data, device, group, method = self.prepared.data, self.prepared.device, self.group, self.method
        counts = np.bincount(self.prepared.labels.labels, minlength=data.num_classes)
        rows = TrainingRows(
            num_rows=len(self.owned),
            classes=data.classes,
            labels=self.loader.labels,
            class_counts=torch.from_numpy(counts).float().to(device),
            device=device,
            inputs=lambda: self._inputs_of(self.owned),
            labeled=self._labeled,
            prior=self.prior,
            is_mixed=data.inputs.ndim == 2 and not data.encoder.has_features and self._is_mixed(),
        )
        method.setup(self.network, rows)
        check_state(method, rows)
        if group.size > 1:
            check_shareable(method, {data.num_rows, rows.num_rows} - {data.num_classes}, group.size)
        group.broadcast([*method.state_dict().values()])  # processes have drawn different values
        if method.teacher is not None:
            group.broadcast([*method.teacher.network.state_dict().values()])

    def _inputs_of(self, rows: Rows) -> Iterable[Tensor]:
        for piece in pieces(self.prepared.data.inputs, preprocess.CHUNK, rows):
            yield preprocess.transform(self.prepared.preprocess, torch.from_numpy(piece).to(self.prepared.device))

    def _is_mixed(self) -> bool:
        """Return True if at least a tenth of the inputs have two values, and others more; judged by some rows."""
        data = self.prepared.data
        some = np.sort(
            data.inputs[np.linspace(0, data.num_rows - 1, min(data.num_rows, SAMPLE)).astype(np.int64)], axis=0
        )
        values = 1 + (np.diff(some, axis=0) != 0).sum(axis=0)
        return bool((values == 2).mean() >= MIXED and (values > 2).any())

    def _labeled(self) -> tuple[Tensor, Tensor]:
        rows = np.sort(self.visited[self.labels[self.visited] != UNLABELED])
        most = min(MAX_LABELED, max(MAX_NUMBERS // int(np.prod(self.prepared.data.input_shape)), 100), len(rows))
        some = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
        return torch.cat([*self._inputs_of(some)]), torch.from_numpy(self.labels[some])


def _optimizer(config: Config, network: nn.Module, also: nn.Module | None) -> optim.Optimizer:
    options = config.optimizer
    common: dict[str, Any] = {"weight_decay": options.weight_decay, "multipliers": options.learning_rate_multipliers}
    common["also"] = also
    if options.name == "sgd":
        return optim.Sgd(network, momentum=options.momentum, **common)
    kind = optim.Adam if options.name == "adam" else optim.AdamW
    return kind(network, beta2=options.beta2, epsilon=options.epsilon, **common)


def rates_at(progress: float, config: Config, weight_max: float) -> dict[str, float]:
    """Return every rate that a schedule changes, after `progress` epochs."""
    schedule, optimizer, epoch = config.schedule, config.optimizer, math.floor(progress)
    if schedule.name == "paper":
        up = schedules.gaussian_rampup(schedule.rampup, schedule.rampup_constant)(epoch)
        down = schedules.gaussian_rampdown(schedule.epochs, schedule.rampdown, schedule.rampdown_constant)(epoch)
        start, end = optimizer.beta1, optimizer.beta1_end if optimizer.name == "adam" else optimizer.beta1
        rates = {"learning_rate": optimizer.learning_rate * up * down, "beta1": start * down + end * (1 - down)}
    else:
        cosine = schedules.warmup_cosine(schedule.epochs, schedule.warmup_epochs)(progress)
        rates = {"learning_rate": optimizer.learning_rate * cosine, "beta1": optimizer.beta1}
    if optimizer.name == "sgd":
        del rates["beta1"]
    weight = schedules.unsupervised_weight(
        weight_max, schedule.weight_rampup, schedule.rampup_constant, from_start=schedule.weight_rampup_epochs == 0
    )
    return rates | {"weight": weight(progress)}


def misclassified(network: nn.Module, inputs: Tensor, labels: Tensor, precision: str, group: Group) -> float | None:
    """Return the percentage of misclassified rows, summed over the shares of all processes; None if there are no rows."""
    counts = torch.tensor([0, len(labels)], device=labels.device)
    if len(labels):  # with more processes than rows, some have none
        counts[0] = (logits(network, inputs, precision).argmax(dim=1) != labels).sum()
    wrong, total = group.all_reduce(counts).tolist()
    return 100.0 * wrong / total if total else None
