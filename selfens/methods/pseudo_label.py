"""Pseudo-labels (Lee, 2013): the class that the network predicts for an unlabeled row is its label in this step."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from selfens.core import losses as terms
from selfens.core.batch import Batch
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method, UnscaledOptions
from selfens.settings import setting


@final
class PseudoLabel(Method):
    """One pass, whose largest class is the label, however uncertain. Labeled rows have no pseudo-label."""

    @dataclass(frozen=True, kw_only=True)
    class Options(UnscaledOptions):
        name: ClassVar[str] = "pseudo-label"
        weight_max: float = setting(3.0, "Weight of the unsupervised loss, alpha.", at_least=0, at_most=1e9)

    labeled_share = 1 / 9  # the paper's 32 labeled rows beside 256 others

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits, u = network(batch.views[0]), batch.unlabeled
        z = logits.detach().float().softmax(dim=1)
        supervised = terms.supervised(logits, batch)
        unsupervised = terms.cross_entropy(logits[u], z[u].argmax(dim=1), ~batch.labeled[u])
        parts = {"supervised": supervised, "unsupervised": unsupervised}
        return Losses(supervised + weight * unsupervised, parts, z)
