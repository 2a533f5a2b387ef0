"""Method: the views of each input, the loss, and the state kept between steps and epochs.

A method knows nothing about optimizers, loops or files.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from selfens.core.batch import Batch
from selfens.core.prior import Prior
from selfens.core.targets import EnsembleTargets, Targets
from selfens.core.teacher import EmaTeacher
from selfens.settings import NamedOptions, setting

WEIGHT_SCALE = (
    "Multiply w_max by M/N: always (paper), never (none), or unless the whole main set is labeled (the authors' code). "
    "Never if batches have a fixed number of labeled rows (training.labeled_per_batch)."
)


@dataclass(frozen=True, kw_only=True)
class MethodOptions(NamedOptions):
    """The options of a method; a subclass adds its fields. `config.method` is one of these."""

    section: ClassVar[str] = "method"
    name: ClassVar[str] = "custom"


@dataclass(frozen=True, kw_only=True)
class WeightedOptions(MethodOptions):
    """The options of a method with an unsupervised loss."""

    weight_max: float = setting(30.0, "Largest unsupervised weight before scaling, w_max.", at_least=0, at_most=1e9)
    weight_scale: Literal["original", "paper", "none"] = setting("original", WEIGHT_SCALE)


@dataclass(frozen=True, kw_only=True)
class UnscaledOptions(WeightedOptions):
    """The options of a method whose unsupervised loss is a cross-entropy, on the scale of the supervised one."""

    weight_max: float = setting(1.0, "Weight of the unsupervised loss, lambda.", at_least=0, at_most=1e9)
    weight_scale: Literal["original", "paper", "none"] = setting("none", WEIGHT_SCALE)


class Losses(NamedTuple):
    total: Tensor
    """The loss to minimize."""
    parts: dict[str, Tensor]
    """The method's `parts` by name; the history has their mean over each epoch."""
    predictions: Tensor
    """[rows, classes] probabilities for the batch, detached; passed to `after_step`."""


class TrainingRows(NamedTuple):
    """The training rows, as passed to `Method.setup`."""

    num_rows: int
    classes: tuple[str, ...]
    labels: Tensor
    """[rows] class numbers, -1 if unknown, on the device."""
    class_counts: Tensor
    """[classes] the number of labels per class, over all processes, as float32."""
    device: torch.device
    inputs: Callable[[], Iterable[Tensor]]
    """Yields the preprocessed inputs of all rows, without views, on the device, a few thousand rows at a time."""
    labeled: Callable[[], tuple[Tensor, Tensor]]
    """Returns the preprocessed inputs and the class numbers of the labeled rows of all processes, at most some thousand."""
    is_mixed: bool = False
    """Inputs with two values, as categories have, beside others: they have no common scale, so distances say little."""
    prior: Prior | None = None
    """What another model says about the rows."""

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def class_without_label(self) -> str | None:
        """The name of a class without a labeled row, or None."""
        return None if self.class_counts.all() else self.classes[int(self.class_counts.argmin())]


class Method(ABC):
    """Base class of methods; subclasses are final.

    Attributes that are tensors or have a `state_dict` are saved and resumed with the run.

    Parameters
    ----------
    options
        An instance of the class's `Options`; by default one with the default values.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    views: tuple[str, ...] = ("weak",)
    """The names of the views of each input that a step needs (see `selfens.core.views`); `__init__` may set them by options."""
    parts: ClassVar[tuple[str, ...]] = ("supervised", "unsupervised")
    """The names of the parts of the loss."""
    labeled_share: ClassVar[float] = 0.0
    """Fraction of each batch drawn from labeled rows, or all of them if they are fewer, unless training.labeled_per_batch is
    set. With 0, batches are drawn from all rows, as in the paper."""
    uses_unlabeled: ClassVar[bool] = True
    """The method learns from rows without a label."""
    uses_prior: ClassVar[bool] = False
    """The method blends its targets from `TrainingRows.prior`, if there is one, to its own."""
    remark: str = ""
    """What a person should know about what was set up; the run shows it and keeps it."""
    ensemble: EnsembleTargets | None = None
    """Targets kept by row: each epoch's predictions are written to it and committed at the end."""
    teacher: EmaTeacher | None = None
    """An average of the network's weights, updated after each step; its network is the one evaluated."""
    learned: nn.Module | None = None
    """A module of the method's own, made in `setup`, whose parameters are trained with the network's."""

    def __init__(self, options: Any = None) -> None:
        self.options: Any = self.Options() if options is None else options

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:  # noqa: B027
        """Create the state, such as an ensemble or a teacher. The network is on its device, in training mode."""

    def targets(self, rows: Tensor) -> Targets | None:
        """Return the targets of `rows`, those of `batch.unlabeled`, if they are known before the step."""
        return None

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        """Return the loss of one step, in tensors only: no `.item()`, no branch on data. `weight` is w(t), a 0-d tensor."""

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:
        """Update the state from the updated network and the predictions for `rows`, those of `batch.unlabeled`."""
        if self.ensemble is not None:
            self.ensemble.write(rows, predictions)
        if self.teacher is not None:
            self.teacher.update()

    def end_epoch(self) -> None:
        """Update the state at the end of an epoch."""
        if self.ensemble is not None:
            self.ensemble.commit()

    def evaluated(self, network: nn.Module) -> nn.Module:
        """Return the network that is tested, saved for use and exported: the teacher's, if there is one."""
        return network if self.teacher is None else self.teacher.network

    def kept(self) -> dict[str, Any]:
        """Return the attributes that are tensors or have a `state_dict`, except the ensemble."""
        parts = {name: part for name, part in vars(self).items() if part is not self.ensemble}
        return {name: part for name, part in parts.items() if isinstance(part, Tensor) or hasattr(part, "state_dict")}

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything to save, except the ensemble and the evaluated teacher's network, which are saved separately."""
        state: dict[str, Tensor] = {}
        for name, part in self.kept().items():
            if isinstance(part, Tensor):
                state[name] = part
                continue
            saved = {"steps": part.steps} if self._is_evaluated(part) else part.state_dict()
            state |= {f"{name}.{key}": tensor for key, tensor in saved.items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, part in self.kept().items():
            saved = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
            if isinstance(part, Tensor):
                part.copy_(state[name])
            elif self._is_evaluated(part):
                part.steps.copy_(saved["steps"])
            else:
                part.load_state_dict(saved)

    def _is_evaluated(self, part: Any) -> bool:
        """Return True if `part` is the teacher, and `evaluated` returns its network."""
        return part is self.teacher and type(self).evaluated is Method.evaluated
