"""selfens: semi-supervised classification by self-ensembling.

The names below are imported when they are first used, so `import selfens` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfens import data, methods, networks, presets
    from selfens.config import Config
    from selfens.core import losses, schedules
    from selfens.core.targets import EnsembleTargets
    from selfens.core.teacher import EmaTeacher
    from selfens.core.views import Views
    from selfens.data.dataset import Dataset
    from selfens.errors import SelfensError
    from selfens.estimator import SelfEnsemblingClassifier
    from selfens.methods.base import Method
    from selfens.report.page import write_report
    from selfens.runs.run import Run, load_run
    from selfens.tools import audit, folds
    from selfens.tools.export import export_run
    from selfens.training.loop import resume, train

__version__ = "0.2.0"

_HOMES = {
    "Config": "selfens.config",
    "Dataset": "selfens.data.dataset",
    "EmaTeacher": "selfens.core.teacher",
    "EnsembleTargets": "selfens.core.targets",
    "Method": "selfens.methods.base",
    "Run": "selfens.runs.run",
    "SelfEnsemblingClassifier": "selfens.estimator",
    "SelfensError": "selfens.errors",
    "Views": "selfens.core.views",
    "export_run": "selfens.tools.export",
    "load_run": "selfens.runs.run",
    "resume": "selfens.training.loop",
    "train": "selfens.training.loop",
    "write_report": "selfens.report.page",
}
_MODULES = {
    "audit": "selfens.tools.audit",
    "data": "selfens.data",
    "folds": "selfens.tools.folds",
    "losses": "selfens.core.losses",
    "methods": "selfens.methods",
    "networks": "selfens.networks",
    "presets": "selfens.presets",
    "schedules": "selfens.core.schedules",
}

__all__ = [
    "Config",
    "Dataset",
    "EmaTeacher",
    "EnsembleTargets",
    "Method",
    "Run",
    "SelfEnsemblingClassifier",
    "SelfensError",
    "Views",
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
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'selfens' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
