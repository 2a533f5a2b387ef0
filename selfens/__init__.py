"""selfens: semi-supervised classification by self-ensembling.

The names below are imported when they are first used, so `import selfens` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfens import audit, data, folds, losses, methods, networks, presets, schedules
    from selfens.config import Config
    from selfens.data.dataset import Dataset
    from selfens.errors import SelfensError
    from selfens.estimator import SelfEnsemblingClassifier
    from selfens.export import export_run
    from selfens.methods.base import Method
    from selfens.report.page import write_report
    from selfens.run import Run, load_run
    from selfens.targets import EnsembleTargets
    from selfens.training import resume, train

__version__ = "0.1.0"

_HOMES = {
    "Config": "selfens.config",
    "Dataset": "selfens.data.dataset",
    "EnsembleTargets": "selfens.targets",
    "Method": "selfens.methods.base",
    "Run": "selfens.run",
    "SelfEnsemblingClassifier": "selfens.estimator",
    "SelfensError": "selfens.errors",
    "export_run": "selfens.export",
    "load_run": "selfens.run",
    "resume": "selfens.training",
    "train": "selfens.training",
    "write_report": "selfens.report.page",
}
_MODULES = ("audit", "data", "folds", "losses", "methods", "networks", "presets", "schedules")

__all__ = [
    "Config",
    "Dataset",
    "EnsembleTargets",
    "Method",
    "Run",
    "SelfEnsemblingClassifier",
    "SelfensError",
    "audit",
    "data",
    "export_run",
    "folds",
    "load_run",
    "losses",
    "methods",
    "networks",
    "presets",
    "resume",
    "schedules",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"selfens.{name}")
    raise AttributeError(f"module 'selfens' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
