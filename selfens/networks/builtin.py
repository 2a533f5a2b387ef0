"""The built-in networks: conv13 (the paper's Table 5), small, tiny, mlp, and wrn-28-2 (a wide residual network)."""

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from selfens.config import NetworkConfig
from selfens.errors import ConfigError
from selfens.networks.layers import (
    LEAKY_SLOPE,
    BatchNorm,
    BatchNormConv2d,
    FusedSequential,
    GaussianNoise,
    Linear,
    NormalizedConv2d,
    NormalizedLinear,
)


def conv13(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """13 layers; the first have `options.width` channels (default 128). 3,121,812 parameters for 32x32 RGB and 10 classes."""
    # two poolings and a 'valid' 3x3 convolution reduce 12 pixels to one
    _check_images("conv13", input_shape, 12, "network.name=small for smaller images, mlp for features")
    conv, dense = _layers(options)
    channels, width = input_shape[0], options.width or 128
    # fmt: off
    return FusedSequential(OrderedDict(
        noise   = GaussianNoise(options.noise),
        conv1a  = conv(channels,  width,     3, padding="same"),
        conv1b  = conv(width,     width,     3, padding="same"),
        conv1c  = conv(width,     width,     3, padding="same"),
        pool1   = nn.MaxPool2d(2),
        drop1   = nn.Dropout(options.dropout),
        conv2a  = conv(width,     2 * width, 3, padding="same"),
        conv2b  = conv(2 * width, 2 * width, 3, padding="same"),
        conv2c  = conv(2 * width, 2 * width, 3, padding="same"),
        pool2   = nn.MaxPool2d(2),
        drop2   = nn.Dropout(options.dropout),
        conv3a  = conv(2 * width, 4 * width, 3, padding="valid"),
        conv3b  = conv(4 * width, 2 * width, 1),
        conv3c  = conv(2 * width, width,     1),
        pool3   = nn.AdaptiveAvgPool2d(1),
        flatten = nn.Flatten(),
        dense   = dense(width, num_classes),
    ))
    # fmt: on


def small(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """Five layers, for images of at least 4x4; `options.width` channels (default 24), doubled after the pooling."""
    _check_images("small", input_shape, 4, "network.name=mlp for features or smaller images")
    conv, dense = _layers(options)
    channels, width = input_shape[0], options.width or 24
    # fmt: off
    return FusedSequential(OrderedDict(
        noise   = GaussianNoise(options.noise),
        conv1a  = conv(channels,  width,     3, padding="same"),
        conv1b  = conv(width,     width,     3, padding="same"),
        pool1   = nn.MaxPool2d(2),
        drop1   = nn.Dropout(options.dropout),
        conv2a  = conv(width,     2 * width, 3, padding="same"),
        conv2b  = conv(2 * width, 2 * width, 1),
        pool2   = nn.AdaptiveAvgPool2d(1),
        flatten = nn.Flatten(),
        dense   = dense(2 * width, num_classes),
    ))
    # fmt: on


def tiny(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """Three convolutions with batch normalization, for a CPU and images of at least 12x12; `options.width` channels (16)."""
    _check_images("tiny", input_shape, 12, "network.name=small for smaller images, mlp for features")
    channels, width = input_shape[0], options.width or 16
    layers: list[nn.Module] = []
    for outputs, size, stride in ((width, 5, 2), (2 * width, 3, 1), (4 * width, 3, 1)):
        convolution = nn.Conv2d(channels, outputs, size, stride, size // 2, bias=False)
        layers += [convolution, BatchNorm(outputs, options.mean_momentum), nn.ReLU()]
        channels = outputs
    layers = [GaussianNoise(options.noise), *layers[:-3], nn.MaxPool2d(2), *layers[-3:]]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(options.dropout), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers, *head)


def mlp(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """Two hidden layers of `options.width` units (default 128); images are flattened."""
    _, dense = _layers(options)
    features, width = math.prod(input_shape), options.width or 128
    # fmt: off
    return FusedSequential(OrderedDict(
        noise   = GaussianNoise(options.noise),
        flatten = nn.Flatten(),
        hidden1 = _hidden(features, width, options),
        drop1   = nn.Dropout(options.dropout),
        hidden2 = _hidden(width,    width, options),
        drop2   = nn.Dropout(options.dropout),
        dense   = dense(width, num_classes),
    ))
    # fmt: on


def wrn28(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """A wide residual network of 28 layers; `options.width` channels (default 32: WRN-28-2), doubled in each later group."""
    _check_images("wrn-28-2", input_shape, 4, "network.name=mlp for features or smaller images")
    width = options.width or 32
    layers: list[nn.Module] = [GaussianNoise(options.noise), nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)]
    channels = 16
    for group in range(3):
        for block in range(4):
            stride = 2 if group and not block else 1
            layers.append(ResidualBlock(channels, width * 2**group, stride, options))
            channels = width * 2**group
    layers += [BatchNorm(channels, options.mean_momentum), nn.LeakyReLU(LEAKY_SLOPE)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Linear(channels, num_classes))


class ResidualBlock(nn.Module):
    """x + f(x) with two convolutions, each after normalization and activation (Zagoruyko & Komodakis, 2016).

    A block that changes the shape projects the activated input instead of adding x.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, options: NetworkConfig) -> None:
        super().__init__()
        self.norm = BatchNorm(in_channels, options.mean_momentum)
        self.first = BatchNormConv2d(in_channels, out_channels, 3, stride=stride, momentum=options.mean_momentum)
        self.dropout = nn.Dropout(options.dropout)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.projection = None
        if in_channels != out_channels:
            self.projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
        for convolution in (self.second, self.projection):
            if convolution is not None and not convolution.weight.is_meta:
                nn.init.kaiming_normal_(convolution.weight, a=LEAKY_SLOPE)

    def forward(self, x: Tensor) -> Tensor:
        active = functional.leaky_relu(self.norm(x), LEAKY_SLOPE)
        skipped = x if self.projection is None else self.projection(active)
        return skipped + self.second(self.dropout(self.first(active)))  # type: ignore[no-any-return]


def _layers(options: NetworkConfig) -> tuple[Callable[..., nn.Module], Callable[..., nn.Module]]:
    """Return the convolution and the fully connected layer, with the paper's or with full batch normalization."""
    momentum = options.mean_momentum
    if options.normalization == "full":
        return partial(BatchNormConv2d, momentum=momentum), Linear
    return partial(NormalizedConv2d, momentum=momentum), partial(NormalizedLinear, momentum=momentum)


def _hidden(in_features: int, out_features: int, options: NetworkConfig) -> nn.Module:
    """Return a fully connected layer with normalization and activation."""
    momentum = options.mean_momentum
    if options.normalization == "mean":
        return NormalizedLinear(in_features, out_features, momentum=momentum, slope=LEAKY_SLOPE)
    layer = nn.Linear(in_features, out_features, bias=False)
    return nn.Sequential(layer, BatchNorm(out_features, momentum), nn.LeakyReLU(LEAKY_SLOPE))


def _check_images(name: str, input_shape: tuple[int, ...], smallest: int, instead: str) -> None:
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        given = f"the network '{name}' was given inputs of shape {tuple(input_shape)}"
        raise ConfigError(f"{given}; it needs images of at least {smallest}x{smallest}: use {instead}.")
