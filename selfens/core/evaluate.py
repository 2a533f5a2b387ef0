"""Predictions of a network in evaluation mode, and the error on labelled rows. Every row is covered, the last few too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from selfens.core.device import autocast

BATCH = 1000


def logits(network: nn.Module, inputs: Tensor, precision: str = "fp32") -> Tensor:
    """[rows, classes] in float32, for preprocessed inputs on the network's device."""
    return torch.cat([_logits_of_chunk(network, inputs[chunk], precision) for chunk in _chunks(len(inputs))])


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, by which the network can be evaluated later as it is now."""
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            # Back with its own weights it would copy them into new memory on a GPU, and the optimizer would train the old.
            raise TypeError(f"{type(module).__name__} cannot be lent other weights")
    named = chain(network.named_parameters(), network.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named}


def error_counts(
    network: nn.Module, inputs: Tensor, labels: Tensor, precision: str = "fp32", state: dict[str, Tensor] | None = None
) -> Iterator[Tensor]:
    """For one chunk of rows after the other, how many are put into the wrong class, as tensors: nothing waits for them here.

    state  evaluate with these parameters and buffers instead of the network's own
    """
    for chunk in _chunks(len(inputs)):
        predicted = _logits_of_chunk(network, inputs[chunk], precision, state).argmax(dim=1)
        yield (predicted != labels[chunk]).sum()


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, start + BATCH) for start in range(0, rows, BATCH))


@torch.no_grad()
def _logits_of_chunk(
    network: nn.Module, chunk: Tensor, precision: str, state: dict[str, Tensor] | None = None
) -> Tensor:
    with _in_evaluation_mode(network), autocast(chunk.device, precision):
        y: Tensor = network(chunk) if state is None else functional_call(network, state, (chunk,))
        return y.float()


@contextmanager
def _in_evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Afterwards each part is as it was: one may be frozen in evaluation mode, or in training beneath one that is not."""
    in_training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
