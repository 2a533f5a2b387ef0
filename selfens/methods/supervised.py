"""Supervised-only: cross-entropy on the labelled rows; the others are in the batch and feed the batch means alone."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from selfens.core.batch import Batch
from selfens.core.losses import cross_entropy
from selfens.core.targets import Targets
from selfens.methods.base import Losses, Method


@final
class Supervised(Method):
    num_views = 1
    uses_unlabeled = False

    def losses(self, network: nn.Module, batch: Batch, targets: Targets | None, weight: Tensor) -> Losses:
        logits = network(batch.views[0])
        supervised = cross_entropy(logits, batch.labels, batch.labelled)
        probabilities = logits.detach().float().softmax(dim=1)
        return Losses(supervised, torch.zeros_like(supervised), supervised, probabilities)
