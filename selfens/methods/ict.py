"""ICT, interpolation consistency (Verma et al., 2019): between two rows, predictions are to change linearly."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.core.teacher import EmaTeacher
from selfens.methods.base import Losses, Method, TrainingRows, WeightedOptions
from selfens.settings import setting


@final
class Ict(Method):
    """The network's prediction for a mixture of two rows is pulled toward the same mixture of the teacher's predictions.

    Each row is mixed with the one before it in the batch, which is in random order; the share is drawn once per step. The clean
    pass comes last, because running means follow the last pass. The teacher is evaluated.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "ict"
        decay: float = setting(0.999, "The momentum of the teacher's weights.", at_least=0, below=1)
        alpha: float = setting(1.0, "Shares are drawn from Beta(alpha, alpha).", at_least=0.05, at_most=100)

    teacher: EmaTeacher

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.teacher = EmaTeacher(network, self.options.decay)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        (x,), u = batch.views, batch.unlabeled
        share = terms.beta_draw(self.options.alpha, x.device)
        target = mixed(self.teacher.probabilities(x)[u], share)
        learned = network(mixed(x[u], share)).float().softmax(dim=1)
        logits = network(x)
        supervised = terms.supervised(logits, batch)
        unsupervised = terms.squared_difference(learned, target)
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, logits.detach().float().softmax(dim=1))


def mixed(rows: Tensor, share: Tensor) -> Tensor:
    """Return each row mixed with the one before it."""
    return torch.lerp(rows.roll(1, dims=0), rows, share.to(rows.dtype))
