"""The error on held-out and test rows after each epoch."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfens.core.evaluate import logits
from selfens.training.distributed import Group


class EvaluatedRows(NamedTuple):
    """The rows on which one process evaluates the network, and their number in all processes."""

    inputs: Tensor
    labels: Tensor
    total: int


def misclassified(network: nn.Module, rows: EvaluatedRows, precision: str, group: Group) -> float | None:
    """Return the percentage of misclassified rows over all processes; None without rows."""
    if rows.total == 0:
        return None
    wrong = torch.zeros((), dtype=torch.int64, device=rows.labels.device)
    if len(rows.labels):  # with more processes than rows, some have none
        wrong += (logits(network, rows.inputs, precision).argmax(dim=1) != rows.labels).sum()
    return 100.0 * int(group.all_reduce(wrong)) / rows.total
