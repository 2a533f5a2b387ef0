"""The terms of the loss: pure functions of tensors.

Both terms are divided by the whole batch, as in the paper. Dividing the cross-entropy by the number of labeled rows would
change its weight against the other term by N/M, which is 146 for SVHN with 500 labels. Batches of the split sampler have a
fixed number of labeled rows, and each term is the mean over its own part.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.core.batch import Batch


def supervised(logits: Tensor, batch: Batch) -> Tensor:
    """The cross-entropy of a batch, divided as its sampler asks for."""
    if batch.first:
        return functional.cross_entropy(logits[: batch.first].float(), batch.labels[: batch.first])
    return cross_entropy(logits, batch.labels, batch.labeled)


def joined(*parts: Tensor) -> Tensor:
    """The rows of several tensors, one tensor after the other."""
    return torch.cat(parts)


def mean(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).mean()


def joint_pass(network: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The logits of several sets of inputs from one pass, so that they share the batch statistics."""
    return network(torch.cat(inputs)).split([len(part) for part in inputs])  # type: ignore[no-any-return]


def cross_entropy(logits: Tensor, labels: Tensor, labeled: Tensor) -> Tensor:
    """Cross-entropy summed over the labeled rows, divided by all rows of the batch.

    A batch without labels gives zero. `labels` may hold anything where `labeled` is False.
    """
    known = torch.where(labeled, labels, 0)
    each = functional.cross_entropy(logits.float(), known, reduction="none")
    return torch.where(labeled, each, 0.0).sum() / logits.shape[0]


def squared_difference(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Squared difference of two sets of probabilities, summed, divided by rows times classes.

    Gradients flow into both. `counted` says which rows count; the divisor stays the whole batch.
    """
    return _sum(counted, (first - second).square().sum(dim=1)) / first.numel()


def consistency_cross_entropy(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Cross-entropy of probabilities `first` under `second`, over rows times classes; the paper's weaker alternative.

    The predictions are floored at 1e-8 so that a certain and wrong one gives a large loss, not an infinite one.
    """
    return _sum(counted, -(second * first.clamp_min(1e-8).log()).sum(dim=1)) / first.numel()


def soft_cross_entropy(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Cross-entropy to the distributions `targets` over the rows that are `counted`, divided by all rows."""
    return _sum(counted, -(targets * logits.float().log_softmax(dim=1)).sum(dim=1)) / logits.shape[0]


def _sum(counted: Tensor | None, each: Tensor) -> Tensor:
    return (each if counted is None else torch.where(counted, each, 0.0)).sum()


CONSISTENCY = {"squared": squared_difference, "cross_entropy": consistency_cross_entropy}


def align(probabilities: Tensor, predicted: Tensor, wanted: Tensor) -> Tensor:
    """Distribution alignment (ReMixMatch): classes predicted more often than they should be lose probability.

    predicted  [classes] how often each class is predicted, on average
    wanted     [classes] how often it should be

    >>> align(torch.tensor([[0.5, 0.5]]), torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5]))
    tensor([[0.2000, 0.8000]])
    """
    return normalized(probabilities * (wanted / predicted.clamp_min(1e-6)))


def class_factors(probabilities: Tensor, counted: Tensor, wanted: Tensor, slack: float, rounds: int = 3) -> Tensor:
    """[classes] by what to multiply distributions so that each class's mean share over the rows that are `counted` moves
    into wanted/slack to wanted*slack: nearer with every round. What lies within stays as it is: nothing says that classes
    are equally frequent.

    >>> class_factors(torch.tensor([[0.5, 0.5], [0.7, 0.3]]), torch.tensor([True, True]), torch.tensor([0.5, 0.5]), 1.5)
    tensor([1., 1.])
    """
    factors = torch.ones_like(wanted)
    for _ in range(rounds):
        share = normalized(probabilities * factors)[counted].sum(dim=0) / counted.sum().clamp_min(1)
        limited = torch.minimum(torch.maximum(share, wanted / slack), wanted * slack)
        factors = torch.where(counted.any(), factors * limited / share.clamp_min(1e-6), factors)
    return factors


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Distributions raised to the power 1/temperature: the lower, the more of it goes to the largest class.

    >>> sharpen(torch.tensor([[0.8, 0.2]]), 0.5)
    tensor([[0.9412, 0.0588]])
    """
    largest = probabilities.amax(dim=1, keepdim=True).clamp_min(
        1e-12
    )  # or all powers could be too small to be told from 0
    return normalized((probabilities / largest) ** (1 / temperature))


def normalized(weights: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-12)
