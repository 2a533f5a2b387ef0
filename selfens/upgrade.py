"""Configs of the first edition (selfens 0.1) as those of the second.

There `method` was one flat section for all methods, so a run of the Π-model also had a `decay`; here each method has its own
options. `training.report` is gone, because the trainer draws no report. The other fields that are gone may be in early configs
of the second edition too. They are dropped if they say what is done anyway.
"""

from __future__ import annotations

from typing import Any

from selfens import methods
from selfens.errors import ConfigError
from selfens.settings import field_types

GONE = (("training", "batches", "shuffled"), ("data", "extra_index", None), ("data", "extra_rows", None))
"""Section, name, and the value that stands for what is done now."""


def upgrade_config(raw: dict[str, Any], *, first_edition: bool = True) -> dict[str, Any]:
    """The config of a run or record, of the first edition or not, as `Config.from_dict` reads it. What is of neither is left
    as it is, and refused there if it does not fit.

    >>> upgrade_config({"method": {"name": "pi", "weight_max": 100.0, "decay": 0.6}, "training": {"report": True}})
    {'method': {'name': 'pi', 'weight_max': 100.0}, 'training': {}}
    """
    upgraded = {section: dict(values) if isinstance(values, dict) else values for section, values in raw.items()}
    method, training = upgraded.get("method"), upgraded.get("training")
    for section, field, without in GONE:
        values = upgraded.get(section)
        value = values.pop(field, without) if isinstance(values, dict) else without
        if value != without:
            raise ConfigError(
                f"{section}.{field} is {value!r}, and this option is gone since 0.2; train again without it."
            )
    if not first_edition:
        return upgraded
    name = method.get("name", "temporal") if isinstance(method, dict) else None
    if isinstance(method, dict) and isinstance(name, str) and name in methods.METHODS:
        known = {"name", *field_types(methods.find(name).Options)}
        of_temporal = set(field_types(methods.find("temporal").Options))
        upgraded["method"] = {key: value for key, value in method.items() if key in known or key not in of_temporal}
    if isinstance(training, dict):
        training.pop("report", None)
    return upgraded
