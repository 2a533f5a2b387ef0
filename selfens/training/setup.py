"""Session: the live objects of a run, set up from a config, saved in a checkpoint and loaded from one.

Where several processes train together (see `distributed.py`), each has a session for the rows it owns, numbered from 0
as they lie there: inputs, labels and ensemble of those rows alone. A checkpoint is of all rows, so any number of processes
can go on from it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from selfens import methods, networks
from selfens.config import IN_MEMORY, Config
from selfens.core import evaluate, schedules
from selfens.core.device import Awaited, environment, evaluation_stream, generator, resolve_precision, resolve_switch
from selfens.core.optim import Adam
from selfens.core.randomness import PROCESS
from selfens.core.randomness import stream as random_stream
from selfens.core.targets.file import TargetsFile
from selfens.data import prefetch as stream
from selfens.data import preprocess
from selfens.data.dataset import UNLABELED, Dataset
from selfens.data.labels import LabelChoice
from selfens.data.loader import Loader
from selfens.data.rows import Selected
from selfens.data.sampler import Order
from selfens.errors import ConfigError, RunError, root_cause
from selfens.methods.base import Method
from selfens.networks.layers import synchronize_means
from selfens.runs.directory import Checkpoint, RunDirectory, TargetsPlace
from selfens.training.distributed import LEAST, MOST, Group
from selfens.training.step import Step, start_compiler

Rows = NDArray[np.int64]
LABELLED, WITHOUT_LABEL, HELD_OUT = range(3)


class Evaluated(NamedTuple):
    """The rows that a process evaluates the network on, and the number of those of all processes."""

    inputs: Tensor
    labels: Tensor
    in_all: int


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
        group: Group | None = None,
    ) -> None:
        self.config, self.device, self.group, self.warn = config, device, group or Group(), warn
        self.data_name, self.extra_rows = data.name, data.extra_rows
        self.network_name = type(network).__name__ if network else config.network.name
        self.method_name = type(method).__name__ if method else config.method.name
        self.precision = resolve_precision(config.training.precision, device)
        self.network = network or networks.build(config.network, data.input_shape, data.num_classes)
        compiled = resolve_switch(config.training.compile, device)
        # After a network of the user's own, whose file may import the same modules, which two threads must not at a time.
        compiler = start_compiler() if compiled and device.type == "cuda" else None
        self._set_up_rows(data, choice, fitted)
        self._set_up_network(warn, is_new=network is None)
        self.optimizer = Adam(self.network.parameters(), config.optimizer.beta2, config.optimizer.epsilon)
        self.method = self._method(method, data.num_classes)  # after all that may be refused: it may make a large file
        if compiler:
            compiler.join()
        self.step = Step(
            network=self.network,
            method=self.method,
            optimizer=self.optimizer,
            loader=self.loader,
            group=self.group,
            num_classes=data.num_classes,
            precision=self.precision,
            compile=compiled,
            capture=_capture_usable(config, device, warn),
            warn=warn,
        )
        self.learning_rate = schedules.learning_rate(config.schedule, config.optimizer.learning_rate)
        self.beta1 = schedules.beta1(config.schedule, config.optimizer)
        self.weight_max = self._weight_max()
        self.weight = schedules.unsupervised_weight(config.schedule, self.weight_max)
        self.first_epoch = self.first_step = 0
        self.seconds_spent = 0.0
        """In the first epoch, before a stop."""
        self.warned_of_collapse = False
        self.evaluates_later = device.type == "cuda" and self.group.size == 1
        """Whether an epoch may be evaluated while the steps of the next one run."""
        self.evaluation_stream: Any = evaluation_stream(device) if self.evaluates_later else None

    def _set_up_rows(self, data: Dataset, choice: LabelChoice, fitted: nn.Module) -> None:
        """What is trained on, validated on and tested on."""
        config, device = self.config, self.device
        labels = choice.training_labels(data.num_rows)
        self.num_rows = data.num_rows
        self.visited = _visited_rows(config, data.num_rows, choice)
        self.kinds = np.full(data.num_rows, HELD_OUT)
        self.kinds[self.visited] = np.where(labels[self.visited] == UNLABELED, WITHOUT_LABEL, LABELLED)
        self.owned = self.group.share(self.kinds)
        order = self._order()
        inputs = data.inputs if self.group.size == 1 else Selected(data.inputs, self.owned)
        self.residence = stream.choose_residence(config.training.residence, inputs, data.name, device)
        self.loader = Loader(
            stream.from_residence(self.residence, inputs, fitted, order.batch_size, device),
            torch.from_numpy(labels[self.owned]).to(device),
            order,
            config.augment,
        )
        self.num_labelled = len(choice.rows)
        self.main_is_labelled = int((choice.rows < data.main_rows).sum()) == int((self.visited < data.main_rows).sum())
        self.input_shape = data.input_shape
        own = slice(self.group.rank, None, self.group.size)
        self.evaluated = {
            "validation_error": Evaluated(
                preprocess.apply(fitted, data.inputs[choice.validation[own]], device),
                torch.from_numpy(choice.validation_labels[own]).to(device),
                len(choice.validation),
            ),
            "test_error": Evaluated(
                preprocess.apply(fitted, data.test_inputs[own], device),
                torch.from_numpy(data.test_labels[own]).to(device),
                len(data.test_labels),
            ),
        }

    def _set_up_network(self, warn: Callable[[str], None], *, is_new: bool) -> None:
        """Bring the network to the device, with initial gains from a first batch where it is new, alike in all processes."""
        _check_made(self.network)
        self.network.to(self.device).train()
        networks.fuse(self.network, _kernels_usable(self.config, self.device, warn))
        if is_new:  # one that was passed may be trained already
            for rows in self.loader.visit(self.loader.order(0)[:1]):
                networks.calibrate(self.network, self.loader.batch(rows, 1).views[0])
        self.group.take_from_first([*self.network.state_dict().values()])
        if self.config.training.means == "joint" and self.group.size > 1:
            synchronize_means(self.network, self.group.mean_with_gradient)

    def _order(self) -> Order:
        """The order of this process's rows; all processes take as many steps, of as many rows."""
        training, seed = self.config.training, self.config.seed.of("training")
        options = (training.batch_size, seed, training.batches)
        per_epoch, size = self.config.data.extra_per_epoch, self.group.size
        # Made to be refused, where all rows together cannot give what is asked for.
        Order(self.visited, self.kinds[self.visited] == LABELLED, *options, per_epoch)
        if len(self.visited) < size:
            raise ConfigError(
                f"{size} processes have {len(self.visited)} rows to visit; expected at least one for each, so use fewer."
            )
        if per_epoch is not None and per_epoch < size:
            raise ConfigError(
                f"{size} processes share {per_epoch} unlabeled rows an epoch; ask for more, or use fewer."
            )
        kinds = self.kinds[self.owned]
        own = np.flatnonzero(kinds != HELD_OUT)
        each = None if per_epoch is None else per_epoch // size
        order = Order(own, kinds[own] == LABELLED, *options, each, process=self.group.rank, processes=size)
        order = replace(order, batch_size=self.group.agreed(order.batch_size, LEAST, patiently=True))
        return replace(order, most_steps=self.group.agreed(order.steps, LEAST))

    def _method(self, own: Method | None, num_classes: int) -> Method:
        kept, alone = self.config.method.targets, self.group.size == 1
        if kept not in IN_MEMORY and not alone:
            raise ConfigError(
                f"method.targets is '{kept}', but a file is for one process and there are {self.group.size}; "
                "use one, or train anew with --targets ram."
            )
        method = own or methods.build(self.config.method, len(self.owned), num_classes, self.device)
        method = method.to(self.device)
        self.group.take_from_first([*method.parameters()])
        if method.ensemble and not alone and method.ensemble.layout.num_rows == self.num_rows:
            method.ensemble = method.ensemble.for_rows(len(self.owned))
        self._check_shareable(method)
        if method.ensemble:
            method.ensemble.to(self.device)
            if method.ensemble.layout.num_rows != len(self.owned):
                raise ConfigError(
                    f"the ensemble of {self.method_name} has {method.ensemble.layout.num_rows} rows; expected "
                    f"{len(self.owned)}, those of this process."
                )
        elif self.config.method.certainty:
            raise ConfigError(
                f"method.certainty is on, but {self.method_name} keeps no ensemble that could be certain; leave it out."
            )
        elif kept != "device":
            raise ConfigError(
                f"method.targets is '{kept}', but {self.method_name} keeps no ensemble; leave --targets out."
            )
        return method

    def _check_shareable(self, method: Method) -> None:
        """Refuse what a method of the user's own keeps by row outside of an ensemble: averages of it would mix up rows."""
        numbers = (self.num_rows, len(self.owned))
        by_row = [name for name, kept in method.named_buffers(recurse=False) if kept.ndim and len(kept) in numbers]
        if by_row and self.group.size > 1:
            raise ConfigError(
                f"{self.method_name} keeps '{by_row[0]}' by row, and {self.group.size} processes have different rows; keep it "
                "in method.ensemble (an EnsembleTargets), or use one process."
            )

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
        file = self._targets_file
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
        if self._targets_file:
            self._targets_file.claim(directory.about()["id"], directory.path)

    def targets_file_locked(self) -> AbstractContextManager[None]:
        return self._targets_file.locked() if self._targets_file else nullcontext()

    @property
    def _targets_file(self) -> TargetsFile | None:
        return self.method.ensemble.file if self.method.ensemble else None

    def about(self, data: Dataset) -> dict[str, Any]:
        """What run.json records."""
        return {
            "data": data.name,
            "fingerprint": data.fingerprint(),
            "test_fingerprint": data.test_fingerprint(),
            "rows": data.num_rows,
            "extra": {"source": data.extra_name, "rows": data.extra_rows},
            "residence": self.residence,
            "labelled": self.num_labelled,
            "test_rows": len(data.test_labels),
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "input_type": str(data.inputs.dtype),
            "unreadable": list(data.unreadable),
            "processes": self.group.size,
            "parameters": sum(p.numel() for p in self.optimizer.parameters),
            "environment": environment(self.device, self.precision),
        }

    def is_finite(self) -> bool:
        return bool(self._finite())

    def _finite(self) -> Tensor:
        """1 if the loss and the parameters are still numbers, in all processes."""
        here = self.step.total.isfinite() & self.optimizer.flat.isfinite().all()
        return self.group.total(here.to(torch.int64), LEAST)

    # The end of an epoch

    def end_epoch(self) -> None:
        """Bring the predictions of the epoch into effect, and let all processes evaluate the same network."""
        self.method.end_epoch()
        self._average_buffers()

    def _average_buffers(self) -> None:
        """Each process's running means follow its own batches; their average is what has followed all batches."""
        every = {id(buffer): buffer for module in (self.network, self.method) for buffer in module.buffers()}
        buffers = [buffer for buffer in every.values() if buffer.is_floating_point()]
        if self.group.size > 1:
            for buffer, mean in zip(buffers, self.group.means(buffers), strict=True):
                buffer.copy_(mean)

    def close_epoch(self) -> Awaited:
        """What the epoch has come to: the means of its steps, and how many rows are put into the wrong class.

        The sums of the next epoch begin. Nothing waits for the numbers here, and where `evaluates_later` the next steps
        need not wait for the evaluation, which is of the network as it is now whenever it is given out.
        """
        self._join_sums()
        numbers = {"finite": self._finite(), **self.step.take_means()}
        if self.method.ensemble:
            spread = self.method.ensemble.spread.to(self.device, non_blocking=True)
            numbers["ensemble_variance"] = self.group.mean(spread)
        network = self.method.evaluated(self.network)
        if self.evaluates_later and any(rows.in_all for rows in self.evaluated.values()):
            try:
                return self._evaluated_later(network, numbers)
            except Exception as error:
                self.evaluates_later = False
                if self.evaluation_stream is not None:
                    self.evaluation_stream.synchronize()  # what it has begun may still read what is given up here
                self.warn(
                    f"steps wait for each evaluation, because the network cannot be evaluated beside them "
                    f"({root_cause(error)})."
                )
        return Awaited(numbers, self._count_errors(network, numbers))

    def _evaluated_later(self, network: nn.Module, numbers: dict[str, Tensor]) -> Awaited:
        state = evaluate.state_of(network)
        if self.evaluation_stream is not None:
            self.evaluation_stream.wait_stream(torch.cuda.current_stream(self.device))
        work = self._count_errors(network, numbers, state)
        later = Awaited(numbers, work, self.evaluation_stream, read_by_work=state)
        later.are_known()  # a first piece, to see whether it can be done
        return later

    def _count_errors(
        self, network: nn.Module, numbers: dict[str, Tensor], state: dict[str, Tensor] | None = None
    ) -> Iterator[None]:
        """Count the rows of the wrong class into `numbers`, in pieces."""
        for name, rows in self.evaluated.items():
            if not rows.in_all:
                continue
            wrong = numbers[name] = torch.zeros((), dtype=torch.int64, device=self.device)
            # More processes than rows leave some without.
            for count in evaluate.error_counts(network, rows.inputs, rows.labels, self.precision, state):
                wrong += count
                yield
            self.group.total(wrong)

    def _join_sums(self) -> None:
        self.group.mean(self.step.sums)
        self.group.total(self.step.low, LEAST)
        self.group.total(self.step.high, MOST)

    # Checkpoints

    def save(self, directory: RunDirectory, epoch: int, step: int, seconds: float = 0.0) -> None:
        """A checkpoint from which the run goes on at `step` of `epoch`, which has taken so many seconds by then."""
        if step:
            self._average_buffers()
            self._join_sums()
        evaluated = self.method.evaluated(self.network)
        parts = {
            "network": self.network.state_dict(),
            "evaluated": {} if evaluated is self.network else evaluated.state_dict(),
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state(),
            "sums": self.step.state(),
            "random": self._random_states(),
        }
        ensemble, place = self.method.ensemble, None
        if ensemble and ensemble.file:
            place = TargetsPlace(str(ensemble.file.path), ensemble.seal(epoch, step))
        elif ensemble:
            parts["targets"] = self._targets_of_all(ensemble.state())
        if self.group.is_first:
            directory.save_checkpoint(Checkpoint(epoch, step, parts, place, seconds))
        self.group.wait()  # a process that went on, or ended, while the first one writes would have it given up, or killed

    def _random_states(self) -> dict[str, Tensor]:
        """Of the generators of every process, on the first one."""
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        states: dict[str, Tensor] = {}
        for kind, state in own.items():
            every = self.group.gathered(state, [state.shape] * self.group.size) or []
            states |= {f"{kind}{rank or ''}": other for rank, other in enumerate(every)}
        return states

    def _targets_of_all(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """The ensemble of all rows, on the first process."""
        if self.group.size == 1:
            return own
        shares = [self.group.share(self.kinds, rank) for rank in range(self.group.size)]
        whole = {}
        for name, tensor in own.items():
            if not self._by_row(name):
                whole[name] = tensor
                continue
            parts = self.group.gathered(tensor, [(len(share), *tensor.shape[1:]) for share in shares])
            if parts is not None:
                whole[name] = torch.zeros(self.num_rows, *tensor.shape[1:], dtype=tensor.dtype)
                for share, part in zip(shares, parts, strict=True):
                    whole[name][torch.from_numpy(share)] = part
        return whole

    def load(self, checkpoint: Checkpoint) -> None:
        parts, step = checkpoint.tensors, checkpoint.step
        as_many = sum(name.startswith("cpu") for name in parts["random"]) == self.group.size
        if step and not as_many:
            step = 0  # other processes own the rows that are left of the epoch, so it begins again
        try:
            self.network.load_state_dict(parts["network"])
            self.method.load_state_dict(parts.get("method", {}))
            self.optimizer.load_state(parts["optimizer"])
            if step or not checkpoint.step:
                self.step.load_state(parts["sums"], step)
            if self.method.ensemble and checkpoint.targets_place:
                self.method.ensemble.restore(checkpoint.targets_place.half, checkpoint.epoch, step)
            elif self.method.ensemble:
                self.method.ensemble.load_state(self._own_targets(parts["targets"], unfinished=step > 0))
        except (RuntimeError, KeyError, ValueError) as error:
            raise RunError(f"the checkpoint does not fit the run ({str(error).splitlines()[0]}).") from None
        self._restore_random_state(parts["random"] if as_many else {}, checkpoint.epoch)
        self.first_epoch, self.first_step = checkpoint.epoch, step
        self.seconds_spent = checkpoint.seconds

    def _own_targets(self, whole: dict[str, Tensor], *, unfinished: bool) -> dict[str, Tensor]:
        """What this process owns of the ensemble, with or without the predictions of an unfinished epoch."""
        kept = {k: v for k, v in whole.items() if unfinished or k not in ("pending", "written")}
        if self.group.size == 1:
            return kept
        own = torch.from_numpy(self.owned)
        return {name: tensor[own] if self._by_row(name) else tensor for name, tensor in kept.items()}

    def _by_row(self, name: str) -> bool:
        """Whether a tensor of the ensemble's state has a row for each training row."""
        return self.method.ensemble is not None and name in self.method.ensemble.layout.specifications()

    def _restore_random_state(self, states: dict[str, Tensor], epoch: int) -> None:
        """As it was; where there are other processes than before, one that depends on seed, process and epoch alone."""
        suffix = self.group.rank or ""
        if not states:
            fresh = random_stream(self.config.seed.of("training"), PROCESS, self.group.rank, epoch)
            for device in {torch.device("cpu"), self.device}:
                generator(device).manual_seed(int(fresh.integers(2**62)))
            return
        torch.set_rng_state(states[f"cpu{suffix}"])
        if self.device.type == "cuda" and f"cuda{suffix}" in states:
            torch.cuda.set_rng_state(states[f"cuda{suffix}"], self.device)


def _check_made(network: nn.Module) -> None:
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
        warn("training.capture=on has no effect: CUDA graphs exist on a GPU.")
    return wanted and device.type == "cuda"


def _visited_rows(config: Config, num_rows: int, choice: LabelChoice) -> Rows:
    """The rows training visits: all but those held out, or the labelled ones alone."""
    if config.training.rows == "labelled":
        return np.sort(choice.rows)
    return np.setdiff1d(np.arange(num_rows), choice.validation, assume_unique=True)
