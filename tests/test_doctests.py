"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

import selfens

PACKAGE = Path(selfens.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_examples_of_the_module_hold(path):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
