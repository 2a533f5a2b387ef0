"""The terms of the loss: pure functions of tensors.

Both terms are divided by the whole batch, as in the paper. Dividing the cross-entropy by the number of labelled rows would
change its weight against the other term by N/M, which is 146 for SVHN with 500 labels. Batches of the split sampler have a
fixed number of labelled rows, and each term is the mean over its own part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.core.batch import Batch


def supervised(logits: Tensor, batch: Batch) -> Tensor:
    """The cross-entropy of a batch, divided as its sampler asks for."""
    if batch.first:
        return functional.cross_entropy(logits[: batch.first].float(), batch.labels[: batch.first])
    return cross_entropy(logits, batch.labels, batch.labelled)


def joint_pass(network: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The logits of several sets of inputs from one pass, so that they share the batch statistics."""
    return network(torch.cat(inputs)).split([len(part) for part in inputs])  # type: ignore[no-any-return]


def cross_entropy(logits: Tensor, labels: Tensor, labelled: Tensor) -> Tensor:
    """Cross-entropy summed over the labelled rows, divided by all rows of the batch.

    A batch without labels gives zero. `labels` may hold anything where `labelled` is False.
    """
    known = torch.where(labelled, labels, 0)
    each = functional.cross_entropy(logits.float(), known, reduction="none")
    return torch.where(labelled, each, 0.0).sum() / logits.shape[0]


def squared_difference(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Squared difference of two sets of probabilities, summed, divided by rows times classes.

    Gradients flow into both. `counted` says which rows count, or with numbers how much each does; the divisor stays the
    whole batch.
    """
    return _count(counted, (first - second).square().sum(dim=1)).sum() / first.numel()


def consistency_cross_entropy(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Cross-entropy of probabilities `first` under `second`, over rows times classes; the paper's weaker alternative.

    The predictions are floored at 1e-8 so that a certain and wrong one gives a large loss, not an infinite one.
    """
    return _count(counted, -(second * first.clamp_min(1e-8).log()).sum(dim=1)).sum() / first.numel()


def _count(counted: Tensor | None, each: Tensor) -> Tensor:
    if counted is None:
        return each
    return torch.where(counted, each, 0.0) if counted.dtype == torch.bool else counted * each


def certainty(targets: Tensor, known: Tensor) -> Tensor:
    """[rows] how much each row should count: 1 - H/log C, H the entropy of its target, over the mean of the known rows.

    A certain target has 1 and one that knows nothing 0 before the division, which keeps the size of the loss: where all
    are equally certain, each counts once. A row that is not known counts nothing.

    >>> certainty(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([True, True]))
    tensor([2., 0.])
    """
    entropy = torch.special.entr(targets).sum(dim=1) / math.log(max(targets.shape[1], 2))
    each = torch.where(known, (1 - entropy).clamp_min(0), 0.0)
    return each * known.sum() / each.sum().clamp_min(1e-6)


CONSISTENCY = {"squared": squared_difference, "cross_entropy": consistency_cross_entropy}
