"""The ramps of the paper's appendix, with the epoch counted from 0 as in the authors' code."""

import math


def rampup(epoch, length=80, constant=5.0):
    """exp[-5(1-T)^2], T advancing linearly from zero to one during the ramp-up."""
    if epoch >= length:
        return 1.0
    progress = epoch / length
    return math.exp(-constant * (1 - progress) ** 2)


def rampdown(epoch, epochs=300, length=50, constant=12.5):
    """The ramp-up's curve reversed in time: 1 until `length` epochs are left, then exp[-12.5 T^2]."""
    into = epoch - (epochs - length)
    if into <= 0:
        return 1.0
    return math.exp(-constant * (into / length) ** 2)


def learning_rate(epoch, maximum, epochs=300, up=80, down=50):
    return maximum * rampup(epoch, up) * rampdown(epoch, epochs, down)


def beta1(epoch, start=0.9, end=0.5, epochs=300, down=50):
    remaining = rampdown(epoch, epochs, down)
    return start * remaining + end * (1 - remaining)


def weight(epoch, maximum, up=80):
    """Zero on the first epoch, then ramped up; never ramped down."""
    return 0.0 if epoch == 0 else maximum * rampup(epoch, up)


def warmup_cosine(epoch, epochs, warmup):
    """A line from 0 to 1, then half a period of a cosine from 1 to 0."""
    if epoch < warmup:
        return epoch / warmup
    if epoch >= epochs:
        return 0.0
    return 0.5 + 0.5 * math.cos(math.pi * (epoch - warmup) / (epochs - warmup))
