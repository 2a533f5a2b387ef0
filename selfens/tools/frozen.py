"""What a fine-tuned backbone is compared with: simple methods and the committee on its frozen features."""

from selfens.data.rows import Labels
from selfens.encoders.dataset import EncodedDataset
from selfens.runs.run import Run

COMMITTEE = "committee on frozen features"


def compared_data(run: Run) -> EncodedDataset:
    """Return the inputs that simple methods get: those of the run, or frozen features if it fine-tunes a backbone."""
    data = run.data()
    return data if run.frozen is None else run.frozen.data(data.dataset)


def frozen_predictions(run: Run) -> dict[str, Labels]:
    """Return what the committee that fine-tuning started from predicts for the test rows, by name."""
    if run.frozen is None:
        return {}
    run.frozen.data(run.data().dataset)
    return {COMMITTEE: run.frozen.test_probabilities.argmax(axis=1)}
