"""Whether two configs are the same experiment: one list of the fields that change no result. Imports no torch."""

from __future__ import annotations

import json
from typing import Any

from selfens.config import Config

WITHOUT_EFFECT = {
    "data": {"folder"},
    "method": {"targets"},
    "training": {
        "residence",
        "device",
        "precision",
        "compile",
        "capture",
        "kernels",
        "threads",
        "checkpoint_every",
        "report",
    },
}
"""Fields that say where and how fast a run is computed. Precision and residence change the last digits at most."""


def decisive_fields(config: Config) -> dict[str, dict[str, Any]]:
    """The sections of a config without the fields that change no result; a field that is new counts as decisive."""
    sections: dict[str, dict[str, Any]] = json.loads(config.to_json())
    return {
        section: {name: value for name, value in values.items() if name not in WITHOUT_EFFECT.get(section, ())}
        for section, values in sections.items()
    }


def same_experiment(one: Config, other: Config) -> bool:
    """Whether two configs compute the same, wherever they run and wherever the data lies."""
    return decisive_fields(one) == decisive_fields(other)


def same_but_for_the_seed(one: Config, other: Config) -> bool:
    """Whether two runs differ in nothing but the seed, so that their results may be averaged."""
    return decisive_fields(one) | {"seed": {}} == decisive_fields(other) | {"seed": {}}
