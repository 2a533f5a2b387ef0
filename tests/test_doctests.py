"""The examples in docstrings are true."""

import doctest
import importlib

import pytest

MODULES = [
    *(
        "core.targets",
        "core.losses",
        "core.schedules",
        "core.teacher",
        "settings",
        "config",
    ),
    *("methods", "errors", "training.progress", "tools.audit", "report.render", "report.measures", "estimator"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_module_hold(name):
    results = doctest.testmod(importlib.import_module(f"selfens.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
