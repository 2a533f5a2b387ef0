"""Methods by name. A new one is a file of this folder and a line of `METHODS`. Imports no torch."""

from __future__ import annotations

import importlib
from typing import Any

from selfens.errors import ConfigError, unknown_name
from selfens.methods.base import Losses, Method, Options, TrainingRows, WeightedOptions

METHODS: dict[str, str] = {
    "supervised": "selfens.methods.supervised:Supervised",
    "pi": "selfens.methods.pi:Pi",
    "temporal": "selfens.methods.temporal:Temporal",
    "mean-teacher": "selfens.methods.mean_teacher:MeanTeacher",
    "fixmatch": "selfens.methods.fixmatch:FixMatch",
    "committee": "selfens.methods.committee:Committee",
    "temporal-teacher": "selfens.methods.temporal_teacher:TemporalTeacher",
}
"""By name, where the class is."""

__all__ = ["METHODS", "Losses", "Method", "Options", "TrainingRows", "WeightedOptions", "build", "find", "options"]


def find(name: str) -> type[Method]:
    """The class of a method."""
    if name not in METHODS:
        raise ConfigError(unknown_name("method", name, METHODS))
    module, _, attribute = METHODS[name].partition(":")
    found: type[Method] = getattr(importlib.import_module(module), attribute)
    return found


def options(name: str, **values: Any) -> Options:
    """The options of a method.

    >>> options("temporal", decay=0.9).decay
    0.9
    """
    return find(name).Options().changed(values)


def build(chosen: Options) -> Method:
    """The method that these options are of, not yet set up."""
    return find(chosen.name)(chosen)


def __getattr__(name: str) -> Any:
    """The classes themselves: `from selfens.methods import Temporal`."""
    for where in METHODS.values():
        module, _, attribute = where.partition(":")
        if attribute == name:
            return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'selfens.methods' has no attribute '{name}'")
