"""The terms of the loss: pure functions of tensors.

Both terms are divided by the size of the whole batch, as in the paper; dividing the cross-entropy by the number of labeled
rows would multiply its weight by N/M. If batches have a fixed number of labeled rows, each term is the mean over its own rows.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.core.batch import Batch


def supervised(logits: Tensor, batch: Batch) -> Tensor:
    """Return the cross-entropy of a batch. If `num_labeled` is set, it is the mean over those rows."""
    if batch.num_labeled:
        return functional.cross_entropy(logits[: batch.num_labeled].float(), batch.labels[: batch.num_labeled])
    return cross_entropy(logits, batch.labels, batch.labeled)


def joint_pass(network: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of each of `inputs`, from a single pass in which they share the batch statistics."""
    return network(torch.cat(inputs)).split([len(part) for part in inputs])  # type: ignore[no-any-return]


def cross_entropy(logits: Tensor, labels: Tensor, labeled: Tensor) -> Tensor:
    """Return the cross-entropy summed over the labeled rows, divided by all rows of the batch.

    A batch without labels gives zero. `labels` may hold anything where `labeled` is False.
    """
    known = torch.where(labeled, labels, 0)
    per_row = functional.cross_entropy(logits.float(), known, reduction="none")
    return torch.where(labeled, per_row, 0.0).sum() / logits.shape[0]


def squared_difference(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the mean squared difference of two [rows, classes] tensors of probabilities.

    Gradients flow into both. Rows that are not `counted` add nothing to the sum, but do count in the divisor.
    """
    return _sum(counted, (first - second).square().sum(dim=1)) / first.numel()


def consistency_cross_entropy(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return -sum(second * log(first)) divided by rows times classes: the paper's weaker variant.

    `first` is clamped at 1e-8, so that a confident wrong prediction gives a large but finite loss.
    """
    return _sum(counted, -(second * first.clamp_min(1e-8).log()).sum(dim=1)) / first.numel()


def soft_cross_entropy(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Return the cross-entropy with soft `targets`, summed over the `counted` rows and divided by all rows."""
    return _sum(counted, -(targets * logits.float().log_softmax(dim=1)).sum(dim=1)) / logits.shape[0]


def divergence(probabilities: Tensor, logits: Tensor) -> Tensor:
    """Return the mean Kullback-Leibler divergence of the predictions `logits` from `probabilities`."""
    return functional.kl_div(logits.float().log_softmax(dim=1), probabilities, reduction="batchmean")


def mutual_exclusivity(probabilities: Tensor) -> Tensor:
    """Return 1 - sum_k z_k prod_(l != k) (1 - z_l), summed over rows, over rows times classes: 0 if all rows are one-hot."""
    others = (1 - probabilities).clamp_min(1e-7).log()
    alone = (others.sum(dim=1, keepdim=True) - others).exp()
    return (1 - (probabilities * alone).sum(dim=1)).sum() / probabilities.numel()


def beta_draw(alpha: float, device: torch.device) -> Tensor:
    """Return a 0-d draw from Beta(alpha, alpha)."""
    first, second = torch._standard_gamma(torch.full((2,), alpha, device=device)).clamp_min(1e-30).unbind()
    return first / (first + second)


def _sum(counted: Tensor | None, per_row: Tensor) -> Tensor:
    return (per_row if counted is None else torch.where(counted, per_row, 0.0)).sum()


CONSISTENCY = {"squared": squared_difference, "cross_entropy": consistency_cross_entropy}


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Raise distributions to the power 1/temperature and normalize. A low temperature favors the largest class.

    >>> sharpen(torch.tensor([[0.8, 0.2]]), 0.5)
    tensor([[0.9412, 0.0588]])
    """
    largest = probabilities.amax(dim=1, keepdim=True).clamp_min(1e-12)  # avoids underflow at low temperatures
    return normalize((probabilities / largest) ** (1 / temperature))


def normalize(weights: Tensor) -> Tensor:
    """Normalize rows to sum to 1. All-zero rows stay zero."""
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-12)
