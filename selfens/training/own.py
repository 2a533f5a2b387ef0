"""What a caller passes to `train` and `resume` instead of naming it in the config, and what is refused of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfens.config import Config
from selfens.core.evaluate import evaluation_mode
from selfens.core.teacher import EmaTeacher
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError, RunError, check_kind, root_cause
from selfens.methods.base import Method, Options, TrainingRows
from selfens.runs.run import Run

RECORD_FIELDS = {"epoch", "total", "seconds", "images_per_second", "test_error", "validation_error"}
RECORD_FIELDS |= {"learning_rate", "beta1", "weight", "ensemble_variance"}


class Given(NamedTuple):
    """What the caller passes instead of naming it in the config."""

    dataset: Dataset | None = None
    network: nn.Module | None = None
    method: Method | None = None
    deadline: float | None = None
    """When training must end, by time.perf_counter, instead of after the config's number of epochs."""
    note: str = ""
    """How the config was chosen."""

    def check(self, config: Config) -> None:
        """Refuse what is of another kind, such as the name or the class of a method, and options that it would ignore."""
        if self.dataset is not None:
            check_kind("dataset", self.dataset, Dataset, "a Dataset, such as Dataset.from_npz(path) reads")
        if self.network is not None:
            check_kind("network", self.network, nn.Module, "a module from inputs to logits")
        if self.method is not None:
            check_kind("method", self.method, Method, "an instance of a Method, such as selfens.methods.Pi()")
            check_kind("method.options", getattr(self.method, "options", None), Options, "an instance of its Options")
            for name in ("views", "parts"):
                words = getattr(self.method, name)
                if not words or type(words) is not tuple or {*map(type, words)} != {str}:
                    raise ConfigError(f"{type(self.method).__name__}.{name} is {words!r}; expected a tuple of names.")
            if len({*self.method.parts}) < len(self.method.parts):
                raise ConfigError(
                    f"{type(self.method).__name__}.parts is {self.method.parts}; expected each name once."
                )
            if taken := RECORD_FIELDS & {*self.method.parts}:
                raise ConfigError(
                    f"{type(self.method).__name__}.parts has '{min(taken)}', which the history uses itself; choose another "
                    "name."
                )
            if (place := getattr(config.method, config.method.place, "device")) != "device":
                raise ConfigError(
                    f"method.{config.method.place} is {place!r}, but a method of your own was passed, which has its own "
                    "options; leave it out."
                )


def check_given_again(run: Run, given: Given) -> None:
    for part, module in (("network", given.network), ("method", given.method)):
        if run.about[f"own_{part}"] != (module is not None):
            how = "with a" if run.about[f"own_{part}"] else "without a"
            raise RunError(
                f"{run.path} was started {how} {part} of your own; resume it the same way: resume(path, {part}=...)."
            )
    before, now = run.about.get("own_method_options"), repr(given.method and given.method.options)
    if before is not None and before != now:
        raise RunError(f"{run.path} was started with a method of {before}; resume it with the same, not {now}.")


def check_output(network: nn.Module, inputs: Tensor, num_classes: int) -> None:
    """Refuse a network of the user's own that makes no logits of the inputs. Lazy layers get their shapes here."""
    try:
        with torch.no_grad(), evaluation_mode(network):
            made = network(inputs)
    except Exception as error:  # a user's network may raise anything
        raise ConfigError(
            f"the network cannot take inputs of shape {tuple(inputs.shape)} ({root_cause(error)})."
        ) from error
    found = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
    wanted = f"shape {(len(inputs), num_classes)}"
    if found != wanted:
        raise ConfigError(
            f"the network makes {found} of inputs of shape {tuple(inputs.shape)}; expected logits of {wanted}."
        )


def check_saved(method: Method) -> None:
    """Refuse what would not be saved: tensors, teachers and the like inside of a list or dict."""
    for name, value in vars(method).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        if any(isinstance(part, Tensor) or hasattr(part, "state_dict") for part in inside):
            raise ConfigError(
                f"{type(method).__name__} keeps '{name}' in a {type(value).__name__}, which is not saved with the run; make "
                "each part an attribute of its own."
            )


def check_ensemble(method: Method, rows: TrainingRows) -> None:
    """Refuse an ensemble that is not for the rows and the device that the method was told of."""
    if method.ensemble is None:
        return
    if method.ensemble.device.type != rows.device.type:
        raise ConfigError(
            f"the method's ensemble is for the {method.ensemble.device.type}; expected {rows.device.type}, so make it with "
            "device=rows.device."
        )
    if method.ensemble.num_rows != rows.num_rows:
        raise ConfigError(
            f"the method's ensemble has {method.ensemble.num_rows} rows; expected {rows.num_rows}, those that `setup` was "
            "told of."
        )


def check_shareable(method: Method, numbers: set[int], processes: int) -> None:
    """Refuse what several processes cannot divide: averages over them would mix up what a method keeps for its rows.

    numbers  of all rows, and of this process's; not if there are as many classes
    """
    if method.ensemble is not None and method.ensemble.file is not None:  # opened by the user, else refused earlier
        raise ConfigError(
            f"the method's ensemble is in the file {method.ensemble.file.path}, which is for one process, and there are "
            f"{processes}; use one process, or keep it in ram."
        )
    kept = {name: [tensor] for name, tensor in method.tensors().items()}
    for name, part in method.stateful().items():
        if not isinstance(part, nn.Module | EmaTeacher):  # whose weights may have as many rows by chance
            kept[name] = [*part.state_dict().values()]
    for name, tensors in kept.items():
        if any(tensor.ndim and len(tensor) in numbers for tensor in tensors):
            raise ConfigError(
                f"{type(method).__name__} keeps '{name}' by row, and {processes} processes have different rows; keep it in "
                "method.ensemble (an EnsembleTargets), or use one process."
            )
