"""Configs of the first edition (selfens 0.1) as those of the second.

There `method` was one flat section for all methods, so a run of the Π-model also had a `decay`; here each method has its own
options. A setting that is gone is left out if it had the value that does what is done now; another value is refused, as any
unknown setting is.
"""

from __future__ import annotations

from typing import Any

from selfens import methods
from selfens.settings import field_types

GONE = {
    ("method", "certainty"): (False,),
    ("network", "initial_weights"): ("normal",),
    ("augment", "shared_translation"): (False,),
    ("training", "report"): (True, False),
}
"""Settings of the first edition that are gone, and the values that need nothing else."""


def upgrade_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The config of a run or record of the first edition, as `Config.from_dict` reads it. What is not of the first edition
    is left as it is, and refused there if it does not fit.

    >>> upgrade_config({"method": {"name": "pi", "weight_max": 100.0, "decay": 0.6}, "training": {"report": True}})
    {'method': {'name': 'pi', 'weight_max': 100.0}, 'training': {}}
    """
    upgraded = {section: dict(values) if isinstance(values, dict) else values for section, values in raw.items()}
    for (section, setting), harmless in GONE.items():
        values = upgraded.get(section)
        if isinstance(values, dict) and values.get(setting) in harmless:
            del values[setting]
    method = upgraded.get("method")
    name = method.get("name", "temporal") if isinstance(method, dict) else None
    if isinstance(method, dict) and isinstance(name, str) and name in methods.METHODS:
        known = {"name", *field_types(methods.find(name).Options)}
        first_edition = set(field_types(methods.find("temporal").Options))
        upgraded["method"] = {key: value for key, value in method.items() if key in known or key not in first_edition}
    return upgraded
