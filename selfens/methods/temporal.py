"""Temporal ensembling (Algorithm 2): one pass, predictions pulled toward the average of earlier epochs' predictions."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import EnsembleTargets, Targets
from selfens.methods.base import Losses, Method, TrainingRows, WeightedOptions
from selfens.settings import setting


@final
class Temporal(Method):
    """The averaged predictions are those of the training pass, with noise, dropout and augmentation."""

    @dataclass(frozen=True, kw_only=True)
    class Options(WeightedOptions):
        name: ClassVar[str] = "temporal"
        decay: float = setting(0.6, "The ensemble's momentum, alpha.", at_least=0, below=1)
        consistency: Literal["squared", "cross_entropy"] = setting("squared", "Loss between two predictions.")
        unseen_rows: Literal["skip", "zero"] = setting(
            "skip",
            "Rows without a target yet: skip their unsupervised loss, or use zeros as targets, as in the authors' code.",
        )

    uses_prior = True
    ensemble: EnsembleTargets

    def setup(self, network: nn.Module, rows: TrainingRows) -> None:
        size, decay = (rows.num_rows, rows.num_classes), self.options.decay
        self.ensemble = EnsembleTargets(*size, decay, rows.device, prior=rows.prior)

    def targets(self, rows: Tensor) -> Targets:
        return self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        assert targets is not None
        logits = network(batch.views[0])
        z = logits.float().softmax(dim=1)
        supervised = terms.supervised(logits, batch)
        compare = terms.CONSISTENCY[self.options.consistency]
        counted = targets.known if self.options.unseen_rows == "skip" else None
        unsupervised = compare(z[batch.unlabeled], targets.probabilities, counted)
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z.detach())
