"""Predictions of a network in evaluation mode, and the error on labelled rows. Every row is covered, the last few too."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from selfens.device import autocast

BATCH = 1000


@torch.no_grad()
def logits(network: nn.Module, inputs: Tensor, precision: str = "fp32") -> Tensor:
    """[rows, classes] in float32, for preprocessed inputs on the network's device."""
    was_training = network.training
    network.eval()
    try:
        with autocast(inputs.device, precision):
            return torch.cat([network(chunk).float() for chunk in _chunks(inputs)])
    finally:
        network.train(was_training)


def _chunks(inputs: Tensor) -> Iterator[Tensor]:
    return (inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH))


def error_count(network: nn.Module, inputs: Tensor, labels: Tensor, precision: str = "fp32") -> Tensor:
    """How many rows are put into the wrong class, as a tensor on the device: nothing waits for it here."""
    return (logits(network, inputs, precision).argmax(dim=1) != labels).sum()
