"""The golden runs: the first three epochs are those of the first edition, on any machine. See tests/golden/runs.py."""

import json

import pytest
from golden import runs

from selfens import train
from selfens.runs.directory import RunDirectory
from selfens.training.progress import Silent

EPOCHS = 3
RUNS = runs.golden_runs()
KEPT = json.loads(runs.GOLDEN.read_text())["runs"]


class _Enough(Exception):
    pass


class _FirstEpochs(Silent):
    def epoch(self, record):
        if record["epoch"] + 1 == EPOCHS:
            raise _Enough

    def warn(self, message):
        pass


@pytest.mark.parametrize("name", RUNS)
def test_the_first_epochs_of_a_golden_run_are_those_of_the_first_edition(tmp_path, name):
    config = RUNS[name].config.with_overrides(["training.threads=1", "training.device=cpu"])
    with pytest.raises(_Enough):
        train(config, tmp_path / "run", dataset=RUNS[name].dataset, progress=_FirstEpochs())
    found = [runs.numbers(record) for record in RunDirectory(tmp_path / "run").history()]
    test_rows = 100 if RUNS[name].dataset else 500
    for ours, theirs in zip(found, KEPT[name]["history"][:EPOCHS], strict=True):
        # Of the errors, one row may be on the other side of a border elsewhere.
        assert ours.pop("test_error") == pytest.approx(theirs.pop("test_error"), abs=100 / test_rows + 1e-9)
        for part, value in theirs.items():
            assert ours[part] == (None if value is None else pytest.approx(value, rel=1e-5, abs=1e-5)), part


def test_every_golden_run_is_kept():
    assert set(RUNS) == set(KEPT)
