"""Schedules: functions from the epoch (counted from 0) to a value.

The paper changes learning rate, Adam's beta1 and the unsupervised weight once per epoch, along Gaussian ramps. The ramp-up
does not start from zero: its first value is exp(-5) = 0.0067. The unsupervised weight alone is set to zero in epoch 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from selfens.config import OptimizerConfig, ScheduleConfig

Schedule = Callable[[float], float]


def gaussian_rampup(length: float, constant: float = 5.0) -> Schedule:
    """exp(-constant (1 - t/length)^2) up to `length`, 1 from there on.

    >>> up = gaussian_rampup(80)
    >>> round(up(0), 5), round(up(40), 4), up(80), up(200)
    (0.00674, 0.2865, 1.0, 1.0)
    """

    def value(epoch: float) -> float:
        return math.exp(-constant * (1 - epoch / length) ** 2) if epoch < length else 1.0

    return value


def gaussian_rampdown(end: float, length: float, constant: float = 12.5) -> Schedule:
    """1 until `end - length`, then exp(-constant ((t - (end - length))/length)^2).

    >>> down = gaussian_rampdown(300, 50)
    >>> down(249), down(250), round(down(260), 4)
    (1.0, 1.0, 0.6065)
    """
    start = end - length

    def value(epoch: float) -> float:
        return math.exp(-constant * ((epoch - start) / length) ** 2) if epoch > start else 1.0

    return value


def learning_rate(schedule: ScheduleConfig, maximum: float) -> Schedule:
    """Ramped up, held, ramped down."""
    up = gaussian_rampup(schedule.rampup, schedule.rampup_constant)
    down = gaussian_rampdown(schedule.epochs, schedule.rampdown, schedule.rampdown_constant)
    return lambda epoch: maximum * up(epoch) * down(epoch)


def beta1(schedule: ScheduleConfig, optimizer: OptimizerConfig) -> Schedule:
    """From `beta1` to `beta1_end` along the ramp-down."""
    down = gaussian_rampdown(schedule.epochs, schedule.rampdown, schedule.rampdown_constant)
    return lambda epoch: optimizer.beta1 * down(epoch) + optimizer.beta1_end * (1 - down(epoch))


def unsupervised_weight(schedule: ScheduleConfig, maximum: float) -> Schedule:
    """w(t): zero in epoch 0, then ramped up and never down. `maximum` is w_max times M/N."""
    up = gaussian_rampup(schedule.rampup, schedule.rampup_constant)
    return lambda epoch: 0.0 if epoch < 1 else maximum * up(epoch)
