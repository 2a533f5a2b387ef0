"""Flip and translation as in the authors' code: pad by reflection, mirror the padded image, crop."""

import numpy as np


def flip_and_shift(image, flip, down, right, largest):
    """image [channels, height, width]; shifts from -largest to largest."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (largest, largest), (largest, largest)), mode="reflect")
    if flip:
        padded = padded[:, :, ::-1]
    top, left = largest + down, largest + right
    return padded[:, top : top + height, left : left + width]
