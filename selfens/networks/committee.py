"""committee: heads of different kinds for vectors, whose predictions are averaged."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfens.config import NetworkConfig
from selfens.errors import ConfigError
from selfens.networks.advisors import Advisors

LENGTH = 16.0  # norm of a typical input of a head; that of standardized features is the root of their number
DRAWS = 16
MANY_FEATURES = 64  # with more, distances between rows, which the cosines model, are too similar to help


class Dropout(nn.Dropout):
    """Dropout that uses each mask for every 16th row: on a CPU, random numbers would take a third of a step."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.rand(DRAWS, x.shape[1], device=x.device) >= self.p
        masks = (kept / (1 - self.p)).repeat(-(-len(x) // DRAWS), 1)
        return x * masks[: len(x)]


class Wide(nn.Module):
    """A linear head plus a head on hidden units."""

    def __init__(self, features: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.straight, self.output = zero(features, num_classes), zero(width, num_classes)
        self.hidden = nn.Linear(features, width)
        if not self.hidden.weight.is_meta:  # torch takes seconds to initialize a meta tensor
            nn.init.normal_(self.hidden.weight, std=1.5 / LENGTH)
            nn.init.normal_(self.hidden.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.straight(x) + self.output(self.hidden(x).relu())  # type: ignore[no-any-return]


class RandomFourierFeatures(nn.Module):
    """Fixed random cosines (Rahimi & Recht, 2007): a linear head on them approximates the kernel exp(-|x - y|^2 / features)."""

    def __init__(self, features: int, waves: int) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.empty(waves, features), requires_grad=False)
        self.phases = nn.Parameter(torch.empty(waves), requires_grad=False)
        if not self.frequencies.is_meta:
            nn.init.normal_(self.frequencies, std=math.sqrt(2) / LENGTH)
            nn.init.uniform_(self.phases, 0, 2 * math.pi)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.cos(functional.linear(x, self.frequencies, self.phases))
        return waves * (LENGTH * math.sqrt(2 / len(self.phases)))


class Committee(nn.Module):
    """A linear head, a wide one and, if there are few features, one on random cosines; for standardized features.

    `options.width` hidden units (128), and four times as many cosines. Images are flattened. If the features are of several
    models (`options.groups`), there are such heads on those of each. Advisors vote if the method has fitted them.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> None:
        super().__init__()
        every, width, dropout = math.prod(input_shape), options.width or 128, Dropout(options.dropout)
        self.groups = options.feature_groups or (every,)
        if sum(self.groups) != every:
            raise ConfigError(
                f"network.groups is '{options.groups}', but a row has {every} features; expected that sum."
            )
        self.members = nn.ModuleList()
        self.seen: list[int] = []
        """The group that each member sees."""
        for group, features in enumerate(self.groups):
            members = [zero(features, num_classes), Wide(features, num_classes, width)]
            members = [nn.Sequential(dropout, member) for member in members]
            if features <= MANY_FEATURES:
                waves = RandomFourierFeatures(features, 4 * width)
                members.append(nn.Sequential(waves, dropout, zero(4 * width, num_classes)))
            self.members.extend(members)
            self.seen += [group] * len(members)
        self.advisors = Advisors(every, num_classes)

    def heads(self, x: Tensor) -> list[Tensor]:
        """Return the logits of each head."""
        with torch.autocast(x.device.type, enabled=False):  # small, and cosines need all digits
            parts = torch.split(x.float().flatten(1), [*self.groups], dim=1)
            scaled = [part * (LENGTH / math.sqrt(part.shape[1])) for part in parts]
            return [member(scaled[group]) for member, group in zip(self.members, self.seen, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of the probabilities that all members vote for."""
        heads = torch.stack([logits.log_softmax(dim=1) for logits in self.heads(x)])
        mean = heads.logsumexp(dim=0) - math.log(len(heads))
        if not self.advisors.can_vote:
            return mean
        return self.advisors.vote(mean.exp(), self.advise(x)).log()

    def advise(self, x: Tensor) -> Tensor:
        """Return [rows, classes] what the advisors predict."""
        with torch.autocast(x.device.type, enabled=False):
            return self.advisors(x.float().flatten(1))  # type: ignore[no-any-return]


def zero(features: int, num_classes: int) -> nn.Linear:
    """Return a linear layer initialized to zero, so that all classes are equally probable at first."""
    layer = nn.Linear(features, num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
