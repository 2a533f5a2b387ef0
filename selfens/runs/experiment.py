"""Whether two configs are the same experiment: one list of the fields that change no result. Imports no torch."""

from __future__ import annotations

import json

from selfens.config import Config

WITHOUT_EFFECT = {
    "data": "folder feature_cache",
    "training": "residence device precision compile capture kernels threads evaluate_every checkpoint_every",
}
"""Fields that say where and how fast a run is computed, and how often it is evaluated and saved. Precision and residence
change the last digits at most."""


def decisive_fields(config: Config, *, with_seed: bool = True) -> str:
    """The fields of a config that decide its results, as text to compare; a field that is new is decisive."""
    sections = config.to_dict()
    if not with_seed:
        del sections["seed"]
    sections["method"].pop(config.method.place, None)
    for section, names in WITHOUT_EFFECT.items():
        for name in names.split():
            sections[section].pop(name, None)
    return json.dumps(sections, sort_keys=True)


def same_experiment(one: Config, other: Config) -> bool:
    """Whether two configs compute the same, wherever they run and wherever the data lies."""
    return decisive_fields(one) == decisive_fields(other)
