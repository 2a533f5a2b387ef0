"""The examples in docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["targets", "schedules", "errors", "progress", "config", "audit", "estimator"])
def test_examples_of_the_module_hold(name):
    results = doctest.testmod(importlib.import_module(f"selfens.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
