"""Gradients by central differences."""

import numpy as np


def numerical_gradient(function, array, step=1e-6):
    """d function() / d array, where function reads the array; it is changed in place and put back."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = function()
        array[index] = kept - step
        below = function()
        array[index] = kept
        gradient[index] = (above - below) / (2 * step)
    return gradient
