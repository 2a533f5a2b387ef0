"""Method: how many views of an input, what the loss is, what to remember from epoch to epoch.

A method knows nothing of optimizers, loops, devices or files. Two members are required, the others have defaults. To add one,
write a final subclass in a file of its own and name it in `selfens.methods.METHODS`; the trainer, the command line and the
parametrised tests need nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from selfens.core.batch import Batch
from selfens.core.targets import EnsembleTargets, Targets


class Losses(NamedTuple):
    supervised: Tensor
    unsupervised: Tensor
    total: Tensor
    probabilities: Tensor
    """Of the first view, [rows, classes], without gradient."""


class Method(nn.Module, ABC):
    num_views: int
    """How many times each input is augmented and shown in one step."""
    uses_unlabeled: bool = True
    """Whether rows without a label are learnt from."""
    ensemble: EnsembleTargets | None = None
    """The ensemble kept from epoch to epoch, if there is one; it is saved and resumed with the run."""

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        """The loss of one step, in tensors alone: no `.item()`, no branch on data. `weight` is w(t), zero-dimensional."""

    def targets(self, rows: Tensor) -> Targets | None:
        """What the predictions of `rows` are compared with, if that is known before the step."""
        return None

    def after_step(self, rows: Tensor, losses: Losses) -> None:
        """Remember what this step predicted."""

    def end_epoch(self) -> None:
        """Bring what was remembered into effect."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network that is tested, saved for use and exported."""
        return network
