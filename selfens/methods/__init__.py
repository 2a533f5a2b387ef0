"""Methods by name. To add one, write a file in this folder and add a line to `METHODS`."""

from typing import Any

from selfens.methods.base import Losses, Method, MethodOptions, TrainingRows, WeightedOptions
from selfens.settings import Registry

METHODS = Registry(
    "method",
    {
        "supervised": "selfens.methods.supervised:Supervised",
        "pi": "selfens.methods.pi:Pi",
        "temporal": "selfens.methods.temporal:Temporal",
        "mean-teacher": "selfens.methods.mean_teacher:MeanTeacher",
        "fixmatch": "selfens.methods.fixmatch:FixMatch",
        "committee": "selfens.methods.committee:Committee",
        "temporal-teacher": "selfens.methods.temporal_teacher:TemporalTeacher",
        "pseudo-label": "selfens.methods.pseudo_label:PseudoLabel",
        "bootstrapping": "selfens.methods.bootstrapping:Bootstrapping",
        "elr": "selfens.methods.elr:Elr",
        "stability": "selfens.methods.stability:Stability",
        "ict": "selfens.methods.ict:Ict",
        "gamma": "selfens.methods.gamma:Gamma",
        "vat": "selfens.methods.vat:Vat",
    },
)
"""Maps each method's name to "module:Class"."""

__all__ = ["METHODS", "Losses", "Method", "MethodOptions", "TrainingRows", "WeightedOptions"]


def __getattr__(name: str) -> Any:
    """Make `from selfens.methods import Temporal` work."""
    for method, path in METHODS.items():
        if path.endswith(f":{name}"):
            return METHODS.find(method)
    raise AttributeError(f"module 'selfens.methods' has no attribute '{name}'")
