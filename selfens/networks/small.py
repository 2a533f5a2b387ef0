"""Small networks of the same layers as conv13: one for small images, one for feature vectors."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

from torch import nn

from selfens.config import NetworkConfig
from selfens.networks.layers import (
    LEAKY_SLOPE,
    Column,
    GaussianNoise,
    NormalizedConv2d,
    NormalizedLinear,
    check_images,
)

SMALLEST_SIDE = 4


def small(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """Five layers for images from 4x4; `options.width` channels (24), doubled after the pooling."""
    check_images("small", input_shape, SMALLEST_SIDE, "network.name=mlp for features")
    conv = partial(NormalizedConv2d, momentum=options.mean_momentum)
    dense = partial(NormalizedLinear, momentum=options.mean_momentum)
    channels, width = input_shape[0], options.width or 24
    # fmt: off
    return Column(OrderedDict(
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


def mlp(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """Two hidden layers of `options.width` units (128); images are flattened."""
    dense = partial(NormalizedLinear, momentum=options.mean_momentum)
    features, width = math.prod(input_shape), options.width or 128
    # fmt: off
    return Column(OrderedDict(
        noise   = GaussianNoise(options.noise),
        flatten = nn.Flatten(),
        hidden1 = dense(features, width, slope=LEAKY_SLOPE),
        drop1   = nn.Dropout(options.dropout),
        hidden2 = dense(width,    width, slope=LEAKY_SLOPE),
        drop2   = nn.Dropout(options.dropout),
        dense   = dense(width, num_classes),
    ))
    # fmt: on
