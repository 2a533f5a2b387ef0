"""committee: heads of different kinds side by side, for vectors. Its prediction is the mean of theirs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.config import NetworkConfig

LENGTH = 16.0  # of a typical input of a head; standardised features have the square root of their number
WAVES = 512
DRAWS = 16


class Dropout(nn.Dropout):
    """One draw serves every sixteenth row, because on a CPU random numbers would take a third of the time of a step."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(DRAWS, x.shape[1], device=x.device) >= self.p
        masks = (kept / (1 - self.p)).repeat(-(-len(x) // DRAWS), 1)
        return x * masks[: len(x)]


class Linear(nn.Module):
    """A linear head that starts at zero, with dropout on what it sees."""

    def __init__(self, features: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.layer = nn.Linear(features, num_classes)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.dropout(x))  # type: ignore[no-any-return]


class Waves(nn.Module):
    """Random cosines of the inputs, which stay as they were drawn: a linear head on them is nearly one with the kernel
    exp(-|x - y|^2 / features) of standardised x and y (Rahimi & Recht, 2007)."""

    def __init__(self, features: int, waves: int) -> None:
        super().__init__()
        frequencies, phases = torch.randn(waves, features), torch.rand(waves)
        self.frequencies = nn.Parameter(frequencies * math.sqrt(2) / LENGTH, requires_grad=False)
        self.phases = nn.Parameter(2 * math.pi * phases, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.cos(functional.linear(x, self.frequencies, self.phases))
        return waves * (LENGTH * math.sqrt(2 / len(self.phases)))


class Committee(nn.Module):
    """A linear head, and one on random waves; inputs are standardised features."""

    def __init__(self, features: int, num_classes: int, options: NetworkConfig) -> None:
        super().__init__()
        self.scale = LENGTH / math.sqrt(features)
        self.linear = Linear(features, num_classes, options.dropout)
        self.waves = Waves(features, options.width or WAVES)
        self.of_waves = Linear(len(self.waves.phases), num_classes, options.dropout)

    def heads(self, x: Tensor) -> list[Tensor]:
        """The logits of each head."""
        with torch.autocast(x.device.type, enabled=False):  # small, and cosines of long vectors need the digits
            x = x.float().flatten(1) * self.scale
            return [self.linear(x), self.of_waves(self.waves(x))]

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the heads' mean probabilities."""
        heads = torch.stack([logits.log_softmax(dim=1) for logits in self.heads(x)])
        return heads.logsumexp(dim=0) - math.log(len(heads))


def committee(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """Two heads on standardised features, `options.width` waves (512); images are flattened."""
    return Committee(math.prod(input_shape), num_classes, options)
