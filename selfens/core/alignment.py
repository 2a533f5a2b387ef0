"""What is done to predictions before they become targets: sharpen, align to a class distribution, keep the confident."""

from __future__ import annotations

import torch
from torch import Tensor


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Raised to 1/temperature and normalised; a temperature below 1 makes the probable more probable.

    >>> sharpen(torch.tensor([[0.5, 0.25, 0.25]]), 0.5)
    tensor([[0.6667, 0.1667, 0.1667]])
    """
    return normalize(probabilities ** (1 / temperature))


def align(probabilities: Tensor, present: Tensor, wanted: Tensor) -> Tensor:
    """Distribution alignment (ReMixMatch): classes predicted more often than they should be lose probability.

    present  [classes] how often each class is predicted, on average
    wanted   [classes] how often it should be

    >>> align(torch.tensor([[0.5, 0.5]]), torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5]))
    tensor([[0.2000, 0.8000]])
    """
    return normalize(probabilities * (wanted / present.clamp_min(1e-6)))


def normalize(probabilities: Tensor) -> Tensor:
    """Rows that sum to 1."""
    return probabilities / probabilities.sum(dim=1, keepdim=True).clamp_min(1e-12)


class RunningDistribution:
    """[classes] an exponential average of the mean prediction, starting at `initial`."""

    def __init__(self, initial: Tensor, momentum: float = 0.99) -> None:
        self.mean, self.momentum = initial.clone(), momentum

    @torch.no_grad()
    def update(self, probabilities: Tensor) -> None:
        self.mean.lerp_(probabilities.mean(dim=0), 1 - self.momentum)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.mean.copy_(state["mean"])
