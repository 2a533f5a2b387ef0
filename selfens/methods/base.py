"""Method: which views of an input, what the loss is, what to remember from step to step and from epoch to epoch.

A method knows nothing of optimizers, loops or files. To add one, write a file with a final subclass and its `Options`, and
name it in `selfens.methods.METHODS`: the trainer, the command line, the config and the tests over the registry need nothing
else. A method is a plain class, and its file imports torch only for type checks (`core` loads it when it is used), because
the config reads the options and must be quick to import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from selfens.settings import Section, setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from selfens.core.batch import Batch
    from selfens.core.targets import EnsembleTargets, Targets


WEIGHT_SCALE = (
    "w_max times M/N always (paper), never (none), or unless the whole main set is labeled (the authors' code). Never if "
    "batches have a fixed number of labeled rows (training.labeled_per_batch)."
)


@dataclass(frozen=True, kw_only=True)
class Options(Section):
    """What can be set of a method; a subclass adds its fields. `config.method` is one of these."""

    section: ClassVar[str] = "method"
    name: ClassVar[str] = "own"
    """The method's name in the registry."""
    place: ClassVar[str] = ""
    """The option, if there is one, that only says where the method's memory is kept: in `IN_MEMORY`, or a file's path."""

    @classmethod
    def _noun(cls) -> str:
        return f"{cls.name} option"


@dataclass(frozen=True, kw_only=True)
class WeightedOptions(Options):
    """Options of a method with an unsupervised loss."""

    weight_max: float = setting(
        30.0, "The unsupervised loss's largest weight before scaling, w_max.", at_least=0, at_most=1e9
    )
    weight_scale: Literal["original", "paper", "none"] = setting("original", WEIGHT_SCALE)


@dataclass(frozen=True, kw_only=True)
class UnscaledOptions(WeightedOptions):
    """The same, of a method whose unsupervised loss is a cross-entropy, as large as the supervised one."""

    weight_max: float = setting(1.0, "The unsupervised loss's weight, lambda.", at_least=0, at_most=1e9)
    weight_scale: Literal["original", "paper", "none"] = setting("none", WEIGHT_SCALE)


class Losses(NamedTuple):
    total: Tensor
    """What is minimized."""
    parts: dict[str, Tensor]
    """What the history shows of each epoch, as means over its steps: the method's `parts`, by name."""
    predictions: Tensor
    """[rows, classes] probabilities for the batch, without gradient: what `after_step` is told of."""


class TrainingRows(NamedTuple):
    """What a method may know of the rows it is trained on."""

    num_rows: int
    classes: tuple[str, ...]
    """Their names."""
    labels: Tensor
    """[rows] class numbers, -1 if unknown, on the device."""
    class_counts: Tensor
    """[classes] the labels of each class, of all processes together, as float32."""
    device: torch.device
    inputs: Callable[[], Iterable[Tensor]]
    """Gives the preprocessed inputs of all rows, without views, some thousand rows at a time on the device."""

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def without_label(self) -> str | None:
        """A class that no row is labeled with."""
        return None if self.class_counts.all() else self.classes[int(self.class_counts.argmin())]


class Method(ABC):
    """Subclasses are final. Attributes that are tensors, or have a `state_dict`, are saved and resumed with the run."""

    Options: ClassVar[type[Options]] = Options
    views: ClassVar[tuple[str, ...]] = ("weak",)
    """The names of the views of each input that a step needs (see `selfens.core.views`)."""
    parts: ClassVar[tuple[str, ...]] = ("supervised", "unsupervised")
    """The names of the loss's parts."""
    labeled_share: ClassVar[float] = 0.0
    """Which part of a batch is drawn from the labeled rows, if training.labeled_per_batch does not say it; a batch never has
    more of them than there are. 0: batches are drawn from all rows, as in the paper."""
    uses_unlabeled: ClassVar[bool] = True
    """Whether rows without a label are learned from."""
    ensemble: EnsembleTargets | None = None
    """Targets kept by row from epoch to epoch, if there are any."""

    options: Any
    """An instance of `Options`."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:  # noqa: B027
        """Build what is remembered: targets, a teacher. The network is on its device, in training mode."""

    def targets(self, rows: Tensor) -> Targets | None:
        """What the predictions of `rows`, those of `batch.unlabeled`, are compared with, if known before the step."""
        return None

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        """The loss of one step, only in tensors: no `.item()`, no branch on data. `weight` is w(t), zero-dimensional."""

    def after_step(self, network: nn.Module, rows: Tensor, predictions: Tensor) -> None:  # noqa: B027
        """Remember this step: the updated network, and the predictions made for `rows`, those of `batch.unlabeled`."""

    def end_epoch(self) -> None:  # noqa: B027
        """Bring what was remembered into effect."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network that is tested, saved for use and exported."""
        return network

    def state_dict(self) -> dict[str, Tensor]:
        """All there is to save; the ensemble is saved apart, because its rows may be divided among processes."""
        state = self.tensors()
        for name, part in self.stateful().items():
            state |= {f"{name}.{key}": tensor for key, tensor in part.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])
        for name, part in self.stateful().items():
            own = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
            part.load_state_dict(own)

    def tensors(self) -> dict[str, Tensor]:
        """The attributes that are tensors."""
        from torch import Tensor

        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def stateful(self) -> dict[str, Any]:
        """The attributes that have a `state_dict`, but for the ensemble."""
        return {
            name: part for name, part in vars(self).items() if hasattr(part, "state_dict") and part is not self.ensemble
        }
