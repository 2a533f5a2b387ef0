"""Objects passed by the caller that override the config, and checks on them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from selfens.config import Config
from selfens.core.evaluate import evaluation_mode
from selfens.core.teacher import EmaTeacher
from selfens.data.dataset import Dataset
from selfens.errors import ConfigError, RunError, check_type, root_cause
from selfens.methods.base import Method, MethodOptions, TrainingRows
from selfens.runs.history import FIELDS
from selfens.runs.run import Run


class Overrides(NamedTuple):
    """Objects passed by the caller that override the config."""

    dataset: Dataset | None = None
    network: nn.Module | None = None
    method: Method | None = None
    deadline: float | None = None
    """When training must end, by time.perf_counter, instead of after the config's number of epochs."""
    note: str = ""
    """How the config was chosen."""
    prior: Any = None

    def check(self, config: Config) -> None:
        """Refuse objects of the wrong type, such as the name or the class of a method, and options without effect."""
        if self.dataset is not None:
            check_type("dataset", self.dataset, Dataset, "a Dataset, such as Dataset.from_arrays makes")
            if config.source.extra is not None and not self.dataset.extra_rows:
                raise ConfigError("source.extra is set, but the dataset has no extra rows; use dataset.with_extra.")
        if self.network is not None:
            check_type("network", self.network, nn.Module, "a module from inputs to logits")
        if self.method is None:
            return
        name = type(self.method).__name__
        check_type("method", self.method, Method, "an instance of a Method, such as selfens.methods.Pi()")
        check_type("method.options", getattr(self.method, "options", None), MethodOptions, "an instance of its Options")
        for attribute in ("views", "parts"):
            words = getattr(self.method, attribute)
            if not words or type(words) is not tuple or {*map(type, words)} != {str}:
                raise ConfigError(f"{name}.{attribute} is {words!r}; expected a tuple of names.")
        if len({*self.method.parts}) < len(self.method.parts):
            raise ConfigError(f"{name}.parts is {self.method.parts}; expected each name once.")
        if taken := FIELDS.keys() & {*self.method.parts}:
            raise ConfigError(f"{name}.parts has '{min(taken)}', which the history uses itself; choose another name.")


def check_passed_again(run: Run, overrides: Overrides) -> None:
    """Refuse to resume a run without the network or method it was started with, or with one it was started without."""
    for part, module, was_passed in (
        ("network", overrides.network, run.info.custom_network),
        ("method", overrides.method, run.info.custom_method),
    ):
        if was_passed != (module is not None):
            how, advice = (
                ("with", f"pass it: resume(path, {part}=...)") if was_passed else ("without", f"leave out {part}=")
            )
            raise RunError(f"{run.path} was started {how} a {part} of your own; {advice}.")
    options, before = repr(overrides.method.options) if overrides.method is not None else "", run.info.custom_options
    if options != before:
        raise RunError(f"{run.path} was started with a method of {before}; resume it with the same, not {options}.")


def check_output(network: nn.Module, inputs: Tensor, num_classes: int) -> None:
    """Refuse a user's network that does not return logits. Lazy layers get their shapes here."""
    shape = tuple(inputs.shape)
    try:
        with torch.no_grad(), evaluation_mode(network):
            made = network(inputs)
    except Exception as error:  # a user's network may raise anything
        raise ConfigError(f"the network cannot take inputs of shape {shape} ({root_cause(error)}).") from error
    found = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
    wanted = f"shape {(len(inputs), num_classes)}"
    if found != wanted:
        raise ConfigError(f"the network returned {found} for inputs of shape {shape}; expected logits of {wanted}.")


def check_state(method: Method, rows: TrainingRows) -> None:
    """Refuse state that would not be saved (in a list or dict), or an ensemble for other rows or another device."""
    owner = type(method).__name__
    check_type(f"{owner}.teacher", method.teacher, EmaTeacher | None, "an EmaTeacher; give it another name")
    check_type(f"{owner}.learned", method.learned, nn.Module | None, "a module; give it another name")
    if method.learned is not None and method.teacher is not None:
        raise ConfigError(f"{owner} has both `teacher` and `learned`; a teacher follows the network's parameters only.")
    for name, value in vars(method).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        if any(isinstance(part, Tensor) or hasattr(part, "state_dict") for part in inside):
            kind = type(value).__name__
            raise ConfigError(f"{owner}.{name} is a {kind}, which is not saved; make each part its own attribute.")
    if (ensemble := method.ensemble) is not None:
        found, wanted = (f"{each.num_rows} rows on the {each.device.type}" for each in (ensemble, rows))
        if found != wanted:
            advice = "make it with rows.num_rows and rows.device"
            raise ConfigError(f"the method's ensemble has {found}; expected {wanted}, so {advice}.")


def check_shareable(method: Method, numbers: set[int], processes: int) -> None:
    """Refuse tensors with one entry per row: averaging them over processes would mix up different rows.

    A tensor counts as one if its length is in `numbers`: the number of rows of this process, and of all processes.
    """
    for name, part in method.kept().items():
        if isinstance(part, nn.Module | EmaTeacher):
            continue  # weights may have this length by chance
        tensors = [part] if isinstance(part, Tensor) else part.state_dict().values()
        if any(tensor.ndim and len(tensor) in numbers for tensor in tensors):
            owner, found = type(method).__name__, f"{processes} processes have different rows"
            raise ConfigError(f"{owner} keeps '{name}' by row, but {found}; use method.ensemble.")
