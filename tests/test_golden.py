"""The golden runs: the first three epochs are those of the first edition, on any machine. See tests/golden/runs.py."""

import json

import pytest
from golden import runs

from selfens import train
from selfens.runs.directory import RunDirectory
from selfens.training.progress import WarningsOnly

EPOCHS = 3
RUNS = runs.golden_runs()
KEPT, KEPT_ON = (json.loads(runs.GOLDEN.read_text())[key] for key in ("runs", "environment"))
# Another CPU rounds otherwise, and three epochs of convolutions make a hundred times as much of it as of matrix products.
IS_SAME_CPU = runs.environment() == KEPT_ON
CLOSE = {"rel": 1e-5, "abs": 1e-5} if IS_SAME_CPU else {"rel": 1e-2, "abs": 1e-3}


class Enough(Exception):
    pass


class FirstEpochs(WarningsOnly):
    def epoch(self, record):
        if record["epoch"] + 1 == EPOCHS:
            raise Enough

    def warn(self, message):
        pass


@pytest.mark.parametrize("name", RUNS)
def test_the_first_epochs_of_a_golden_run_are_those_of_the_first_edition(tmp_path, name):
    config = RUNS[name].config.with_overrides(["training.threads=1", "training.device=cpu"])
    with pytest.raises(Enough):
        train(config, tmp_path / "run", dataset=RUNS[name].dataset, progress=FirstEpochs())
    found = [runs.numbers(record) for record in RunDirectory(tmp_path / "run").history()]
    test_rows = 100 if RUNS[name].dataset else 500
    for ours, theirs in zip(found, KEPT[name]["history"][:EPOCHS], strict=True):
        rows = 1 if IS_SAME_CPU else 0.04 * test_rows  # of the errors, on the other side of a border
        assert ours.pop("test_error") == pytest.approx(theirs.pop("test_error"), abs=100 * rows / test_rows + 1e-9)
        for part, value in theirs.items():
            assert ours[part] == (None if value is None else pytest.approx(value, **CLOSE)), part


def test_every_golden_run_is_kept():
    assert set(RUNS) == set(KEPT)
