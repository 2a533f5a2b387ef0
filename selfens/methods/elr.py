"""ELR, early-learning regularization (Liu et al., 2020), for labels of which some are wrong."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import EnsembleTargets, Targets
from selfens.methods.base import Losses, Method, TrainingRows, WeightedOptions
from selfens.settings import setting

SMALLEST = 1e-4  # probabilities are kept this far from 0 and 1


@final
class Elr(Method):
    """Temporal ensembling with another loss: predictions are held to what was learned early, before wrong labels are learned.

    The target includes this step's prediction, without gradient, and its start at zero is not corrected. Rows without a label
    have only the regularization, which is negative.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "elr"
        weight_max: float = setting(3.0, "Weight of the regularization, lambda.", at_least=0, at_most=1e9)
        decay: float = setting(0.7, "Momentum of the targets, beta.", at_least=0, below=1)

    ensemble: EnsembleTargets

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        self.ensemble = EnsembleTargets(rows.num_rows, rows.num_classes, self.options.decay, rows.device)

    def targets(self, rows: Tensor) -> Targets:
        return self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        assert targets is not None
        logits, decay, u = network(batch.views[0]), self.options.decay, batch.unlabeled
        p = logits.float().softmax(dim=1).clamp(SMALLEST, 1 - SMALLEST)
        predictions = terms.normalize(p.detach())
        before = (1 - decay**targets.count)[:, None] * targets.probabilities  # uncorrected
        target = decay * before + (1 - decay) * predictions[u]
        supervised = terms.supervised(logits, batch)
        unsupervised = (1 - (target * p[u]).sum(dim=1)).log().mean()
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, predictions)
