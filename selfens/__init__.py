"""selfens: semi-supervised classification by self-ensembling.

The names below are imported on first use, so `import selfens` is fast.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfens import auto as auto
    from selfens import data as data
    from selfens import encoders as encoders
    from selfens import methods as methods
    from selfens import networks as networks
    from selfens import presets as presets
    from selfens.config import Config as Config
    from selfens.core import losses as losses
    from selfens.core import schedules as schedules
    from selfens.core.targets import EnsembleTargets as EnsembleTargets
    from selfens.core.teacher import EmaTeacher as EmaTeacher
    from selfens.core.views import Views as Views
    from selfens.core.views import ViewsConfig as ViewsConfig
    from selfens.data.dataset import Dataset as Dataset
    from selfens.data.sources.base import Source as Source
    from selfens.encoders.base import Encoder as Encoder
    from selfens.errors import SelfensError as SelfensError
    from selfens.estimator import SelfEnsemblingClassifier as SelfEnsemblingClassifier
    from selfens.methods.base import Method as Method
    from selfens.report.page import write_report as write_report
    from selfens.runs.run import Run as Run
    from selfens.runs.run import load_run as load_run
    from selfens.tools import audit as audit
    from selfens.tools import folds as folds
    from selfens.tools.export import export_run as export_run
    from selfens.training.loop import resume as resume
    from selfens.training.loop import train as train

__version__ = "0.2.0"

_PATHS = {
    **{name: f"selfens.{name}:" for name in ("auto", "data", "encoders", "methods", "networks", "presets")},
    **{name: f"selfens.tools.{name}:" for name in ("audit", "folds")},
    **{name: f"selfens.core.{name}:" for name in ("losses", "schedules")},
    "Config": "selfens.config:Config",
    "Dataset": "selfens.data.dataset:Dataset",
    "Encoder": "selfens.encoders.base:Encoder",
    "EmaTeacher": "selfens.core.teacher:EmaTeacher",
    "EnsembleTargets": "selfens.core.targets:EnsembleTargets",
    "Method": "selfens.methods.base:Method",
    "Run": "selfens.runs.run:Run",
    "SelfEnsemblingClassifier": "selfens.estimator:SelfEnsemblingClassifier",
    "Source": "selfens.data.sources.base:Source",
    "SelfensError": "selfens.errors:SelfensError",
    "Views": "selfens.core.views:Views",
    "ViewsConfig": "selfens.core.views:ViewsConfig",
    "export_run": "selfens.tools.export:export_run",
    "load_run": "selfens.runs.run:load_run",
    "resume": "selfens.training.loop:resume",
    "train": "selfens.training.loop:train",
    "write_report": "selfens.report.page:write_report",
}

__all__ = [*_PATHS]


def __getattr__(name: str) -> Any:
    if name not in _PATHS:
        raise AttributeError(f"module 'selfens' has no attribute '{name}'")
    return pkgutil.resolve_name(_PATHS[name])


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
