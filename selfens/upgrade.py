"""Configs of earlier versions as this one reads them.

In version 0.1 `method` was one flat section for all methods, so a run of the Π-model also had a `decay`; now each method has
its own options. A setting that is gone is dropped if its value does what is done anyway, and refused if not.
"""

from __future__ import annotations

from typing import Any

from selfens import methods
from selfens.errors import ConfigError
from selfens.settings import field_types

GONE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("augment", "shared_translation"): (False,),
    ("data", "extra_index"): (None,),
    ("data", "extra_rows"): (None,),
    ("method", "certainty"): (False,),
    ("network", "initial_weights"): ("normal",),
    ("training", "batches"): ("shuffled",),
    ("training", "report"): (True, False),
}
"""Section and name of each setting that is gone, and the values that may be dropped."""


def upgrade_config(raw: dict[str, Any], *, first_edition: bool = True) -> dict[str, Any]:
    """The config of a run or record of an earlier version, as `Config.from_dict` reads it. What is of no version is left as it
    is, and refused there.

    >>> upgrade_config({"method": {"name": "pi", "weight_max": 100.0, "decay": 0.6}, "training": {"report": True}})
    {'method': {'name': 'pi', 'weight_max': 100.0}, 'training': {}}
    """
    upgraded = {section: dict(values) if isinstance(values, dict) else values for section, values in raw.items()}
    for (section, name), harmless in GONE.items():
        values = upgraded.get(section)
        if isinstance(values, dict) and name in values and (value := values.pop(name)) not in harmless:
            raise ConfigError(
                f"{section}.{name} is {value!r}, and this setting is gone since 0.2; train again without it."
            )
    method = upgraded.get("method")
    kind = method.get("name", "temporal") if isinstance(method, dict) else None
    if first_edition and isinstance(method, dict) and isinstance(kind, str) and kind in methods.METHODS:
        known = {"name", *field_types(methods.find(kind).Options)}
        of_temporal = set(field_types(methods.find("temporal").Options))
        upgraded["method"] = {key: value for key, value in method.items() if key in known or key not in of_temporal}
    return upgraded
