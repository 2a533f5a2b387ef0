"""Predictions of a network in evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from selfens.core.device import autocast


@torch.no_grad()
def logits(network: nn.Module, inputs: Tensor, precision: str = "fp32", batch: int = 1000) -> Tensor:
    """Return [rows, classes] in float32, for preprocessed inputs on the network's device."""
    with evaluation_mode(network), autocast(inputs.device, precision):
        return torch.cat([network(part).float() for part in torch.split(inputs, batch)])


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and restore the mode of each module: a part may be frozen in evaluation mode."""
    in_training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
