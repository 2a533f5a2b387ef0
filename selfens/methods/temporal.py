"""Temporal ensembling (Algorithm 2): one pass, predictions drawn towards the ensemble of those of earlier epochs."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from selfens.core.batch import Batch
from selfens.core.losses import CONSISTENCY, certainty, cross_entropy
from selfens.core.targets import EnsembleTargets, Targets
from selfens.methods.base import Losses, Method


@final
class Temporal(Method):
    """What is averaged are the probabilities of the training pass itself: noise, dropout and augmentation included.

    skip_unseen  no unsupervised loss for rows the ensemble has not seen; the authors' code compares them with zeros
    certainty    rows whose targets are certain count more (`losses.certainty`); those not seen do not count then
    """

    num_views = 1

    def __init__(
        self,
        ensemble: EnsembleTargets,
        consistency: str = "squared",
        skip_unseen: bool = True,
        certainty: bool = False,
    ) -> None:
        super().__init__()
        self.ensemble: EnsembleTargets = ensemble
        self.consistency = CONSISTENCY[consistency]
        self.skip_unseen = skip_unseen
        self.certainty = certainty

    def targets(self, rows: Tensor) -> Targets:
        return self.ensemble.get(rows)

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        assert targets is not None
        logits = network(batch.views[0])
        z = logits.float().softmax(dim=1)
        supervised = cross_entropy(logits, batch.labels, batch.labelled)
        unsupervised = self.consistency(z, targets.probabilities, self._counted(targets))
        return Losses(supervised, unsupervised, supervised + weight * unsupervised, z.detach())

    def _counted(self, targets: Targets) -> Tensor | None:
        """Which rows count in the unsupervised loss, or how much."""
        if self.certainty:
            return certainty(targets.probabilities, targets.known)
        return targets.known if self.skip_unseen else None

    def after_step(self, rows: Tensor, losses: Losses) -> None:
        self.ensemble.write(rows, losses.probabilities)

    def end_epoch(self) -> None:
        self.ensemble.commit()
