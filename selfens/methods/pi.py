"""The Π-model (Algorithm 1): two views of each input, two passes, predictions drawn towards each other."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from selfens.core.batch import Batch
from selfens.core.losses import CONSISTENCY, cross_entropy
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method


@final
class Pi(Method):
    """The passes are separate, each with its own batch means; cross-entropy is on the first; gradients flow into both."""

    num_views = 2

    def __init__(self, consistency: str = "squared") -> None:
        super().__init__()
        self.consistency = CONSISTENCY[consistency]

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        first, second = network(batch.views[0]), network(batch.views[1])
        z, z_tilde = first.float().softmax(dim=1), second.float().softmax(dim=1)
        supervised = cross_entropy(first, batch.labels, batch.labelled)
        unsupervised = self.consistency(z, z_tilde)
        return Losses(supervised, unsupervised, supervised + weight * unsupervised, z.detach())
