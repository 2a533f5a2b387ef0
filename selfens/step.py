"""One training step: batch, losses, gradients, Adam, running means, what the method remembers.

`Step._body` is the whole of it. Numbers that change with time are zero-dimensional tensors filled in place, and what is
reported stays on the device until the end of the epoch, so nothing in here waits for a result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfens.data.loader import Loader
from selfens.device import autocast
from selfens.methods.base import Losses, Method
from selfens.networks.layers import update_running_means
from selfens.optim import Adam


class EpochMeans(NamedTuple):
    """The means over an epoch's steps, read once at its end."""

    supervised: float
    unsupervised: float
    total: float
    spread: float
    """The largest difference between two rows' probabilities of the same class: near 0 when all predictions are alike."""


class Step:
    def __init__(
        self,
        *,
        network: nn.Module,
        method: Method,
        optimizer: Adam,
        loader: Loader,
        num_classes: int,
        precision: str = "fp32",
    ) -> None:
        self.network, self.method, self.optimizer, self.loader = network, method, optimizer, loader
        self.precision = precision
        self.device = loader.inputs.device
        self.weight = torch.zeros((), device=self.device)  # w(t)
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.low = torch.ones(num_classes, device=self.device)
        self.high = torch.zeros(num_classes, device=self.device)
        self.steps_done = 0

    def set(self, *, learning_rate: float, beta1: float, weight: float) -> None:
        self.optimizer.learning_rate.fill_(learning_rate)
        self.optimizer.beta1.fill_(beta1)
        self.weight.fill_(weight)

    def __call__(self, rows: Tensor) -> None:
        self._body(rows)
        self.steps_done += 1

    def _body(self, rows: Tensor) -> None:
        losses = self._losses(rows)
        gradients = torch.autograd.grad(losses.total, self.optimizer.parameters, allow_unused=True)
        self.optimizer.step(gradients)
        update_running_means(self.network)
        self.method.after_step(rows, losses)
        self._record(losses)

    def _losses(self, rows: Tensor) -> Losses:
        batch = self.loader.batch(rows, self.method.num_views)
        targets = self.method.targets(rows)
        with autocast(self.device, self.precision):
            return self.method.losses(self.network, batch, targets, self.weight)

    @torch.no_grad()
    def _record(self, losses: Losses) -> None:
        self.sums += torch.stack([losses.supervised, losses.unsupervised, losses.total])
        self.low.copy_(torch.minimum(self.low, losses.probabilities.amin(dim=0)))
        self.high.copy_(torch.maximum(self.high, losses.probabilities.amax(dim=0)))

    def read(self) -> EpochMeans:
        """The epoch's means; waits for the device, and starts the next epoch's sums."""
        supervised, unsupervised, total = (self.sums / max(self.steps_done, 1)).tolist()
        result = EpochMeans(supervised, unsupervised, total, float((self.high - self.low).max()))
        self.sums.zero_()
        self.low.fill_(1)
        self.high.zero_()
        self.steps_done = 0
        return result

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint in the middle of an epoch needs besides network, optimizer and ensemble."""
        return {"sums": self.sums, "low": self.low, "high": self.high}

    def load_state(self, state: dict[str, Tensor], steps_done: int) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self.steps_done = steps_done
