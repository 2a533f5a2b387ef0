"""Class alignment: rescale predictions so that each class is predicted as often as it should be."""

from typing import Any

import torch
from torch import Tensor

from selfens.core.losses import normalize
from selfens.errors import ConfigError

MOMENTUM = 0.99  # of the running mean of predictions
LEAST_SHARE = 1e-6  # a class predicted less often is not divided by its share
ALIGNMENT = "Rescale predictions to the class shares of the labels (with one more of each), to equal shares, or not."


def smoothed_shares(class_counts: Tensor) -> Tensor:
    """Return the share of each class, each counted once more, so that none is zero."""
    return (class_counts + 1) / (class_counts + 1).sum()


class Alignment:
    """Distribution alignment (ReMixMatch) to the running mean of predictions.

    >>> alignment = Alignment("uniform", torch.tensor([3.0, 1.0]))
    >>> alignment.follow(torch.tensor([[0.9, 0.1]]))
    >>> alignment.align(torch.tensor([[0.5, 0.5]]))
    tensor([[0.4960, 0.5040]])
    """

    def __init__(self, kind: str, class_counts: Tensor, class_without_label: str | None = None) -> None:
        if kind == "labels" and class_without_label is not None:
            missing = f"the class '{class_without_label}' has no label; label a row of each class"
            raise ConfigError(f"method.alignment is labels, but {missing}, or set it to uniform or none.")
        self.kind = kind
        self.wanted = smoothed_shares(class_counts if kind == "labels" else torch.zeros_like(class_counts))
        self.predicted = self.wanted.clone()

    def align(self, probabilities: Tensor) -> Tensor:
        """Rescale probabilities by how often each class should be predicted over how often it is."""
        if self.kind == "none":
            return probabilities
        return normalize(probabilities * (self.wanted / self.predicted.clamp_min(LEAST_SHARE)))

    def follow(self, predictions: Tensor) -> None:
        """Move the running mean toward a batch of predictions."""
        self.predicted.lerp_(predictions.mean(dim=0), 1 - MOMENTUM)

    def state_dict(self) -> dict[str, Tensor]:
        return {"predicted": self.predicted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.predicted.copy_(state["predicted"])


def class_factors(probabilities: Tensor, counted: Tensor, wanted: Tensor, slack: float, rounds: int = 3) -> Tensor:
    """Return [classes] factors that bring each mean share over the `counted` rows between wanted/slack and wanted*slack.

    Each round gets closer. Shares within the range do not change.
    """
    factors = torch.ones_like(wanted)
    for _ in range(rounds):
        # Masked, not selected: the host would have to wait for the number of counted rows.
        share = (normalize(probabilities * factors) * counted[:, None]).sum(dim=0) / counted.sum().clamp_min(1)
        limited = torch.minimum(torch.maximum(share, wanted / slack), wanted * slack)
        factors = torch.where(counted.any(), factors * limited / share.clamp_min(LEAST_SHARE), factors)
    return factors
