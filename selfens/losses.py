"""The two terms of the loss: pure functions of tensors.

Both are divided by the whole batch, as in the paper. Dividing the cross-entropy by the number of labelled rows instead
would change its weight against the other term by N/M, which is 146 for SVHN with 500 labels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, labels: Tensor, labelled: Tensor) -> Tensor:
    """Cross-entropy summed over the labelled rows, divided by all rows of the batch.

    A batch without labels gives zero. `labels` may hold anything where `labelled` is False.
    """
    known = torch.where(labelled, labels, 0)
    each = functional.cross_entropy(logits.float(), known, reduction="none")
    return torch.where(labelled, each, 0.0).sum() / logits.shape[0]


def squared_difference(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Squared difference of two sets of probabilities, summed, divided by rows times classes.

    Gradients flow into both. Rows where `counted` is False add nothing; the divisor stays the whole batch.
    """
    each = (first - second).square().sum(dim=1)
    if counted is not None:
        each = torch.where(counted, each, 0.0)
    return each.sum() / first.numel()


def consistency_cross_entropy(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Cross-entropy of probabilities `first` under `second`, over rows times classes; the paper's weaker alternative.

    The predictions are floored at 1e-8 so that a certain and wrong one gives a large loss, not an infinite one.
    """
    each = -(second * first.clamp_min(1e-8).log()).sum(dim=1)
    if counted is not None:
        each = torch.where(counted, each, 0.0)
    return each.sum() / first.numel()


CONSISTENCY = {"squared": squared_difference, "cross_entropy": consistency_cross_entropy}
