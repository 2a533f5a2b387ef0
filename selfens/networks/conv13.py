"""conv13: the network of the paper's Table 5."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import nn

from selfens.config import NetworkConfig
from selfens.networks.layers import Column, GaussianNoise, NormalizedConv2d, NormalizedLinear, check_images

SMALLEST_SIDE = 12  # two poolings and a 'valid' 3x3 convolution leave one pixel


def conv13(input_shape: tuple[int, ...], num_classes: int, options: NetworkConfig) -> nn.Module:
    """13 layers, 3,121,812 trainable parameters for 32x32 RGB and 10 classes; returns logits, the softmax is the loss's."""
    check_images("conv13", input_shape, SMALLEST_SIDE, "network.name=small for smaller images, mlp for features")
    conv = partial(NormalizedConv2d, momentum=options.mean_momentum)
    dense = partial(NormalizedLinear, momentum=options.mean_momentum)
    channels = input_shape[0]
    # fmt: off
    return Column(OrderedDict(
        noise   = GaussianNoise(options.noise),
        conv1a  = conv(channels, 128, 3, padding="same"),
        conv1b  = conv(128,      128, 3, padding="same"),
        conv1c  = conv(128,      128, 3, padding="same"),
        pool1   = nn.MaxPool2d(2),
        drop1   = nn.Dropout(options.dropout),
        conv2a  = conv(128,      256, 3, padding="same"),
        conv2b  = conv(256,      256, 3, padding="same"),
        conv2c  = conv(256,      256, 3, padding="same"),
        pool2   = nn.MaxPool2d(2),
        drop2   = nn.Dropout(options.dropout),
        conv3a  = conv(256,      512, 3, padding="valid"),
        conv3b  = conv(512,      256, 1),
        conv3c  = conv(256,      128, 1),
        pool3   = nn.AdaptiveAvgPool2d(1),
        flatten = nn.Flatten(),
        dense   = dense(128, num_classes),
    ))
    # fmt: on
