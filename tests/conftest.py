"""The naive twins as `reference.xxx`, one thread (the networks here are tiny), and a command line to type at."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, in subprocesses too
sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("selfens", deadline=None, max_examples=40)
settings.load_profile("selfens")


@pytest.fixture
def typed(capsys, tmp_path, monkeypatch):
    """Types a command in an empty folder: exit code, what it printed, what it complained of."""
    from selfens.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return end.value.code or 0, *capsys.readouterr()

    return run
