"""ZCA whitening and per-image normalization in float64."""

import numpy as np

EPSILON = 1e-5


def zca(train):
    """Mean and matrix from training inputs that are already numbers from 0 to 1: U diag(1/sqrt(S + 1e-5)) U'."""
    flat = np.asarray(train, dtype=np.float64).reshape(len(train), -1)
    mean = flat.mean(axis=0)
    covariance = np.zeros((flat.shape[1], flat.shape[1]))
    for row in flat:
        covariance += np.outer(row - mean, row - mean)
    u, s, _ = np.linalg.svd(covariance / len(flat))
    return mean, u @ np.diag(1 / np.sqrt(s + EPSILON)) @ u.T


def whitened(inputs, mean, matrix):
    flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    return np.array([(row - mean) @ matrix for row in flat]).reshape(np.shape(inputs))


def per_image(inputs):
    """Subtract the mean over all channels and pixels, divide by the root mean square of the rest."""
    result = []
    for image in np.asarray(inputs, dtype=np.float64):
        centered = image - image.mean()
        result.append(centered / np.sqrt((centered**2).mean()))
    return np.array(result)
