"""Schedules: functions from progress, in epochs counted from 0, to the value of a rate.

The paper changes learning rate, Adam's beta1 and the unsupervised weight once per epoch, along Gaussian ramps. The ramp-up
does not start from zero: its first value is exp(-5) = 0.0067. Only the unsupervised weight is zero in epoch 0.
"""

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def gaussian_rampup(length: float, constant: float = 5.0) -> Schedule:
    """exp(-constant (1 - t/length)^2) up to `length`, then 1.

    >>> up = gaussian_rampup(80)
    >>> round(up(0), 5), round(up(40), 4), up(80), up(200)
    (0.00674, 0.2865, 1.0, 1.0)
    """
    return lambda epoch: math.exp(-constant * (1 - epoch / length) ** 2) if epoch < length else 1.0


def gaussian_rampdown(end: float, length: float, constant: float = 12.5) -> Schedule:
    """1 until `end - length`, then exp(-constant ((t - (end - length))/length)^2).

    >>> down = gaussian_rampdown(300, 50)
    >>> down(249), down(250), round(down(260), 4)
    (1.0, 1.0, 0.6065)
    """
    start = end - length
    return lambda epoch: math.exp(-constant * ((epoch - start) / length) ** 2) if epoch > start else 1.0


def warmup_cosine(end: float, warmup: float = 0.0) -> Schedule:
    """A linear warm-up from 0 over `warmup` epochs, then half a cosine down to 0 at `end`.

    >>> value = warmup_cosine(end=10, warmup=2)
    >>> value(0), value(1), value(2), round(value(6), 4), value(10)
    (0.0, 0.5, 1.0, 0.5, 0.0)
    """

    def value(epoch: float) -> float:
        if epoch < warmup:
            return epoch / warmup
        return (1 + math.cos(math.pi * (epoch - warmup) / (end - warmup))) / 2 if epoch < end else 0.0

    return value


def prior_share(length: float) -> Schedule:
    """1 at the beginning, then down a line to 0 after `length` epochs.

    >>> share = prior_share(4)
    >>> share(0), share(1), share(4), share(9)
    (1.0, 0.75, 0.0, 0.0)
    """
    return lambda epoch: max(1 - epoch / length, 0.0) if length else 0.0


def unsupervised_weight(maximum: float, rampup: float, constant: float = 5.0, *, from_start: bool = False) -> Schedule:
    """w(t): ramps up once per epoch and never down. Zero in epoch 0, when there are no targets, unless `from_start`."""
    up = gaussian_rampup(rampup, constant)
    return lambda epoch: 0.0 if epoch < 1 and not from_start else maximum * up(math.floor(epoch))
