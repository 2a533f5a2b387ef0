"""Weight normalization, mean-only batch normalization, convolution and pooling, one output at a time."""

import numpy as np


def normalized_weight(direction, gain):
    """g V / |V|, the norm over all inputs of an output unit."""
    weight = np.empty_like(direction)
    for unit in range(len(direction)):
        weight[unit] = gain[unit] * direction[unit] / np.sqrt((direction[unit] ** 2).sum())
    return weight


def dense(x, weight):
    return np.array([[(row * unit).sum() for unit in weight] for row in x])


def convolution(x, weight, padding):
    """Stride 1, zeros outside the image."""
    size = weight.shape[2]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    count, _, height, width = x.shape
    y = np.empty((count, len(weight), height - size + 1, width - size + 1))
    for n, unit, i, j in np.ndindex(y.shape):
        y[n, unit, i, j] = (x[n, :, i : i + size, j : j + size] * weight[unit]).sum()
    return y


def linear(x, weight, padding=0):
    return dense(x, weight) if weight.ndim == 2 else convolution(x, weight, padding)


def unit_means(y):
    """The mean of each output unit over rows and pixels."""
    return np.array([y[:, unit].mean() for unit in range(y.shape[1])])


def unit_rms(y):
    """The root mean square of each output unit around its mean."""
    return np.array([np.sqrt(((y[:, unit] - y[:, unit].mean()) ** 2).mean()) for unit in range(y.shape[1])])


def add_to_units(y, values):
    return y + np.asarray(values).reshape((1, -1) + (1,) * (y.ndim - 2))


def leaky(y, slope):
    return np.where(y > 0, y, slope * y)


def normalized_layer(x, direction, gain, bias, slope, padding=0, mean=None):
    """The layer's output: with the batch's mean, as in training, or with a given one, as in evaluation."""
    y = linear(x, normalized_weight(direction, gain), padding)
    mean = unit_means(y) if mean is None else mean
    return leaky(add_to_units(y, bias - mean), slope)
