"""Methods by name. Each entry builds one from its options, the number of training rows and of classes, and a device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from selfens.config import MethodConfig
from selfens.core.targets import EnsembleTargets
from selfens.errors import ConfigError, unknown_name
from selfens.methods.base import Losses, Method
from selfens.methods.pi import Pi
from selfens.methods.supervised import Supervised
from selfens.methods.temporal import Temporal

__all__ = ["METHODS", "Losses", "Method", "Pi", "Supervised", "Temporal", "build"]


def _temporal(options: MethodConfig, rows: int, classes: int, device: torch.device) -> Method:
    ensemble = EnsembleTargets(
        rows,
        classes,
        options.decay,
        device,
        storage=options.targets,
        dtype=options.targets_type,
        variance=options.variance,
    )
    return Temporal(ensemble, options.consistency, options.unseen_rows == "skip", options.certainty)


METHODS: dict[str, Callable[[MethodConfig, int, int, torch.device], Method]] = {
    "supervised": lambda options, rows, classes, device: Supervised(),
    "pi": lambda options, rows, classes, device: Pi(options.consistency),
    "temporal": _temporal,
}


def build(options: MethodConfig, num_rows: int, num_classes: int, device: torch.device) -> Method:
    if options.name not in METHODS:
        raise ConfigError(unknown_name("method", options.name, METHODS))
    return METHODS[options.name](options, num_rows, num_classes, device)
