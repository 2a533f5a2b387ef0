"""Tensors in, tensors out: no config, no loop, and no files but that of targets larger than memory.

Modules are imported when they are first used (`core.losses`), so a method's file, and with it every config, can be read
without importing torch.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfens.core import losses, neighbors, targets, teacher

IN_MEMORY = ("device", "ram")
"""The places for the ensemble of targets that are not the path of a file."""

__all__ = ["IN_MEMORY", "losses", "neighbors", "targets", "teacher"]


def __getattr__(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"selfens.core.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module 'selfens.core' has no attribute '{name}'") from None
