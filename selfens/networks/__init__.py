"""Networks by name. Each is a function (input_shape, num_classes, options) -> nn.Module that returns logits."""

from collections.abc import Callable

import torch
from torch import nn

from selfens.config import NetworkConfig
from selfens.core import memory
from selfens.errors import ConfigError, import_factory, root_cause, unknown_name
from selfens.networks.builtin import conv13, mlp, small, tiny, wrn28
from selfens.networks.committee import Committee
from selfens.networks.finetuned import FineTuned
from selfens.networks.layers import GaussianNoise, calibrate, fuse, update_running_means

__all__ = ["NETWORKS", "GaussianNoise", "build", "calibrate", "fuse", "is_factory", "update_running_means"]

BACKBONE = "backbone"
"""A pretrained network that is fine-tuned; `network.backbone` names it."""

NETWORKS: dict[str, Callable[[tuple[int, ...], int, NetworkConfig], nn.Module]] = {
    "conv13": conv13,
    "small": small,
    "tiny": tiny,
    "mlp": mlp,
    "committee": Committee,
    "wrn-28-2": wrn28,
}


def build(
    options: NetworkConfig,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    copies: int = 1,
    device: torch.device | None = None,
    pretrained: bool = True,
) -> nn.Module:
    """Build the network named by `options.name`: one of `NETWORKS`, or a user's package.module:factory.

    `copies` times its weights must fit on the device: training also needs gradients and moments. A backbone has its
    pretrained weights unless others will be loaded.
    """
    if is_factory(options.name):
        return _from_factory(options.name, input_shape, num_classes)
    if options.name == BACKBONE:
        return FineTuned(input_shape, num_classes, options, pretrained=pretrained)
    if options.name not in NETWORKS:
        hint = " A factory of your own is written package.module:factory."
        raise ConfigError(unknown_name("network", options.name, (*NETWORKS, BACKBONE)) + hint)
    if options.normalization == "full" and options.name == "committee":
        raise ConfigError("network.normalization is full, which the network 'committee' does not have; set it to mean.")
    weights, what = count_weights(options, input_shape, num_classes), f"the network '{options.name}'"
    if copies > 1:
        what = f"training {what} on inputs of shape {input_shape}"
    memory.check(4 * copies * weights, what, "choose a smaller network.width or smaller inputs", device)
    return NETWORKS[options.name](input_shape, num_classes, options)


def is_factory(name: str) -> bool:
    """Return True if `name` is module:factory, so that building the network imports a user's code."""
    return ":" in name


def count_weights(options: NetworkConfig, input_shape: tuple[int, ...], num_classes: int) -> int:
    """Count the weights of one of `NETWORKS` without allocating them."""
    with torch.device("meta"):
        network = NETWORKS[options.name](input_shape, num_classes, options)
    return sum(weight.numel() for weight in network.parameters())


def _from_factory(path: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    factory = import_factory(path, "network")
    try:
        network = factory(input_shape, num_classes)
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise ConfigError(f"{path}(input_shape, num_classes) failed: {root_cause(error)}.") from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{path} returned a {type(network).__name__}; expected a torch.nn.Module.")
    return network
